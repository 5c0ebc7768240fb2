"""Handlers of the API of the run pages: lists, graphs, steps, events and tasks; cancel, retry, fork and signal."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tornado.iostream import StreamClosedError

from cantata.bounds import FIRST_INSTANT_S, LAST_INSTANT_S
from cantata.client.records import MAX_DAYS, labels_of
from cantata.config.documents import parse_json
from cantata.surfaces.flower.page_handlers import ApiHandler
from cantata.surfaces.flower.task_links import tasks_of
from cantata.surfaces.http import server_sent_events
from cantata.surfaces.http.rejections import RequestRejected, check_signal
from cantata.values import JsonValue

MAX_LISTED, DEFAULT_LISTED = 200, 50
DEFAULT_DAYS = 14  # as with the gateway
MAX_KEY_CHARS = 200  # as with the gateway
SIGNAL_BYTES = 16_000_000  # as large as a request to a worker may be by default (limits.input_bytes)


class RunListHandler(ApiHandler):
    """GET runs."""

    async def get(self) -> None:
        limit = self._number("most", DEFAULT_LISTED, MAX_LISTED)
        statuses, before = self.get_query_arguments("status"), self._one("before")
        found = self.service.call(
            self.service.runs.list, statuses=statuses, before=before, limit=limit, **self._filter()
        )
        self.answer((await found).model_dump_json())

    def _filter(self) -> dict[str, Any]:
        return {
            "kind": self._one("kind"),
            "text": self._one("q") or "",
            "since": self._instant("since"),
            "until": self._instant("until"),
        }

    def _instant(self, name: str) -> int | None:
        """Return a time in seconds since 1970, if one is given."""
        return self._number(name, 0, int(LAST_INSTANT_S), minimum=int(FIRST_INSTANT_S)) if self._one(name) else None

    def _one(self, name: str) -> str | None:
        found = self.get_query_arguments(name, strip=False)
        return found[-1] if found and found[-1] else None

    def _number(self, name: str, default: int, maximum: int, *, minimum: int = 1) -> int:
        text = self._one(name) or str(default)
        if not (text.isascii() and text.isdecimal() and len(text) <= 12 and minimum <= int(text) <= maximum):
            raise RequestRejected(
                422, f"{name} must be a whole number from {minimum} to {maximum}, not {text[:40]!r}", code="bad_request"
            )
        return int(text)


class CountsHandler(RunListHandler):
    """GET runs/counts."""

    async def get(self) -> None:
        self.answer((await self.service.call(self.service.runs.counts, **self._filter())).model_dump_json())


class CostsHandler(RunListHandler):
    """GET costs."""

    async def get(self) -> None:
        days = self._number("days", DEFAULT_DAYS, MAX_DAYS)
        found = await self.service.call(self.service.runs.costs, days)
        self.answer({"costs": [each.model_dump(mode="json") for each in found]})


class InboxHandler(RunListHandler):
    """GET inbox."""

    async def get(self) -> None:
        limit = self._number("most", DEFAULT_LISTED, MAX_LISTED)
        labels, who, after = labels_of(self.get_query_arguments("label")), self._one("who") or "", self._one("after")
        page = await self.service.call(self.service.runs.inbox, labels=labels, who=who, after=after, limit=limit)
        self.answer(page.model_dump_json())


class InboxItemHandler(ApiHandler):
    """GET inbox/RUN/STEP."""

    async def get(self, run_id: str, step: str) -> None:
        item = await self.service.call(self.service.runs.inbox_item, f"{run_id}/{step}")
        self.answer(item.model_dump_json())


class GraphHandler(ApiHandler):
    """GET runs/ID/graph."""

    async def get(self, run_id: str) -> None:
        opened = self.get_query_arguments("open", strip=False)
        self.answer(
            await self.service.call(lambda: self.service.pages.graph(None, run_id, opened=opened).model_dump_json())
        )


class StepHandler(ApiHandler):
    """GET runs/ID/steps/STEP."""

    async def get(self, run_id: str, step_id: str) -> None:
        self.answer(await self.service.call(lambda: self.service.pages.step(None, run_id, step_id).model_dump_json()))


class CompareHandler(ApiHandler):
    """GET runs/ID/compare/OTHER."""

    async def get(self, run_id: str, other: str) -> None:
        self.answer(await self.service.call(lambda: self.service.pages.compare(None, run_id, other).model_dump_json()))


class TaskListHandler(ApiHandler):
    """GET runs/ID/tasks."""

    async def get(self, run_id: str) -> None:
        known = self.application.events.state.tasks  # type: ignore[attr-defined]  # the application is Flower
        tasks = list(getattr(known, "data", known).values())  # copied here: events change it in this thread
        self.answer({"tasks": await self.service.call(tasks_of, run_id, tasks)})


class RefusalsHandler(ApiHandler):
    """GET runs/ID/refusals: none, since users of Flower may do everything in it."""

    async def get(self, run_id: str) -> None:
        self.answer(dict.fromkeys(("cancel", "retry", "fork", "signal"), ""))


class EventsHandler(ApiHandler):
    """GET runs/ID/events."""

    _sending: asyncio.Task[None] | None = None

    async def get(self, run_id: str) -> None:
        after = server_sent_events.offset_of(
            self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "0")
        )
        if not await self.service.call(self.service.runs.has_events, run_id, after):
            self.set_status(204)  # the browser does not reconnect: the run is closed, and it has all events
            return
        with self.service.stream():
            self.set_header("Content-Type", server_sent_events.MEDIA_TYPE)
            for name, value in server_sent_events.HEADERS.items():
                self.set_header(name, value)
            self._sending = asyncio.create_task(self._send(run_id, after))
            with suppress(asyncio.CancelledError, StreamClosedError):
                await self._sending

    def on_connection_close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self, run_id: str, after: int) -> None:
        async for text in server_sent_events.lines(self.service.streams.runs, run_id, after):
            self.write(text)
            await self.flush()  # until the socket took it: events are not read ahead of a slow client


class CancelHandler(ApiHandler):
    """POST runs/ID/cancel."""

    async def post(self, run_id: str) -> None:
        self.answer({"run_id": run_id, "status": await self.service.call(self.service.runs.cancel, run_id)})


class BodyHandler(ApiHandler):
    """Base of the handlers that read a JSON object."""

    def _body(self, *names: str) -> dict[str, JsonValue]:
        if len(self.request.body) > SIGNAL_BYTES:
            raise RequestRejected(413, f"the body is larger than {SIGNAL_BYTES / 1e6:.0f} MB")
        try:
            found = parse_json(self.request.body.decode("utf-8"), source="body").data
        except UnicodeDecodeError as error:
            raise RequestRejected(400, f"the body is not valid UTF-8: byte {error.start}") from error
        if not isinstance(found, dict) or found.keys() != set(names):
            wanted = ", ".join(f'"{name}": ...' for name in names)
            raise RequestRejected(422, f"the body must be a JSON object: {{{wanted}}}", code="bad_request")
        return found


class RetryHandler(BodyHandler):
    """POST runs/ID/retry."""

    async def post(self, run_id: str) -> None:
        key = self._key()
        created = await self.service.call(self.service.runs.rerun, run_id, key=key and f"flower\nretry\n{key}")
        self.answer({"run_id": created.run_id}, 202)

    def _key(self) -> str | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
            message = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters, not {len(key)}"
            raise RequestRejected(422, message, code="bad_request")
        return key


class ForkHandler(RetryHandler):
    """POST runs/ID/fork."""

    async def post(self, run_id: str) -> None:
        body, key = self._body("from_step", "changes"), self._key()
        from_step, changes = body["from_step"], body["changes"]
        if not isinstance(from_step, str) or not isinstance(changes, dict):
            raise RequestRejected(422, "`from_step` must be a text, and `changes` an object", code="bad_request")
        created = await self.service.call(
            lambda: self.service.runs.rerun(run_id, from_step, changes=changes, key=key and f"flower\nfork\n{key}")
        )
        self.answer({"run_id": created.run_id}, 202)


class SignalHandler(BodyHandler):
    """POST runs/ID/signals/STEP."""

    async def post(self, run_id: str, step: str) -> None:
        user = (
            self.current_user if isinstance(self.current_user, str) else ""
        )  # Flower's attribute: true, or the name of an account
        answer = await self.service.call(
            lambda: self.service.runs.signal(run_id, step, self._body("value")["value"], by=user)
        )
        check_signal(answer)
        self.answer({"run_id": run_id, "step": step, "signal": answer.outcome})
