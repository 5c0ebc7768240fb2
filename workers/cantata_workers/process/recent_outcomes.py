"""Outcomes that this process recorded lately, so that the next round of a model need not read them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from cantata.ledger.run_reader import RunReader
from cantata.values import JsonValue

MAX_CHARS = 2_000_000  # of all outputs together
MAX_OUTPUT_CHARS = 32_768
MAX_OUTCOMES = 10_000

Ended = tuple[str | None, Mapping[str, JsonValue]]
"""The output of a step as JSON text, None if there is none, and its info."""


class RecentOutcomes:
    """The newest outcomes, up to a total size. Safe to use from many threads.

    They are kept only after the ledger has recorded them, and an outcome never changes.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._known: OrderedDict[tuple[str, str], tuple[str, Mapping[str, JsonValue]]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def add(self, run_id: str, step_id: str, output: str, info: Mapping[str, JsonValue]) -> None:
        """Keep a recorded outcome, unless its output is large."""
        if len(output) > MAX_OUTPUT_CHARS:
            return
        with self._lock:
            if (run_id, step_id) not in self._known:
                self._known[run_id, step_id] = output, info
                self._chars += len(output)
            while self._chars > MAX_CHARS or len(self._known) > MAX_OUTCOMES:
                _, (oldest, _) = self._known.popitem(last=False)
                self._chars -= len(oldest)

    def of(self, run_id: str, step_ids: Sequence[str]) -> list[Ended]:
        """Return the outcomes of ended steps, in order; those that are not kept are read from the ledger."""
        with self._lock:
            found: dict[str, Ended] = {
                each: self._known[run_id, each] for each in step_ids if (run_id, each) in self._known
            }
        missing = [each for each in step_ids if each not in found]
        found.update(self._read(run_id, missing) if missing else ())
        return [found[each] for each in step_ids]

    def _read(self, run_id: str, step_ids: Sequence[str]) -> Iterator[tuple[str, Ended]]:
        outputs, infos = self._reader.outputs(run_id, step_ids), self._reader.infos(run_id, step_ids)
        return zip(step_ids, zip(outputs, infos, strict=True), strict=True)
