"""What a model finds wrong, in the words of the document."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field, JsonValue, ValidationError, model_validator

from cantata.config.documents import Document, parse
from cantata.config.faults import faults_of
from cantata.values import Value


class Dish(Value):
    name: str
    kind: Literal["soup", "main", "sweet"] = "main"
    price: float = Field(default=1, gt=0, le=100)
    pieces: int = Field(default=1, ge=1)
    warm: bool = True
    parts: list[str] = Field(default=["x"], min_length=1)
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    spice_level: int | None = Field(default=None, alias="spice")
    side: Dish | None = None
    code: str = Field(default="a:b", pattern="^[a-z]:[a-z]$", description="two letters with a colon")

    @model_validator(mode="after")
    def _soup_is_warm(self) -> Dish:
        if self.kind == "soup" and not self.warm:
            raise ValueError("a soup is warm")
        return self


class Menu(Value):
    dishes: dict[str, Dish] = Field(default_factory=dict)
    days: list[Dish] = Field(default_factory=list)
    hidden: str = ""


def messages(text: str) -> list[str]:
    return told_of(parse(text))


def told_of(document: Document) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Menu.model_validate(document.data)
    return [str(fault) for fault in faults_of(caught.value, document, Menu, hidden=["hidden"])]


@pytest.mark.parametrize(
    ("dish", "fault"),
    [
        ("{name: a, kind: sup}", ".kind: expected 'soup', 'main' or 'sweet', found 'sup'; did you mean 'soup'?"),
        ("{name: a, kind: 7}", ".kind: expected 'soup', 'main' or 'sweet', found 7"),
        ("{name: a, price: cheap}", ".price: expected a number, found 'cheap'"),
        ("{name: a, price: 0}", ".price: expected more than 0, found 0"),
        ("{name: a, price: 101}", ".price: expected at most 100, found 101"),
        ("{name: a, pieces: 1.5}", ".pieces: expected a whole number, found 1.5"),
        ("{name: a, pieces: 0}", ".pieces: expected at least 1, found 0"),
        ("{name: a, pieces: null}", ".pieces: expected a whole number, found null"),
        ("{name: a, warm: tepid}", ".warm: expected true or false, found 'tepid'"),
        ("{name: a, parts: all}", ".parts: expected a list, found 'all'"),
        ("{name: a, parts: []}", ".parts: expected a list with at least 1 in it, found an empty list"),
        ("{name: a, parts: [x, 1]}", ".parts[1]: expected a text, found 1; put it in quotes"),
        ("{name: a, extra: [1]}", ".extra: expected a mapping, found a list"),
        ("{name: a, extra: true}", ".extra: expected a mapping, found true"),
        ("{name: a, code: abc}", ".code: expected two letters with a colon; found 'abc'"),
        ("{name: a, kind: soup, warm: no}", ": a soup is warm"),
        ("{name: {input}}", ".name: expected a text, found a mapping; a text with braces or with ': ' in it needs quotes"),
        ("{}", ": 'name' is missing"),
        ("7", ": expected a mapping, found 7"),
        ("{name: a, spce: 1}", ".spce: unknown key 'spce'; did you mean 'spice'?"),
        ("{name: a, side: {name: b, prise: 1}}", ".side.prise: unknown key 'prise'; did you mean 'price'?"),
        (f"{{name: a, price: {'x' * 99}}}", f".price: expected a number, found '{'x' * 59}..."),
    ],
)
def test_a_fault_says_what_was_expected_and_what_was_found(dish: str, fault: str) -> None:
    assert messages(f"dishes:\n  one: {dish}\n") == [f"line 2: dishes.one{fault}"]


def test_an_unknown_key_like_no_other_is_told_with_those_that_are_known() -> None:
    assert messages("zzz: 1") == ["line 1: zzz: unknown key 'zzz'; known are 'dishes', 'days'"]


def test_a_key_no_document_may_set_is_not_offered() -> None:
    assert "hidden" not in messages("hiden: 1")[0].partition(";")[2]


def test_a_misspelt_key_is_not_missing_too() -> None:
    assert messages("days: [{nam: a}]") == ["line 1: days[0].nam: unknown key 'nam'; did you mean 'name'?"]


def test_another_missing_key_is_told_beside_an_unknown_one() -> None:
    assert messages("days: [{zzz: a}]") == [
        "line 1: days[0]: 'name' is missing",
        "line 1: days[0].zzz: unknown key 'zzz'; "
        "known are 'name', 'kind', 'price', 'pieces', 'warm', 'parts', 'extra', 'spice', 'side', 'code'",
    ]


def test_the_known_keys_are_listed_once() -> None:
    first, second, third = messages("days: [{name: a, zzz: 1, qqq: 2, prise: 3}]")

    assert first.startswith("line 1: days[0].zzz: unknown key 'zzz'; known are 'name', 'kind', ")
    assert (second, third) == (
        "line 1: days[0].qqq: unknown key 'qqq'",
        "line 1: days[0].prise: unknown key 'prise'; did you mean 'price'?",
    )


def test_faults_come_in_the_order_of_their_lines() -> None:
    faults = messages("zzz: 1\ndays:\n- name: a\n  price: -1\n- {}\ndishes: []\n")

    assert [fault.split(":")[0] for fault in faults] == ["line 1", "line 4", "line 5", "line 6"]


def test_an_empty_document_is_told_to_be_empty() -> None:
    assert messages("# nothing") == ["line 1: it is empty"]


def test_values_of_python_that_are_no_json_are_told_by_their_type() -> None:
    assert told_of(Document({"days": [{"name": "a", "extra": {"x": b""}}]})) == [  # type: ignore[dict-item] # a caller without a type checker
        "days[0].extra.x: expected a JSON value, found a bytes"
    ]


def test_of_very_many_errors_those_at_the_beginning_are_told() -> None:
    days: list[JsonValue] = [{"name": "a", "kind": "sup"}, *[1] * 100_000]

    first, second, *_ = found = told_of(Document({"days": days}))

    assert first == "there are 100,001 faults; the first of them follow"
    assert second == "days[0].kind: expected 'soup', 'main' or 'sweet', found 'sup'; did you mean 'soup'?"
    assert len(found) < 100


def test_a_word_that_is_as_long_as_a_document_is_compared_with_nothing() -> None:
    (fault,) = told_of(Document({"x" * 5_000_000: 1}))

    assert "did you mean" not in fault
