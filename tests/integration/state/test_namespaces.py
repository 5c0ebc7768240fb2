"""Two installations in one Redis: neither sees, changes or forgets what is the other's."""

from __future__ import annotations

from typing import cast

import pytest
from redis import Redis

from orchestrator.errors import ConfigError
from orchestrator.state import cache, costs, fleet, load, rotation
from orchestrator.state.connection import connect
from orchestrator.state.costs import Measured
from orchestrator.state.ledger import Ledger
from orchestrator.state.limits import Limiter, standing
from orchestrator.state.memory import MemoryBank
from tests.integration.state.play import Play
from tests.integration.test_threads import url_of


def test_a_run_of_the_same_id_in_another_namespace_is_another_run(ledger: Ledger, valkey: Redis) -> None:
    before = set(cast("list[str]", valkey.keys("*")))
    other = Ledger(connect(url_of(valkey), namespace="second"))
    mine, theirs = Play(ledger, "same"), Play(other, "same")

    mine.ledger.cancel("same")
    other.redis.set("unrelated", 1)
    cache.remember(other.redis, "digest", "reply", ttl_s=60)
    costs.share(other.redis, {("d", "w"): Measured(1, 2.0)})
    load.swept(other.redis)
    rotation.take(other, tenant="", team="t", session="", step="s")
    MemoryBank(other).store_memory("key", 1)
    Limiter(other).pause("m", 60)

    assert (ledger.status("same"), other.status("same")) == ("cancelled", "accepted")
    assert cache.recall(valkey, "digest") is None
    assert costs.known(valkey) == {}
    assert standing(other.redis, ["m"]).models["m"].paused_s > standing(valkey, ["m"]).models["m"].paused_s == 0
    assert (fleet.workers(other.redis), load.standing(other.redis).runs_open) == ([], 1)
    assert [run.run_id for run in other.runs()] == ["same"]
    new = {key for key in cast("list[str]", valkey.keys("*")) if key not in before} - {"unrelated"}
    assert {key.partition(":")[0] for key in new} == {"cantata", "second"}
    assert theirs.run_id == mine.run_id
    valkey.delete(*new, "unrelated")


def test_what_is_no_namespace_opens_no_client(valkey: Redis) -> None:
    with pytest.raises(ConfigError, match="a namespace has"):
        connect(url_of(valkey), namespace="a:b")
