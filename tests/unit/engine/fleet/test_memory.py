"""The forecast of when Redis is full."""

from __future__ import annotations

import pytest

from cantata.engine.fleet.memory import FAR_S, full_in_s, used_and_limit

HOUR = [(60.0 * minute, 1_000_000.0 + 1000.0 * minute) for minute in range(60)]
"""It grows by 1,000 bytes a minute."""


def test_it_is_full_when_the_growth_of_the_last_hour_fills_what_is_left() -> None:
    assert full_in_s(HOUR, used=1_059_000, limit=1_119_000) == pytest.approx(3600)
    assert full_in_s(list(reversed(HOUR)), used=1_059_000, limit=1_119_000) == pytest.approx(3600)
    assert full_in_s(HOUR, used=2_000_000, limit=1_119_000) == 0.0


@pytest.mark.parametrize(
    ("samples", "limit"),
    [
        (HOUR, 0),
        ([], 2_000_000),
        (HOUR[:5], 2_000_000),
        ([(at, -used) for at, used in HOUR], 2_000_000),
        ([(at, 5.0) for at, _ in HOUR], 2_000_000),
        (HOUR, 1_059_000 + 1000 * FAR_S),
    ],
    ids=["no maxmemory", "no sample", "too few", "it shrinks", "it stays", "too far"],
)
def test_otherwise_nothing_is_said(samples: list[tuple[float, float]], limit: float) -> None:
    assert full_in_s(samples, used=1_059_000, limit=limit) is None


def test_nodes_of_which_one_has_no_limit_have_none_together() -> None:
    assert used_and_limit([{"used_memory": "1", "maxmemory": "5"}, {"used_memory": 2, "maxmemory": 5}]) == (3, 10)
    assert used_and_limit([{"used_memory": 1, "maxmemory": 5}, {"used_memory": 2}]) == (3, 0)
