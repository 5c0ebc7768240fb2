"""The log of a run, and the root of its trace, as Redis keeps them."""

from __future__ import annotations

import json
import threading
from typing import Any

from redis import Redis

from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import run_key
from cantata.ledger.runs import log_store, run_ends
from cantata.ledger.runs.log_store import Logs, RunLogs
from tests.integration.state.play import Play, work


def line(event: str, **more: Any) -> dict[str, Any]:
    return {"at": 1.0, "level": "info", "event": event, **more}


def writer(valkey: Redis) -> RunLogs:
    return RunLogs(f"unix://{valkey.connection_pool.connection_kwargs['path']}", "one")


def test_lines_come_from_many_threads_and_each_is_kept_once(ledger: Ledger, valkey: Redis) -> None:
    play, kept = Play(ledger), writer(valkey)
    play.plan(work("a"))

    def say(who: int) -> None:
        for number in range(50):
            kept.add(play.run_id, line(f"{who}-{number}"))

    threads = [threading.Thread(target=say, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.flush(10.0)

    found = Logs(valkey, play.run_id).read()
    assert sorted(each.event for each in found) == sorted(f"{who}-{number}" for who in range(4) for number in range(50))
    assert {each.worker for each in found} == {"one"}
    assert valkey.ttl(f"{run_key(None, play.run_id)}:logs") == -1


def test_lines_of_one_process_keep_their_order_though_its_clock_was_set_back(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    said = [("a", 10.0, "a1"), ("b", 9.8, "b1"), ("a", 9.7, "a2"), ("b", 9.9, "b2"), ("a", 10.1, "a3")]
    texts = [json.dumps({"worker": worker, "at": at, "level": "info", "event": event}) for worker, at, event in said]
    ledger.runs.append_log(play.run_id, texts, most=10, most_bytes=10_000)

    assert [line.event for line in Logs(valkey, play.run_id).read()] == ["b1", "b2", "a1", "a2", "a3"]


def test_a_run_that_is_gone_gets_no_lines(ledger: Ledger, valkey: Redis) -> None:
    kept = writer(valkey)
    kept.add("gone", line("late"))
    kept.flush(10.0)

    assert not valkey.exists(f"{run_key(None, 'gone')}:logs")


def test_lines_that_come_after_the_end_go_with_the_run(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger, retention_s=500)
    play.plan(work("a"))
    play.do("a")
    ledger.runs.append_log(play.run_id, [json.dumps(line("last"))], most=10, most_bytes=1000)

    assert 0 < valkey.pttl(f"{run_key(None, play.run_id)}:logs") <= 500_000


def test_the_oldest_lines_go_past_either_bound(ledger: Ledger, valkey: Redis) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    for number in range(30):
        ledger.runs.append_log(play.run_id, [json.dumps(line(f"{number:03}"))], most=10, most_bytes=100_000)
    kept = Logs(valkey, play.run_id)
    by_count, dropped = [each.event for each in kept.read()], kept.dropped()
    size = len(json.dumps(line("000")))
    ledger.runs.append_log(
        play.run_id, [json.dumps(line(f"{number:03}")) for number in range(30, 40)], most=1000, most_bytes=4 * size
    )

    assert by_count == [f"{number:03}" for number in range(20, 30)]
    assert dropped == 20
    assert [each.event for each in kept.read()] == ["036", "037", "038", "039"]
    assert kept.dropped() == 36


def test_while_redis_is_away_lines_are_lost_and_nobody_waits(ledger: Ledger, monkeypatch: Any) -> None:
    monkeypatch.setattr(log_store, "PATIENCE_S", 0.05)
    kept = RunLogs("redis://127.0.0.1:9", "one")
    for number in range(log_store.MAX_BUFFERED + 10):
        kept.add("r", line(str(number)))
    kept.flush(10.0)

    assert not kept._waiting


def test_the_root_of_a_trace_is_given_once_and_not_before_the_end(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    assert run_ends.claim(ledger, play.run_id) == {}
    play.do("a")

    kind, status, created_at, closed_at, *_ = run_ends.claim(ledger, play.run_id).values()

    assert (kind, status) == ("turn", "succeeded")
    assert int(created_at or 0) <= int(closed_at or 0)
    assert run_ends.claim(ledger, play.run_id) == {}
    assert run_ends.claim(ledger, "gone") == {}


def test_a_sweep_tells_which_runs_it_ended(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))

    assert play.come_due("deadline").ended == (play.run_id,)
    assert play.sweep().ended == ()
