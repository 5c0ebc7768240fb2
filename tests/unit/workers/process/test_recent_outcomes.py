"""Outcomes that a process recorded lately: what is kept, and what is read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cantata.ledger.run_reader import RunReader
from cantata_workers.process.recent_outcomes import MAX_CHARS, MAX_OUTPUT_CHARS, RecentOutcomes


class Reader:
    """Reads steps of a ledger, and notes which."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def outputs(self, run_id: str, step_ids: Sequence[str]) -> list[str]:
        self.read += step_ids
        return [f'"{run_id} {step_id}"' for step_id in step_ids]

    def infos(self, run_id: str, step_ids: Sequence[str]) -> list[dict[str, Any]]:
        return [{"read": step_id} for step_id in step_ids]


def recent() -> tuple[RecentOutcomes, Reader]:
    reader = Reader()
    return RecentOutcomes(cast(RunReader, reader)), reader


def test_only_what_is_not_kept_is_read_and_the_order_stays() -> None:
    outcomes, reader = recent()
    outcomes.add("run", "b", "1", {"ms": 1})

    assert outcomes.of("run", ["a", "b", "c"]) == [
        ('"run a"', {"read": "a"}),
        ("1", {"ms": 1}),
        ('"run c"', {"read": "c"}),
    ]
    assert reader.read == ["a", "c"]
    assert outcomes.of("other", ["b"]) == [('"other b"', {"read": "b"})]
    assert outcomes.of("run", []) == []


def test_a_large_output_is_not_kept_and_old_ones_make_room() -> None:
    outcomes, reader = recent()
    outcomes.add("run", "large", "x" * (MAX_OUTPUT_CHARS + 1), {})
    for number in range(MAX_CHARS // MAX_OUTPUT_CHARS + 1):
        outcomes.add("run", str(number), "x" * MAX_OUTPUT_CHARS, {})

    outcomes.of("run", ["large", "0", "1"])

    assert reader.read == ["large", "0"]
