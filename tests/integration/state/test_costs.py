"""Costs of work, shared by the fleet."""

from __future__ import annotations

import pytest
from redis import Redis

from cantata.engine.limits import step_costs
from cantata.engine.limits.step_costs import Measured
from cantata.ledger.redis.keys import key_of

ONE, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def _empty(valkey: Redis) -> None:
    valkey.flushdb()


def test_configurations_with_a_tool_of_the_same_name_do_not_share_its_cost(valkey: Redis) -> None:
    step_costs.share(valkey, {(ONE, "tools:x"): Measured(3, 1.0), (OTHER, "tools:x"): Measured(3, 10_000.0)})

    assert step_costs.known(valkey) == {ONE[:16]: {"tools:x": 1.0}, OTHER[:16]: {"tools:x": 10_000.0}}


def test_one_process_does_not_overwrite_what_many_measured(valkey: Redis) -> None:
    step_costs.share(valkey, {(ONE, "tools:x"): Measured(50, 100.0)})
    step_costs.share(valkey, {(ONE, "tools:x"): Measured(1, 0.0)})
    assert step_costs.known(valkey)[ONE[:16]]["tools:x"] == pytest.approx(80.0)

    step_costs.share(valkey, {(ONE, "tools:x"): Measured(50, 0.0)})
    assert step_costs.known(valkey)[ONE[:16]]["tools:x"] == pytest.approx(0.0, abs=0.01), "many new ones count for more"


def test_the_hash_is_bounded_and_expires(valkey: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_costs, "MAX_FIELDS", 10)

    for number in range(25):
        step_costs.share(valkey, {(f"{number:064}"[::-1], "tools:x"): Measured(3, 1.0)})

    assert valkey.hlen(key_of(None, step_costs.COSTS_KEY)) <= 11
    assert 0 < valkey.ttl(key_of(None, step_costs.COSTS_KEY)) <= step_costs.KEEP_S
