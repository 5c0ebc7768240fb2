"""Large values are cut, and it is known that they were."""

from __future__ import annotations

from cantata.client.graphs.truncate import Truncation
from cantata.values import JsonValue


def test_what_is_small_stays_as_it_is() -> None:
    truncation = Truncation(max_chars=20)

    values: list[JsonValue] = ["text", 5, None, True, {"a": [1]}]
    assert [truncation.value(each) for each in values] == values
    assert not truncation.was_cut


def test_of_what_is_large_the_beginning_is_left_as_text() -> None:
    truncation = Truncation(max_chars=10)

    assert truncation.value("x" * 11) == "x" * 10
    assert truncation.value({"name": "value"}) == '{"name": "'
    assert truncation.was_cut
