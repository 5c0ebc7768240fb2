"""The throttle of failed logins: by address and overall, with a bounded memory."""

from __future__ import annotations

import pytest

from cantata.surfaces.http import failed_logins
from cantata.surfaces.http.failed_logins import OVERALL, PER_ADDRESS, PER_ADDRESS_S, FailedLogins


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failed(clock: Clock) -> FailedLogins:
    return FailedLogins(clock=clock)


def test_an_address_is_told_to_wait_after_its_failures_and_others_are_not(failed: FailedLogins, clock: Clock) -> None:
    assert [failed.record("10.0.0.1") for _ in range(PER_ADDRESS)] == [0.0] * PER_ADDRESS
    assert failed.record("10.0.0.1") == failed.record("10.0.0.1") == pytest.approx(PER_ADDRESS_S), (
        "further ones do not prolong it"
    )
    assert failed.record("10.0.0.2") == 0.0

    clock.now += PER_ADDRESS_S
    assert failed.wait_s("10.0.0.1") == 0.0
    assert failed.record("10.0.0.1") == 0.0
    assert failed.record("10.0.0.1") > 0


def test_many_addresses_together_are_bounded(failed: FailedLogins) -> None:
    waits = [failed.record(f"10.0.{number // 250}.{number % 250}") for number in range(OVERALL + 50)]

    assert waits[:OVERALL] == [0.0] * OVERALL
    assert all(waits[OVERALL:])


def test_a_client_with_many_addresses_of_ipv6_counts_as_one(failed: FailedLogins) -> None:
    waits = [failed.record(f"2001:db8::{number:x}") for number in range(PER_ADDRESS + 1)]

    assert waits[-1] > 0
    assert failed.record("2001:db8:0:1::1") == 0.0
    assert len(failed) == 2
    failed.record("::ffff:10.0.0.9")
    failed.record("10.0.0.9")
    assert len(failed) == 3


def test_the_memory_is_bounded_whatever_addresses_come(
    failed: FailedLogins, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_logins, "MAX_ADDRESSES", 50)
    for number in range(1000):
        clock.now += 0.2
        failed.record(f"10.{number // 250}.{number % 250}.1" if number % 2 else "x" * 10_000 + str(number))
        assert len(failed) <= 50

    clock.now += 1000
    failed.record("10.0.0.1")
    assert len(failed) == 1, "those whose failures are forgotten are not kept"
