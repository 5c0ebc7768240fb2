"""What the run pages ask for: lists, graphs, steps, events, tasks; and what they do: cancel, retry, signal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tornado.iostream import StreamClosedError

from cantata.config.documents import parse_json
from cantata.dashboard.flower.http_errors import Refused, body_of
from cantata.dashboard.flower.page_handlers import Api
from cantata.dashboard.flower.task_links import tasks_of
from cantata.dashboard.pages import server_sent_events
from cantata.models.values import JsonValue
from cantata.models.wire import RUN_OVER
from cantata.state.runs import event_log

MOST_LISTED, USUAL = 200, 50
LONGEST_KEY = 200  # characters, as with the gateway
SIGNAL_BYTES = 16_000_000  # as large as a request to a worker may be by default (limits.input_bytes)


class List(Api):
    """GET runs."""

    async def get(self) -> None:
        most = self._number("most", USUAL, MOST_LISTED)
        found = self.desk.call(
            self.desk.pages.list, None, statuses=self.get_query_arguments("status"), kind=self._one("kind"),
            text=self._one("q") or "", before=self._one("before"), most=most,
        )  # fmt: skip
        self.answer((await found).model_dump_json())

    def _one(self, name: str) -> str | None:
        found = self.get_query_arguments(name, strip=False)
        return found[-1] if found and found[-1] else None

    def _number(self, name: str, usual: int, most: int) -> int:
        text = self._one(name) or str(usual)
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
            raise Refused(422, f"{name}: a whole number from 1 to {most}, not {text[:40]!r}", code="bad_request")
        return int(text)


class Graph(Api):
    """GET runs/ID/graph."""

    async def get(self, run_id: str) -> None:
        opened = self.get_query_arguments("open", strip=False)
        self.answer(await self.desk.call(self._graph, run_id, opened))

    def _graph(self, run_id: str, opened: Sequence[str]) -> str:
        return self.desk.pages.graph(None, run_id, opened=opened).model_dump_json()


class Step(Api):
    """GET runs/ID/steps/STEP."""

    async def get(self, run_id: str, step_id: str) -> None:
        self.answer(await self.desk.call(self._step, run_id, step_id))

    def _step(self, run_id: str, step_id: str) -> str:
        return self.desk.pages.step(None, run_id, step_id).model_dump_json()


class Tasks(Api):
    """GET runs/ID/tasks."""

    async def get(self, run_id: str) -> None:
        known = self.application.events.state.tasks  # type: ignore[attr-defined]  # the application is Flower
        tasks = list(getattr(known, "data", known).values())  # copied here: events change it in this thread
        self.answer({"tasks": await self.desk.call(tasks_of, run_id, tasks)})


class Refusals(Api):
    """GET runs/ID/refusals. Whoever may open Flower may do everything in it."""

    async def get(self, run_id: str) -> None:
        self.answer(dict.fromkeys(("cancel", "retry", "fork", "signal"), ""))


class Events(Api):
    """GET runs/ID/events."""

    _sending: asyncio.Task[None] | None = None

    async def get(self, run_id: str) -> None:
        after = _offset(self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "0"))
        if not await self.desk.call(self._has_more, run_id, after):
            self.set_status(204)  # it is over, and all is told: do not come again
            return
        self.set_header("Content-Type", server_sent_events.MEDIA_TYPE)
        for name, value in server_sent_events.HEADERS.items():
            self.set_header(name, value)
        self._sending = asyncio.create_task(self._send(run_id, after))
        with suppress(asyncio.CancelledError, StreamClosedError):
            await self._sending

    def on_connection_close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def _has_more(self, run_id: str, after: int) -> bool:
        self.desk.pages.check(None, run_id)
        if not after or self.desk.client.run(run_id).status() not in RUN_OVER:
            return True
        return bool(event_log.read(self.desk.client.redis, run_id, after=after, most=1))

    async def _send(self, run_id: str, after: int) -> None:
        async for text in server_sent_events.lines(self.desk.streams, run_id, after, body_of=body_of):
            self.write(text)
            await self.flush()  # until the socket took it: who is slow is not read for


class Cancel(Api):
    """POST runs/ID/cancel."""

    async def post(self, run_id: str) -> None:
        self.answer({"run_id": run_id, "status": await self.desk.call(self.desk.pages.cancel, None, run_id)})


class Retry(Api):
    """POST runs/ID/retry."""

    async def post(self, run_id: str) -> None:
        key = self._key()
        self.answer({"run_id": await self.desk.call(self.desk.pages.retry, None, run_id, key=key and f"flower\nretry\n{key}")}, 202)

    def _key(self) -> str | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not 1 <= len(key) <= LONGEST_KEY:
            raise Refused(422, f"Idempotency-Key has 1 to {LONGEST_KEY} characters, not {len(key)}", code="bad_request")
        return key


class Signal(Api):
    """POST runs/ID/signals/STEP."""

    async def post(self, run_id: str, step: str) -> None:
        word = await self.desk.call(self._give, run_id, step)
        if word == "unknown":
            raise Refused(404, f"no step {step!r} of run {run_id!r} waits for a signal; its page shows those that do")
        if word == "unclear":
            raise Refused(409, f"step {step!r} may be any of several of run {run_id!r}; name it by its whole id", code=word)
        if word == "full":
            message = f"run {run_id!r} keeps as many signals for steps that do not wait yet as it may; send it when {step!r} waits"
            raise Refused(429, message, code="quota_exceeded")
        if word not in ("taken", "kept"):
            raise Refused(409, f"step {step!r} has had its value" if word == "over" else f"run {run_id!r} is over", code=word)
        self.answer({"run_id": run_id, "step": step, "signal": word})

    def _give(self, run_id: str, step: str) -> str:
        return self.desk.pages.signal(None, run_id, step, self._value())

    def _value(self) -> JsonValue:
        if len(self.request.body) > SIGNAL_BYTES:
            raise Refused(413, f"the body is larger than {SIGNAL_BYTES / 1e6:.0f} MB")
        try:
            found = parse_json(self.request.body.decode("utf-8"), source="body").data
        except UnicodeDecodeError as error:
            raise Refused(400, f"the body is no text in UTF-8: byte {error.start} is wrong") from error
        if not isinstance(found, dict) or found.keys() != {"value"}:
            raise Refused(422, 'the body is a JSON object: {"value": ...}', code="bad_request")
        return found["value"]


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise Refused(422, f"an offset is that of an event, a whole number, not {text[:40]!r}", code="bad_request")
    return int(text)
