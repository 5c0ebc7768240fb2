"""Calls tasks as the code of their project would, and prints what its caller, a monitor and the broker see of it, as JSON."""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, signals
from celery.events import EventReceiver
from snapshot import name_of, snapshot

PATIENCE_S = 40.0
POLLING = "celery.chord_unlock"
ENDS = {"task-succeeded", "task-failed", "task-revoked", "task-rejected"}
MESSAGE = ("lang", "task", "retries", "timelimit", "argsrepr", "kwargsrepr", "ignore_result", "group_index", "stamps")


class Probe:
    """Makes calls, one after the other, and collects what comes of them."""

    def __init__(self, app: Celery, module: str) -> None:
        """Have the function `use_cantata` of the application's module called first, if there is one."""
        self.app = app
        self.alone = snapshot(app)  # before anything was called
        self.calls: dict[str, Any] = {}
        self._waiting: list[tuple[dict[str, Any], Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._events: dict[str, list[Any]] = {}
        self._labels: dict[str, str] = {}
        self._heard = threading.Event()
        signals.after_task_publish.connect(self._on_published)
        threading.Thread(target=self._receive, name="events", daemon=True).start()
        self._until(self._is_received, "an event of the worker")
        self._until(
            lambda: self._all_reply(app.control.enable_events(reply=True, timeout=5, limit=1)),
            "the reply of the worker",
        )
        if use := getattr(sys.modules[module], "use_cantata", None):
            use()

    def call(self, label: str, function: Callable[[], Any], *, ends: bool = True) -> None:
        """Call, and note what the caller is given at once. `ends` tells whether events of its task are to come."""
        self._messages = []
        call: dict[str, Any] = {"returned": None, "raised": None}
        self.calls[label] = call
        try:
            returned = function()
        except Exception as error:  # noqa: BLE001  # any error is a part of the behaviour
            call["raised"] = described(error)
        else:
            call["returned"] = name_of(type(returned))
            if hasattr(returned, "id"):
                if ends:
                    self._labels[returned.id] = label
                self._waiting.append((call, returned))
        call["messages"] = list(self._messages)

    def revoke(self, uuid: str) -> None:
        """Have the worker refuse a task that it has not received yet."""
        self._until(
            lambda: self._all_reply(self.app.control.revoke(uuid, reply=True, timeout=5, limit=1)),
            "the reply of the worker",
        )

    def finish(self, **more: Any) -> None:
        """Wait for all results, and print everything."""
        for call, result in self._waiting:
            call["result"], call["error"] = None, None
            try:
                call["result"] = result.get(timeout=PATIENCE_S, interval=0.05)
            except Exception as error:  # noqa: BLE001  # any error is a part of the behaviour
                call["error"] = described(error)
        self._until(lambda: set(self._labels) <= self._ended(), "the last event of each task", self._missing)
        for call, result in self._waiting:
            call["state"] = result.state if hasattr(result, "state") else result.successful()
        for uuid, events in self._events.items():
            label = self._labels.get(uuid, "")
            if label:
                self.calls[label]["events"] = events
        others = [
            event
            for uuid, events in self._events.items()
            if uuid not in self._labels
            for event in events
            if event[1] != POLLING
        ]
        inspected = self.app.control.inspect(timeout=PATIENCE_S, limit=1)
        settings: Any = inspected.conf(with_defaults=True)
        for each in settings.values():
            each["include"].sort()  # which a worker makes of a set
        worker = {"registered": inspected.registered(), "conf": settings, "queues": inspected.active_queues()}
        seen = {
            "alone": self.alone,
            "calls": self.calls,
            "others": sorted(map(json.dumps, others)),
            "worker": worker,
            **more,
        }
        sys.stdout.write("\n" + json.dumps(seen, default=repr))

    def expect(self, uuid: str, label: str) -> None:
        """Take the events of a task that another process called as those of a call."""
        self.calls.setdefault(label, {})
        self._labels[uuid] = label

    def wait_for_events(self, name: str, number: int) -> None:
        """Wait until that many tasks of that name have ended."""
        self._until(
            lambda: sum(each[-1][0] in ENDS for each in list(self._events.values()) if each[0][1] == name) >= number,
            name,
        )

    def _on_published(
        self, sender: str = "", headers: Any = None, exchange: str = "", routing_key: str = "", **_: Any
    ) -> None:
        headers = headers or {}
        told = {name: headers.get(name) for name in MESSAGE}
        self._messages.append(
            {"task": sender, "exchange": exchange, "routing_key": routing_key, **told, "headers": sorted(headers)}
        )

    def _missing(self) -> list[str]:
        return [label for uuid, label in self._labels.items() if uuid not in self._ended()]

    def _ended(self) -> set[str]:
        return {uuid for uuid, events in list(self._events.items()) if events[-1][0] in ENDS}

    def _receive(self) -> None:
        with self.app.connection_for_read() as connection:
            EventReceiver(connection, handlers={"*": self._on_event}, app=self.app).capture(
                limit=None, timeout=None, wakeup=False
            )

    def _on_event(self, event: dict[str, Any]) -> None:
        self._heard.set()
        if event["type"].startswith("task-"):
            events = self._events.setdefault(event["uuid"], [])
            fields = sorted(set(event) - {"clock", "local_received", "pid", "timestamp", "utcoffset"})
            name = event.get("name") or (events[0][1] if events else "")
            place = 0 if event["type"] == "task-sent" else len(events)  # its caller's; the worker's may come before it
            events.insert(place, [event["type"], name, fields, event.get("result"), event.get("exception")])

    def _is_received(self) -> bool:
        self.app.control.heartbeat()
        return self._heard.wait(0.1)

    @staticmethod
    def _all_reply(replies: Any) -> bool:
        return bool(replies) and all("ok" in reply for each in replies for reply in each.values())

    @staticmethod
    def _until(condition: Callable[[], Any], what: str, missing: Callable[[], Any] = str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > give_up:
                sys.exit(f"{what} did not come {missing()}")
            time.sleep(0.01)


def described(error: BaseException) -> list[Any]:
    """Return what a caller sees of an error."""
    return [name_of(type(error)), str(error), [name_of(base) for base in type(error).__mro__[1:]]]
