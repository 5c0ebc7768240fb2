"""What a model finds wrong, in the words of the document."""

from __future__ import annotations

import pytest
from pydantic import JsonValue, ValidationError

from cantata.config.documents import Document, parse
from cantata.config.faults import faults_of
from tests.unit.config.sample_form import Menu


def messages(text: str) -> list[str]:
    return told_of(parse(text))


def told_of(document: Document) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Menu.model_validate(document.data)
    return [str(fault) for fault in faults_of(caught.value, document, Menu, hidden=["hidden"])]


def test_a_key_no_document_may_set_is_not_offered() -> None:
    assert "hidden" not in messages("hiden: 1")[0].partition(";")[2]


def test_faults_come_in_the_order_of_their_lines() -> None:
    faults = messages("zzz: 1\ndays:\n- name: a\n  price: -1\n- {}\ndishes: []\n")

    assert [fault.split(":")[0] for fault in faults] == ["line 1", "line 4", "line 5", "line 6"]


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
