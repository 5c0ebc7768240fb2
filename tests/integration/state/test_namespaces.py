"""Two installations in one Redis: neither sees, changes or forgets what is the other's."""

from __future__ import annotations

from typing import cast

import pytest
from redis import Redis

from cantata.engine.fleet import load, registry
from cantata.engine.limits import step_costs
from cantata.engine.limits.limiter import Limiter, paused_models
from cantata.engine.limits.step_costs import Measured
from cantata.errors import ConfigError
from cantata.features.memory import cache
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.sessions import rotation
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from tests.integration.state.play import Play
from tests.integration.test_threads import url_of


def test_a_run_of_the_same_id_in_another_namespace_is_another_run(ledger: Ledger, valkey: Redis) -> None:
    before = set(cast("list[str]", valkey.keys("*")))
    other = Ledger(connect(url_of(valkey), namespace="second"))
    mine, theirs = Play(ledger, "same"), Play(other, "same")

    mine.ledger.runs.cancel("same")
    other.redis.set("unrelated", 1)
    cache.remember(other.redis, "acme", "digest", "reply", ttl_s=60)
    step_costs.share(other.redis, {("d", "w"): Measured(1, 2.0)})
    load.record_sweep(other.redis)
    rotation.take(other, tenant="", team="t", session="", step="s")
    MemoryStore(other).store_memory("key", 1)
    Limiter(other).pause("m", 60)

    assert (ledger.runs.status("same"), other.runs.status("same")) == ("cancelled", "accepted")
    assert cache.recall(valkey, "acme", "digest") is None
    assert step_costs.known(valkey) == {}
    assert [paused.model for paused in paused_models(other.redis)] == ["m"]
    assert paused_models(valkey) == []
    assert (registry.workers(other.redis), load.measure(other.redis).runs_open) == ([], 1)
    assert [run.run_id for run in other.reader.newest()] == ["same"]
    new = {key for key in cast("list[str]", valkey.keys("*")) if key not in before} - {"unrelated"}
    assert {key.partition(":")[0] for key in new} == {"cantata", "second"}
    assert theirs.run_id == mine.run_id
    valkey.delete(*new, "unrelated")


def test_what_is_no_namespace_opens_no_client(valkey: Redis) -> None:
    with pytest.raises(ConfigError, match="a namespace has"):
        connect(url_of(valkey), namespace="a:b")
