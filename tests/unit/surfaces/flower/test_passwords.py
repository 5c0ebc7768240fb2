"""The throttle of wrong passwords of Flower."""

from __future__ import annotations

from base64 import b64encode

import pytest

from cantata.surfaces.flower.passwords import PasswordThrottle
from cantata.surfaces.http.failed_logins import OVERALL, PER_ADDRESS, FailedLogins


def basic(text: str) -> str:
    return f"Basic {b64encode(text.encode()).decode()}"


@pytest.fixture
def throttle() -> PasswordThrottle:
    return PasswordThrottle(["anna:right", "ötto:auch"], FailedLogins(clock=lambda: 1000.0))


def test_after_some_wrong_passwords_none_of_that_name_and_address_is_tried(throttle: PasswordThrottle) -> None:
    waits = [throttle.wait_s("10.0.0.1", basic(f"anna:{number}")) for number in range(PER_ADDRESS + 1)]

    assert waits[:-1] == [0.0] * PER_ADDRESS, "Flower refuses these itself"
    assert waits[-1] > 0
    assert throttle.wait_s("10.0.0.1", basic("anna:right")) > 0, "else guessing would go on at full speed"
    assert throttle.wait_s("10.0.0.2", basic("anna:right")) == 0.0
    assert throttle.wait_s("10.0.0.1", basic("ötto:auch")) == 0.0


def test_who_is_signed_in_stays_so_whatever_others_of_the_address_try(throttle: PasswordThrottle) -> None:
    assert throttle.wait_s("10.0.0.1", basic("anna:right")) == 0.0
    for number in range(OVERALL * 2):
        throttle.wait_s("10.0.0.1", basic(f"{'anna' if number % 2 else number}:wrong"))

    assert throttle.wait_s("10.0.0.1", basic("anna:right")) == 0.0
    assert throttle.wait_s("10.0.0.1", basic("ötto:auch")) == 0.0, "a right one of a name that was not attacked, too"
    assert throttle.wait_s("10.0.0.9", basic("new:wrong")) > 0, "all addresses together are bounded"


@pytest.mark.parametrize("header", ["", "Basic", "Basic ***", "Bearer abc", "Basic \xff"])
def test_what_is_no_password_is_left_to_flower(throttle: PasswordThrottle, header: str) -> None:
    assert [throttle.wait_s("10.0.0.1", header) for _ in range(100)] == [0.0] * 100
