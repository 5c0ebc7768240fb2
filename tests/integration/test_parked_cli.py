"""`submit parked` and `submit status`: an operator sees what the sweep cannot handle, and decides."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from cantata.ledger.ledger import Ledger
from cantata.surfaces.cli.main import submit
from tests.integration.state.play import Play, work


@pytest.fixture
def play(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Play:
    """A run whose lost step cannot be recovered, which is parked."""
    monkeypatch.setenv("REDIS_URL", f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}")
    monkeypatch.setenv("COLUMNS", "200")
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    ledger.redis.hset(f"{play.shard}:run:run:info", "a", "no JSON")
    for _ in range(3):
        play.lose_lease(begun)
    return play


def run(*words: str) -> Result:
    return CliRunner().invoke(submit, [*words])


def only_id() -> str:
    (item,) = json.loads(run("parked", "list", "--json").stdout)
    return str(item["id"])


def test_what_is_parked_is_shown_with_its_error_and_the_commands(play: Play) -> None:
    item_id, listed, status = only_id(), run("parked", "list").stdout, run("status").stdout

    assert listed.splitlines()[1].startswith(item_id)
    assert "run|1|worker" in listed
    assert "Expected value but found invalid token at character 1" in listed
    assert "leases: a lost lease: its step is not recovered" in listed
    assert "submit parked retry ID" in listed
    (line,) = (line for line in status.splitlines() if line.startswith("degraded  parked"))
    assert f"1 that the sweep cannot handle: {item_id} (leases run|1|worker" in line
    assert f"`submit parked retry {item_id}`, or `submit parked drop {item_id}`" in status
    play.ledger.runs.cancel("run")


def test_an_item_is_tried_again_once_its_cause_is_gone(play: Play) -> None:
    play.ledger.redis.hdel(f"{play.shard}:run:run:info", "a")

    done = run("parked", "retry", only_id(), "--as", "ann")

    assert done.exit_code == 0
    assert "is tried again: leases run|1|worker" in done.stdout
    assert [step.step_id for _, step in play.sweep().sends] == ["a"]
    assert run("parked", "list").stderr == "nothing is parked\n"
    assert play.events("a")[-2:] == ["unparked", "lost"]


def test_an_item_is_dropped_and_another_id_refused(play: Play) -> None:
    item_id = only_id()

    dropped, again = run("parked", "drop", item_id, "--json"), run("parked", "retry", item_id)

    assert [item["id"] for item in json.loads(dropped.stdout)] == [item_id]
    assert again.exit_code == 2
    assert f"no parked item has the id {item_id!r}; `submit parked list` lists them" in again.stderr
    assert play.sweep().sends == ()
    play.ledger.runs.cancel("run")
