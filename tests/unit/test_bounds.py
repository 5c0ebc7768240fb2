"""The table of bounds: what a value may be, and where it is beyond; times; the fields of models that have these bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cantata import bounds
from cantata.bounds import FIRST_INSTANT_S, LAST_INSTANT_S, MAX_DEPTH, MAX_DIGITS, MAX_DURATION_S, OutOfBoundsError
from cantata.config.documents import parse_json
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions
from cantata.flows.schedules import Schedule
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.values import BoundedJson, Duration, Instant, Value, fault_of_labels, stored
from tests.examples import examples


def nested(levels: int, value: Any = 1) -> Any:
    """A value within so many lists and objects, one within the other."""
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def place_and_fault(value: object, name: str = "input") -> str:
    found = bounds.find(value)
    return str(found.of(name)) if found else ""


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES, lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=4), inside, max_size=4)
)


@given(VALUES, st.integers(0, MAX_DEPTH))
@examples(200)
def test_json_within_the_bounds_is_taken_and_stays_the_same(value: Any, levels: int) -> None:
    whole = nested(max(0, levels - 10), value)

    assert bounds.find(whole) is None
    assert bounds.read_json(json.dumps(whole)) == whole


WRONG = [
    (nested(MAX_DEPTH + 1), "nested deeper than 64 levels"),
    (10**MAX_DIGITS, "more than 300 digits"),
    (-(10**4000), "more than 300 digits"),
    (math.nan, "nan is not JSON"),
    (-math.inf, "-inf is not JSON"),
    ("\ud800", "half a surrogate pair"),
    ({"\udc00": 1}, "a key with half a surrogate pair"),
    ({1: 2}, "the key 1 of type int; keys are texts"),
    ({2}, "a value of type set is not JSON"),
    (b"x", "a value of type bytes is not JSON"),
    (datetime(2030, 1, 1, tzinfo=UTC), "a value of type datetime.datetime is not JSON"),
]


@pytest.mark.parametrize(("wrong", "fault"), WRONG)
def test_the_place_and_the_bound_are_named(wrong: Any, fault: str) -> None:
    message = place_and_fault({"items": [1, 2, 3, {"x": wrong}]})

    assert message.startswith("input.items[3].x")
    assert fault in message


@given(
    VALUES,
    st.sampled_from([wrong for wrong, _ in WRONG]),
    st.lists(st.text(max_size=3) | st.integers(0, 3), max_size=6),
)
@examples(200)
def test_wherever_a_value_is_wrong_the_path_leads_there(value: Any, wrong: Any, path: list[str | int]) -> None:
    whole: Any = wrong
    for key in reversed(path):
        whole = {"": value, key: whole} if isinstance(key, str) else [*[value] * key, whole]

    found = bounds.find(whole)

    assert found is not None
    assert (*path, *found.path)[: len(path)] == tuple(path) == found.path[: len(path)]


def test_a_value_may_have_64_levels_and_no_more() -> None:
    assert bounds.find(nested(64)) is None
    assert place_and_fault(nested(65, "x")).endswith("...: nested deeper than 64 levels")
    assert place_and_fault({"a b": [nested(64)]}).startswith("input['a b'][0][0].x[0]")


def test_no_value_breaks_the_check() -> None:
    circle: list[Any] = []
    circle.append(circle)
    doubled: list[Any] = [1]
    for _ in range(60):  # 2**60 values as JSON
        doubled = [doubled, doubled]

    assert "nested deeper than 64 levels" in place_and_fault(nested(200_000))
    assert "nested deeper than 64 levels" in place_and_fault(circle)
    assert place_and_fault(doubled) == "input: more than 16,000,000 bytes as JSON"
    assert bounds.find([0] * 100, max_bytes=100) is not None
    assert "more than 300 digits" in place_and_fault({"n": 10**5000})
    with pytest.raises(OutOfBoundsError, match="found a value of type int"):
        bounds.duration_of(10**5000, "x")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, "9" * 100_000, "[1e999]", "NaN", '{"a":-Infinity}', ""]
)
def test_a_text_beyond_the_bounds_is_an_error_with_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        bounds.read_json(text)


@given(st.text(alphabet='[]{}":,0123456789eE.-tfnul\\ud8', max_size=400))
@examples(200)
def test_reading_a_text_gives_a_sound_value_or_a_value_error(text: str) -> None:
    try:
        value = bounds.read_json(text)
    except ValueError:
        return

    assert bounds.find(value) is None
    assert json.loads(json.dumps(value)) == value


def test_documents_take_numbers_of_as_many_digits_as_values() -> None:
    assert parse_json(f'{{"a": {"9" * 300}}}').data == {"a": int("9" * 300)}
    with pytest.raises(ConfigError, match=r"the number 99999999999999999999\.\.\. is too large"):
        parse_json(f'{{"a": {"9" * 301}}}')


# --- labels -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{"a": "\0"}, {"\0": "a"}, {"a": "\ud800"}, {1: "a"}])
def test_labels_are_texts_that_can_be_stored_and_shown(labels: Any) -> None:
    assert fault_of_labels(labels)


# --- times --------------------------------------------------------------------------------------------------------------

NO_DURATIONS = [0, -1, -0.0, math.nan, math.inf, -math.inf, True, "5", None, [], 10**400, MAX_DURATION_S * 1.001]


@pytest.mark.parametrize("given_", NO_DURATIONS)
def test_no_duration_is_refused_with_its_name(given_: Any) -> None:
    with pytest.raises(OutOfBoundsError) as caught:
        bounds.duration_of(given_, "timeout_s")

    assert "timeout_s: expected a number of seconds above 0 and up to 315,360,000 (10 years), found " in str(
        caught.value
    )


@given(st.floats() | st.integers() | st.booleans() | st.text() | st.none())
@examples(200)
def test_a_duration_is_a_float_within_the_bounds_or_an_error(given_: Any) -> None:
    try:
        assert 0 < bounds.duration_of(given_, "x") <= MAX_DURATION_S
    except OutOfBoundsError:
        assert isinstance(given_, bool | str) or given_ is None or not 0 < given_ <= MAX_DURATION_S


@given(st.floats() | st.integers())
@examples(200)
def test_an_instant_can_be_shown(seconds: float) -> None:
    try:
        bounds.check_instant(seconds, "since")
    except OutOfBoundsError:
        assert not FIRST_INSTANT_S <= seconds <= LAST_INSTANT_S
    else:
        assert 2000 <= datetime.fromtimestamp(seconds, UTC).year <= 2200


# --- fields -------------------------------------------------------------------------------------------------------------


class Sample(Value):
    wait_s: Duration = 1.0
    at: Instant | None = None
    value: BoundedJson = None


@pytest.mark.parametrize("given_", [*NO_DURATIONS[:7], "5", 10**400, 4e8])
def test_a_field_of_a_duration_takes_no_other_number(given_: Any) -> None:
    with pytest.raises(ValidationError):
        Sample(wait_s=given_)


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00+00:00", "1999-12-31T23:59:59Z", "2200-01-01", "9999-12-31T23:59:59Z", 1e300, -1e18]
)
def test_a_field_of_an_instant_takes_no_other_time(at: Any) -> None:
    with pytest.raises(ValidationError):
        Sample(at=at)


def test_what_the_version_before_stored_is_read_without_bounds() -> None:
    text = f'{{"wait_s": 1e12, "value": {json.dumps(nested(100))}}}'

    assert stored(Sample, text).wait_s == 1e12
    assert stored(Sample, json.loads(text)).value == nested(100)
    with pytest.raises(ValidationError):
        stored(Sample, '{"wait_s": 1, "new": 2}')
    assert stored(Sample, '{"wait_s": 1, "new": 2}', ignores_unknown=True).wait_s == 1
    with pytest.raises(ValidationError):
        Sample.model_validate_json(text)


def _numbers_of_seconds(schema: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The schemas of all fields that are a number of seconds, by their name."""
    if isinstance(schema, list):
        for each in schema:
            yield from _numbers_of_seconds(each, name)
    elif isinstance(schema, dict):
        if schema.get("type") == "number" and (
            name.endswith("_s") or name in ("timeout", "every", "catch_up", "jitter")
        ):
            yield name, schema
        for key, each in schema.items():
            if key in ("properties", "$defs"):
                for field, inside in each.items():
                    yield from _numbers_of_seconds(inside, field if key == "properties" else "")
            elif key in ("anyOf", "allOf", "items"):
                yield from _numbers_of_seconds(each, name)


@pytest.mark.parametrize("model", [Definitions, ChainRequest, TurnRequest, Schedule])
def test_each_number_of_seconds_has_an_upper_bound(model: type[BaseModel]) -> None:
    found = [
        (name, each)
        for name, each in _numbers_of_seconds(model.model_json_schema())
        if name not in ("every", "catch_up", "jitter")
    ]

    assert found
    assert [name for name, schema in found if "maximum" not in schema] == []
