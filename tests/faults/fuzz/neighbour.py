"""A second tenant beside one that sends hostile input: its answers stay right, it sees nothing of the first, and it waits no longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx

from tests.faults.past import Violation

PATIENCE_S = 60.0
PAUSE_S = 0.05  # between two requests, so that it is a tenant of moderate use
SLOWER, SLOWER_S = 3.0, 0.1
"""By how much its median may grow under hostile input: a hostile request may be larger and make more runs than a harmless one, on a machine
that does little else; what a tenant can block, it blocked for ten times as long and more. The seconds are what such a machine stalls."""
MIN_ROUNDS = 10  # of each sort: the median of fewer says more about the machine
BLOCKED_S = 15.0  # longer no round takes, plus the longest under harmless input: a pattern or script that blocks all is seen here
CHAIN = {
    "nodes": [{"node_id": "n", "kind": "tool", "name": "add", "input": {"a": 1}, "input_map": {"b": "input.b"}}],
    "entry_node": "n",
}


class Neighbour:
    """A tenant that sends plain requests, one after the other, and looks at each answer."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)
        self._runs: set[str] = set()
        self.violations: list[Violation] = []

    @contextmanager
    def beside(self, took_s: list[float]) -> Iterator[None]:
        """Send until the block is over; the list gets the seconds of each round of requests."""
        is_over = threading.Event()

        def send() -> None:
            while True:
                since = time.monotonic()
                self._ask(len(self._runs))
                took_s.append(time.monotonic() - since)
                if is_over.wait(PAUSE_S):
                    return

        with ThreadPoolExecutor(1, "neighbour") as threads:
            sending = threads.submit(send)
            try:
                yield
            finally:
                is_over.set()
            sending.result()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def _ask(self, number: int) -> None:
        """Have a chain run, read it and list all runs of the tenant."""
        given = {**CHAIN, "initial_input": {"b": number}}
        chain = self._answer("POST", f"/chains?wait={PATIENCE_S / 2:g}", given)
        run_id, result = str(chain.get("run_id")), chain.get("result") or {}
        self._runs.add(run_id)
        self._hold(result.get("final_output") == number + 1, f"{number + 1} as the output of its run", chain)
        found = self._answer("GET", f"/runs/{run_id}")
        self._hold(found.get("status") == "succeeded", "its run to have succeeded", found)
        listed = self._answer("GET", "/runs")
        runs = {str(run["run_id"]) for run in listed.get("runs", ())}
        self._hold(
            run_id in runs and runs <= self._runs, "a list of its own runs", sorted(runs - self._runs)[:5] or listed
        )

    def _answer(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body).json()
        except (httpx.HTTPError, ValueError) as error:
            answer = f"{type(error).__name__}: {error}"
        return answer if isinstance(answer, dict) else {"answer": answer}

    def _hold(self, is_right: bool, expected: str, found: object) -> None:
        if not is_right:
            self.violations.append(Violation("", "", f"for a second tenant {expected}", str(found)[:500]))


def compare(harmless_s: Sequence[float], hostile_s: Sequence[float]) -> tuple[str, list[Violation]]:
    """What the second tenant's rounds took beside harmless and hostile input, told in a line; and what is wrong with that."""
    before, after, longest = median(harmless_s), median(hostile_s), max(hostile_s)
    most, blocked = before * SLOWER + SLOWER_S, max(harmless_s) + BLOCKED_S
    violations = []
    if after > most and min(len(harmless_s), len(hostile_s)) >= MIN_ROUNDS:
        expected = (
            f"a median of at most {most:.3f} s for a second tenant, which is {before:.3f} s beside harmless input"
        )
        violations.append(Violation("", "", expected, f"{after:.3f} s"))
    if longest > blocked:
        violations.append(
            Violation("", "", f"no answers to a second tenant that take more than {blocked:.1f} s", f"{longest:.1f} s")
        )
    medians, most_s = (
        f"median {before * 1000:.0f} → {after * 1000:.0f} ms",
        f"longest {max(harmless_s):.2f} → {longest:.2f} s",
    )
    return f"a second tenant: {medians}, {most_s}, {len(harmless_s)} → {len(hostile_s)} rounds", violations
