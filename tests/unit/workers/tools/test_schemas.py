"""What a model is told of a function, and what the function gets of what the model gave."""

from __future__ import annotations

import enum
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from cantata import ToolContext, tool
from cantata.errors import StepError
from cantata.flows.definitions import Tool
from cantata.values import JsonValue
from cantata_workers.tools.schemas import bind, jsonable, schema_of, with_defaults

if TYPE_CHECKING:
    from decimal import Decimal

PLAIN = Tool(function="shop:plain")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A thing to buy."""

    name: str
    count: int = Field(1, ge=1, description="how many")


@dataclass
class Place:
    street: str
    zip: int | None = None


def buy(  # type: ignore[no-untyped-def]  # one parameter has no type, as many write it
    item: Item,
    place: Place,
    colour: Colour,
    when: date,
    context: ToolContext,
    mode: Literal["fast", "cheap"] = "cheap",
    tags: list[str] | None = None,
    note: str = None,  # type: ignore[assignment]  # noqa: RUF013  # as many write it
    price: Annotated[float, Field(gt=0, description="its own words")] = 2.5,
    limit: float = math.inf,
    model_config: object = (),
    free=None,
) -> Decimal:
    """Buys an item.

    It may take days.

    Args:
        item: What to buy.
        tags (list[str]): Words to find it
            by.
        price: Not these words.
        context: Nobody reads this.

    Returns:
        What it cost.
    """
    raise NotImplementedError


def google(left: int, right: int) -> None:
    """Adds.

    Args:
        left: One.
        right (int): The other.
    """


def numpy(left: int, right: int) -> None:
    """Adds.

    Parameters
    ----------
    left : int
        One.
    right : int, optional
        The other.

    Returns
    -------
    None
    """


def sphinx(left: int, right: int) -> None:
    """Adds.

    :param left: One.
    :param right: The other.
    :type right: int
    :returns: nothing
    """


def anything(first: int = 0, *rest: int, **given: object) -> object:
    return given


def orders(user_id: str, status: str = "open", limit: int = 10) -> str:
    return f"{user_id} {status} {limit}"


def decided(decimal: Decimal) -> None: ...


def calls(back: Callable[[], int]) -> None: ...


def by_place(first: int, /) -> None: ...


def properties(function: Callable[..., Any], settings: Tool = PLAIN) -> dict[str, Any]:
    found = schema_of(function, settings, "t").parameters["properties"]
    assert isinstance(found, dict)
    return found


def refusal(function: Callable[..., Any], arguments: dict[str, JsonValue], settings: Tool = PLAIN) -> str:
    with pytest.raises(StepError) as caught:
        bind(function, settings, arguments)
    assert caught.value.code == "bad_arguments"
    assert not caught.value.retryable
    return str(caught.value)


def test_a_function_says_what_it_takes() -> None:
    schema = schema_of(buy, PLAIN, "buy")

    assert schema.name == "buy"
    assert schema.description == "Buys an item.\n\nIt may take days."
    assert schema.parameters["required"] == ["item", "place", "colour", "when"]
    assert schema.parameters["additionalProperties"] is False
    assert schema.parameters["properties"] == {
        "item": {"$ref": "#/$defs/Item", "description": "What to buy."},
        "place": {"$ref": "#/$defs/Place"},
        "colour": {"$ref": "#/$defs/Colour"},
        "when": {"type": "string", "format": "date"},
        "mode": {"type": "string", "enum": ["fast", "cheap"], "default": "cheap"},
        "tags": {
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            "default": None,
            "description": "Words to find it\nby.",
        },
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "price": {"type": "number", "exclusiveMinimum": 0, "default": 2.5, "description": "its own words"},
        "limit": {"type": "number"},
        "model_config": {"default": []},
        "free": {"default": None},
    }
    json.dumps(schema.parameters, allow_nan=False)


@pytest.mark.parametrize("function", [google, numpy, sphinx], ids=lambda function: function.__name__)
def test_docstrings_of_three_styles_describe_parameters(function: Callable[..., Any]) -> None:
    assert schema_of(function, PLAIN, "t").description == "Adds."
    assert properties(function) == {
        "left": {"type": "integer", "description": "One."},
        "right": {"type": "integer", "description": "The other."},
    }


def test_the_configuration_s_words_win() -> None:
    told: dict[str, JsonValue] = {"type": "object", "properties": {"status": {"enum": ["open"]}}}
    configured = Tool(function="shop:orders", description="Lists orders.", parameters=told, values={"user_id": "ann"})

    schema = schema_of(orders, configured, "t")

    assert (schema.description, schema.parameters) == ("Lists orders.", told)
    assert bind(orders, configured, {"status": "open"}) == {"status": "open"}
    assert "unknown argument 'limit'" in refusal(orders, {"limit": 3}, configured), (
        "what the schema does not show cannot be given"
    )


def test_a_function_that_takes_anything_says_so() -> None:
    assert schema_of(anything, PLAIN, "t").parameters["additionalProperties"] is True
    assert properties(anything).keys() == {"first"}
    assert bind(anything, PLAIN, {"first": "1", "more": [1]}) == {"first": 1, "more": [1]}


def test_a_partial_and_a_function_without_words_are_described() -> None:
    assert properties(functools.partial(google, 1)) == {"right": {"type": "integer", "description": "The other."}}
    assert schema_of(lambda: None, PLAIN, "t").parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_hidden_parameters_are_not_in_the_schema_and_cannot_be_given() -> None:
    by_values = Tool(function="shop:orders", values={"user_id": "ann"})
    by_code = tool(hidden=("user_id",))(functools.partial(orders))

    for function, settings in ((orders, by_values), (by_code, PLAIN)):
        assert properties(function, settings).keys() == {"status", "limit"}
        assert "unknown argument 'user_id'" in refusal(function, {"user_id": "eve"}, settings)
    assert "unknown argument 'secret'" in refusal(anything, {"secret": 1}, Tool(function="a:b", hidden=["secret"]))


def test_arguments_become_what_the_function_declares() -> None:
    item: JsonValue = {"name": "tea", "count": "2"}
    given: dict[str, JsonValue] = {
        "item": item,
        "place": {"street": "High"},
        "colour": "red",
        "when": "2026-01-02",
        "note": 12,
    }

    assert bind(buy, PLAIN, {**given, "price": "3.5"}) == {
        "item": Item(name="tea", count=2),
        "place": Place("High"),
        "colour": Colour.RED,
        "when": date(2026, 1, 2),
        "note": "12",
        "price": 3.5,
    }


@pytest.mark.parametrize(
    ("arguments", "message_part"),
    [
        (
            {"limit": "three"},
            "'limit': input should be a valid integer, unable to parse string as an integer, found 'three'",
        ),
        ({"user_id": "a", "stauts": 1}, "unknown argument 'stauts'; did you mean 'status'?"),
        ({}, "'user_id' is missing"),
        ({"user_id": {"a": 1}}, "'user_id': input should be a valid string, found a mapping"),
    ],
)
def test_an_invalid_argument_is_reported_with_the_schema(arguments: dict[str, JsonValue], message_part: str) -> None:
    message = refusal(orders, arguments)

    assert message_part in message
    assert json.loads(message.partition("\nThe arguments are ")[2]) == schema_of(orders, PLAIN, "t").parameters


def test_a_nested_argument_is_reported_by_its_path() -> None:
    message = refusal(
        buy,
        {"item": {"name": "tea", "count": 0}, "place": 1, "colour": "pink", "when": "x", "mode": "slow", "price": -1},
    )

    assert "'item.count': input should be greater than or equal to 1, found 0" in message
    assert "; and 1 more\n" in message


@pytest.mark.parametrize(
    ("function", "message_part"),
    [
        (
            decided,
            "decided has no tool schema: the type Decimal of 'decimal' cannot be evaluated on the worker (name 'Decimal' is",
        ),
        (calls, "'back' is of type Callable[[], int], which has no JSON schema; hide the parameter"),
        (by_place, "'first' of by_place is positional-only"),
    ],
)
def test_a_type_without_schema_is_reported_by_its_parameter(function: Callable[..., Any], message_part: str) -> None:
    with pytest.raises(StepError) as caught:
        schema_of(function, PLAIN, "t")

    assert caught.value.code == "tool_schema"
    assert message_part in str(caught.value)


def test_results_become_json_where_they_can() -> None:
    odd = [object()]

    assert jsonable(
        {"item": Item(name="tea"), "at": datetime(2026, 1, 2, tzinfo=UTC), 3: (Colour.RED, Place("High"))}  # type: ignore[dict-item]
    ) == {
        "item": {"name": "tea", "count": 1},
        "at": "2026-01-02T00:00:00Z",
        "3": ["red", {"street": "High", "zip": None}],
    }
    assert jsonable(odd) is odd  # type: ignore[arg-type]  # its place is told later


def test_a_null_of_an_expression_leaves_the_argument_to_the_default_of_its_parameter() -> None:
    def book(item: str, carrier: str = "dpd", note: str | None = None, **more: object) -> None: ...

    nothing: dict[str, JsonValue] = {"item": None, "carrier": None, "note": None, "other": None}

    assert with_defaults(book, nothing, nothing.keys()) == {"item": None, "other": None}
    assert with_defaults(book, nothing, ["note"]) == {"item": None, "carrier": None, "other": None}, (
        "those that are written stay"
    )
    assert with_defaults(book, {"item": "tea", "carrier": "ups"}, ["item", "carrier"]) == {
        "item": "tea",
        "carrier": "ups",
    }
