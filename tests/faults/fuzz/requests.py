"""Sends what nobody should over HTTP and WebSockets. Nothing is answered with a fault of the gateway, and each accepted run ends."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from cantata.flows.wire import RUN_OVER
from cantata.values import JsonValue
from tests.faults.fuzz.mutations import text_of, value_of
from tests.faults.past import Violation
from tests.media_types import json_lines  # noqa: F401  # registers it

PATIENCE_S = 60.0
RUN_S = 20.0  # the time-out of each chain that is sent
CHATS = 8  # connections at once
CHAIN: dict[str, JsonValue] = {
    "nodes": [
        {
            "node_id": "n0",
            "kind": "tool",
            "name": "add",
            "input": {"a": 1},
            "input_map": {"b": "input.b"},
            "next_node": "n1",
        },
        {
            "node_id": "n1",
            "kind": "branch",
            "condition": "n0 > `2`",
            "true_node": "n2",
            "false_node": "n0",
            "max_iterations": 3,
        },
        {
            "node_id": "n2",
            "kind": "map",
            "items_path": "input.items",
            "map_node": "n3",
            "next_node": "n4",
            "on_error": "skip",
        },
        {"node_id": "n3", "kind": "tool", "name": "add", "input": {"b": 1}, "input_map": {"a": "item.n OR index"}},
        {
            "node_id": "n4",
            "kind": "agent",
            "name": "echo",
            "input_map": {"text": "to_string(n2)"},
            "retry": 1,
            "timeout": 5,
        },
    ],
    "entry_node": "n0",
    "initial_input": {"b": 2, "items": [{"n": 1}, {"n": 2}, {}]},
}
SAYINGS: tuple[JsonValue, ...] = (
    {"text": "hello", "id": "1"},
    {"text": "@echo: hello", "send_history": True},
    {"text": "sum 1 2", "team": "deployment", "timeout_s": 5},
    {"resume": {"r" * 20: 0}},
)


class Requests:
    """Sends, and remembers what was wrong and which runs are to end."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self.sent = 0
        self.violations: list[Violation] = []
        self.runs: set[str] = set()
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=self._headers, timeout=PATIENCE_S)
        self._http = httpx.Client(
            base_url=url, headers={"Content-Type": "application/json", **self._headers}, timeout=PATIENCE_S
        )
        self._operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]

    def by_schema(self, number: int, *, count: int = 5) -> None:
        """Ask one operation as the document allows, and as it does not."""
        operation = self._operations[number % len(self._operations)]
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            with suppress(Unsatisfiable):  # where nothing can be given, nothing wrong can
                self._ask(operation, mode, number, count)

    def _ask(self, operation: Any, mode: GenerationMode, number: int, count: int) -> None:
        @seed(number)
        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            try:
                self._answered(
                    f"{operation.method} {case.formatted_path}",
                    case.body,
                    case.call(headers=self._headers, timeout=PATIENCE_S),
                )
            except OSError as error:  # requests cannot send everything
                if "timed out" in str(error):
                    self._wrong(f"{operation.method} {operation.path}", case.body, str(error))

        ask()

    def chain(self, chance: random.Random) -> None:
        """Have a changed chain run; half of them are no more than changed text."""
        changed = value_of(CHAIN, chance)
        if isinstance(changed, dict):
            changed = {**changed, "timeout": RUN_S}
        body = json.dumps(changed) if chance.random() < 0.8 else text_of(json.dumps(CHAIN), chance)
        self._answered("POST /chains", body, self._http.post("/chains", content=body.encode("utf-8", "replace")))

    def plain_chain(self) -> None:
        """Have a chain run that nothing is wrong with, and wait for it: most hostile ones are refused, so that few runs are under way."""
        body = json.dumps({**CHAIN, "timeout": RUN_S})
        self._answered("POST /chains", CHAIN, self._http.post("/chains", params={"wait": RUN_S}, content=body))

    def plain_list(self) -> None:
        """List the runs."""
        self._answered("GET /runs", "", self._http.get("/runs"))

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def is_over(self, run_id: str) -> bool:
        """Whether a run has ended."""
        return self._http.get(f"/runs/{run_id}").json()["status"] in RUN_OVER

    async def chats(self, chance: random.Random, *, are_odd: bool = True) -> None:
        """Have some clients say odd things at once, some of whom leave without a word; or plain ones, to the end."""
        await asyncio.gather(*(self._chat(random.Random(chance.random()), are_odd) for _ in range(CHATS)))

    async def _chat(self, chance: random.Random, is_odd: bool) -> None:
        address = f"{self.url.replace('http', 'ws')}/ws/fuzz-{chance.randrange(20)}"
        try:
            async with asyncio.timeout(PATIENCE_S), connect(address, additional_headers=self._headers) as socket:
                for _ in range(chance.randrange(1, 8)):
                    await socket.send(_said(chance) if is_odd else json.dumps(SAYINGS[0]))
                    self.sent += 1
                    frame = json.loads(await socket.recv()) if chance.random() < 0.8 else {}
                    if (frame.get("error") or {}).get("code") == "internal":
                        self._wrong("WebSocket", frame, "an internal error")
                if is_odd and chance.random() < 0.3:
                    socket.transport.abort()
        except (WebSocketException, OSError) as error:
            if isinstance(error, TimeoutError) or "1011" in str(error):
                self._wrong("WebSocket", address, f"{type(error).__name__}: {error}")

    def _answered(self, what: str, body: object, response: Any) -> None:
        self.sent += 1
        if response.status_code >= 500:
            self._wrong(what, body, f"{response.status_code} {response.text[:500]}")
        with suppress(ValueError, AttributeError, KeyError, TypeError):
            if response.status_code in (200, 201, 202):
                self.runs.add(response.json()["run_id"])

    def _wrong(self, what: str, body: object, found: str) -> None:
        self.violations.append(
            Violation("", "", f"an answer to {what} with {str(body)[:2000]!r} that is no fault of the gateway", found)
        )


def _said(chance: random.Random) -> str | bytes:
    saying = value_of(chance.choice(SAYINGS), chance)
    text = json.dumps(saying) if chance.random() < 0.6 else text_of(json.dumps(saying), chance)
    raw = text.encode("utf-8", "replace")
    return raw if chance.random() < 0.1 else raw.decode()
