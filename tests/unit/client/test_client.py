"""The ids of runs: what an idempotency key gives, in a session and outside. And signals that are refused at once."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from cantata.client.runs import Run
from cantata.engine.engine import Engine, run_id_of
from cantata.errors import ConfigError
from cantata.ledger import conversations
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import shard_of


def settings_of(name: str, *, tenant: str = "") -> RunSession:
    return RunSession(conversations.scoped(tenant, name), keep_s=60, max_entries=10, max_waiting=10)


def test_each_key_of_a_session_has_a_run_of_its_own_in_its_shard() -> None:
    where = settings_of("chat")

    ids = [run_id_of(f"{number}", where) for number in range(1000)]

    assert Counter(ids).most_common(1)[0][1] == 1
    assert {shard_of(run_id) for run_id in ids} == {conversations.shard_of_session(where.name)}


def test_the_same_key_is_another_one_in_another_session() -> None:
    sessions = [None, *(settings_of(f"chat {number}") for number in range(300)), settings_of("chat 1", tenant="acme")]

    assert len({run_id_of("1", where) for where in sessions}) == len(sessions)


def test_the_same_key_gives_the_same_run() -> None:
    assert run_id_of("key", settings_of("chat")) == run_id_of("key", settings_of("chat"))
    assert run_id_of("key", None) == run_id_of("key")


def test_without_a_key_each_run_is_another() -> None:
    assert len({run_id_of(None, where) for where in (None, settings_of("chat")) for _ in range(100)}) == 200


@pytest.mark.parametrize("value", [float("nan"), {1}, "\ud800"])
def test_a_signal_whose_value_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="the value for step 'ask': "):
        Run(cast(Engine, None), "run").signal("ask", value)
