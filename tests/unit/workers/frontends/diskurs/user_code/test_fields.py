"""Prompt arguments and long-term memories as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.errors import StepError
from cantata_workers.frontends.diskurs.user_code import fields
from cantata_workers.frontends.diskurs.user_code.entities import (
    InputField,
    LockedField,
    LongtermMemory,
    OutputField,
    PerTurnField,
    PromptArgument,
)


@dataclass
class Plain(PromptArgument):
    topic: str = "networks"
    answer: str = ""
    count: int = 0


@dataclass
class Marked(PromptArgument):
    topic: InputField[str] = ""
    mode: LockedField[str] = ""
    note: str = ""
    answer: OutputField[str] = ""
    mood: PerTurnField[str] = ""


@dataclass
class Given(PromptArgument):
    topic: InputField[str] = ""
    note: str = ""


@dataclass
class Needy(PromptArgument):
    topic: str
    links: list[Plain]
    best: Plain | None
    words: dict[str, int] = field(default_factory=dict)


@dataclass
class Memory(LongtermMemory):
    topic: str
    answer: str = ""


def test_who_fills_a_field_is_known_by_its_mark() -> None:
    assert fields.accesses(Marked) == {
        "topic": "input",
        "mode": "locked",
        "note": "plain",
        "answer": "output",
        "mood": "per_turn",
    }
    assert fields.filled_by_replies(Marked) == ["note", "answer", "mood"]


def test_all_is_handed_over_unless_outputs_are_marked() -> None:
    assert fields.handed_over(Plain) == ["topic", "answer", "count"]
    assert fields.handed_over(Marked) == ["answer"]
    assert fields.handed_over(Given) == ["note"]
    assert fields.handed_over(Plain, ["topic"]) == ["answer", "count"]


def test_memory_fills_all_unless_inputs_are_marked() -> None:
    assert fields.taken_from_memory(Plain) == ["topic", "answer", "count"]
    assert fields.taken_from_memory(Marked) == ["topic"]


def test_empty_values_never_overwrite_but_false_zero_and_no_items_do() -> None:
    known: dict[str, Any] = {"a": "x", "b": "x", "c": True, "d": 3, "e": [1], "f": "x"}
    given: dict[str, Any] = {"a": None, "b": "", "c": False, "d": 0, "e": [], "f": "y", "g": "new"}
    assert fields.merge(known, given) == {"a": "x", "b": "x", "c": False, "d": 0, "e": [], "f": "y"}
    assert fields.merge(known, given, ["c"]) == {**known, "c": False}


@given(
    st.dictionaries(st.sampled_from("abc"), st.none() | st.text() | st.integers()),
    st.dictionaries(st.sampled_from("abc"), st.text()),
)
def test_merging_twice_is_merging_once(given: dict[str, Any], known: dict[str, Any]) -> None:
    once = fields.merge(known, given)
    assert fields.merge(once, given) == once
    assert once.keys() == known.keys()


def test_fields_without_a_default_begin_empty() -> None:
    assert fields.blank(Needy) == {"topic": "", "links": [], "best": None, "words": {}}
    assert fields.blank(Memory) == {"topic": "", "answer": "", "user_query": ""}


def test_what_becomes_json_comes_back() -> None:
    it = Needy("t", [Plain("a")], Plain("b"), {"x": 1})
    again = fields.from_json(Needy, fields.to_json(it))
    assert again == it
    assert isinstance(again.links[0], Plain)
    assert it.to_dict() == fields.to_json(it)
    assert Needy.from_dict(it.to_dict()) == it


def test_what_a_class_does_not_know_is_left_out() -> None:
    assert fields.from_json(Plain, {"topic": "x", "colour": "red"}) == Plain("x")


@dataclass
class Branch(PromptArgument):
    twigs: list[Tree]


@dataclass
class Tree(PromptArgument):
    name: str = ""
    branch: Branch | None = None


def test_a_class_that_contains_itself_is_told() -> None:
    fields.check_nesting(Needy)
    with pytest.raises(StepError, match=r"Branch\.twigs makes Tree contain itself"):
        fields.check_nesting(Tree)


def test_a_class_that_is_no_dataclass_is_told() -> None:
    class Odd:
        pass

    with pytest.raises(StepError, match="Odd is not a dataclass; write @dataclass above it"):
        fields.hints(Odd)
