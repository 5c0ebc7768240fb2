"""Messages about an unavailable Redis, and how often they are logged."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ClusterDownError, OutOfMemoryError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from cantata.ledger.redis import outages
from cantata.ledger.redis.redis_errors import is_transient, reason


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self.lines.append({"event": event, **fields})


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said before."""
    monkeypatch.setattr(outages, "_warned_at", {})
    monkeypatch.setattr(outages, "_outage", outages._Outage())
    monkeypatch.setattr(outages, "_is_child", False)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, which a test sets."""
    now = [100.0]
    monkeypatch.setattr("cantata.ledger.redis.outages.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """The lines of the caller that looks regularly."""
    log = Lines()
    monkeypatch.setattr(outages, "log", log)
    return log


REFUSED = RedisConnectionError("refused")


def test_an_outage_is_said_at_once_then_once_a_minute_and_its_end_once(now: list[float], said: Lines) -> None:
    for _ in range(150):
        outages.failed(REFUSED, "redis://h:1")
        now[0] += 1.0
    for _ in range(3):
        outages.answered(now[0])

    assert [(line["event"], line["seconds"]) for line in said.lines] == [
        ("redis_unavailable", 0.0),
        ("redis_unavailable", 60.0),
        ("redis_unavailable", 120.0),
        ("redis_back", 150.0),
    ]
    assert said.lines[-1]["note"] == "Redis is back after 150 s"
    assert "Redis at redis://h:1 cannot be reached" in said.lines[0]["error"]


def test_a_redis_that_refuses_some_writes_is_back_when_it_takes_all_for_a_while(now: list[float], said: Lines) -> None:
    for _ in range(30):  # it is nearly full: now and then a small write fits
        outages.failed(OutOfMemoryError("command not allowed when used memory > 'maxmemory'."))
        now[0] += 1.0
        outages.answered(now[0])
        now[0] += 1.0
    for _ in range(12):
        outages.answered(now[0])
        now[0] += 1.0

    assert [line["event"] for line in said.lines] == ["redis_unavailable", "redis_back"]


def test_an_outage_that_only_others_met_has_an_end_and_what_fails_late_begins_no_other(
    now: list[float], said: Lines
) -> None:
    log = Lines()
    outages.answered(now[0])
    asked_at = now[0]
    now[0] += 1.0
    outages.warn(log, "lease_renewal_failed", REFUSED)
    outages.answered(asked_at)
    assert said.lines == [], "this call began before the outage"
    now[0] += 0.5
    outages.answered(now[0])
    now[0] += 20.0
    outages.warn(log, "outcome_delayed", REFUSED, run="r")
    outages.answered(now[0])

    assert [line["event"] for line in log.lines] == ["lease_renewal_failed", "outcome_delayed"]
    assert [(line["event"], line["seconds"]) for line in said.lines] == [("redis_back", 0.5)]


def test_a_fork_leaves_outages_to_its_parent_but_for_what_concerns_a_run(said: Lines) -> None:
    log = Lines()
    outages.mark_as_child()
    outages.warn(log, "lease_renewal_failed", REFUSED)
    outages.warn(log, "outcome_delayed", REFUSED, run="r")

    assert [line["event"] for line in log.lines] == ["outcome_delayed"]


def test_the_same_is_said_once_a_minute_and_anything_else_at_once(now: list[float]) -> None:
    log = Lines()
    for _ in range(50):
        outages.warn(log, "lease_renewal_failed", AuthenticationError("invalid username-password pair"), worker="w")
        now[0] += 2.0
    outages.warn(log, "lease_renewal_failed", RedisConnectionError("refused"), worker="w")
    outages.warn(log, "sweep_failed", AuthenticationError("invalid username-password pair"))

    assert [line["event"] for line in log.lines] == [
        "lease_renewal_failed",
        "lease_renewal_failed",
        "lease_renewal_failed",
        "sweep_failed",
    ]
    assert log.lines[0]["error"] == "Redis refuses the user or the password; set them in REDIS_URL"


def test_errors_without_end_are_not_kept_without_end() -> None:
    log = Lines()
    for number in range(500):
        outages.warn(log, "lease_renewal_failed", RedisConnectionError(f"refused {number}"))

    assert len(outages._warned_at) <= outages.MAX_REMEMBERED


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ResponseError("MISCONF Redis is configured to save RDB snapshots"),
            "Redis cannot write to its disk and refuses writes; free the disk",
        ),
        (
            ResponseError("NOREPLICAS Not enough good replicas to write."),
            "fewer replicas than its min-replicas-to-write asks for",
        ),
        (
            ClusterDownError("The cluster is down"),
            "Redis is a cluster in which nodes are missing (The cluster is down); start them",
        ),
        (
            RedisConnectionError("Error 111 connecting to h:1. Connection refused."),
            "cannot be reached (Error 111 connecting to h:1. Connection refused)",
        ),
    ],
)
def test_each_failure_that_may_pass_has_a_sentence(error: Any, said: str) -> None:
    assert said in reason(error)
    assert is_transient(error)


@pytest.mark.parametrize(
    "said",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.",
        "Command # 2 (EVALSHA 0) of pipeline caused error: OOM command not allowed when used memory > 'maxmemory'.",
    ],
)
def test_a_full_redis_is_known_wherever_it_says_so(said: str) -> None:
    assert "Redis is full (maxmemory)" in reason(ResponseError(said))


@pytest.mark.parametrize(
    "said", ["Error 111 connecting to OOM.example:1. Connection refused.", "no key ROOM or OOM is there", "OOMPH"]
)
def test_a_name_with_the_letters_of_a_code_is_none(said: str) -> None:
    assert "cannot be reached" in reason(RedisConnectionError(said))


def test_an_error_behind_an_error_is_the_reason_and_a_circle_of_them_ends() -> None:
    first, second = RedisConnectionError("Error 1 connecting"), ssl.SSLError(1, "WRONG_VERSION_NUMBER")
    first.__cause__, second.__cause__ = second, first

    assert "does not answer in TLS" in reason(first, "rediss://h/0")
