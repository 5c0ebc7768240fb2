"""Commands to the memory bank: which lines are some, what they say, and how they are answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.turns.memory_commands import (
    GetCommand,
    ListCommand,
    MalformedCommand,
    MemoryCommand,
    StoreCommand,
    error_reply,
    get_reply,
    list_reply,
    parse,
    store_reply,
)


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("MEMORY STORE k=v", StoreCommand("k", "v")),
        ("memory store k=v", StoreCommand("k", "v")),
        ("Memory Store  a  key =  a   value ", StoreCommand("a key", "a value")),
        ("MEMORY STORE a=b=c", StoreCommand("a", "b=c")),
        ("MEMORY STORE k=", StoreCommand("k", "")),
        ("MEMORY\tSTORE\tk=v\r", StoreCommand("k", "v")),
        ("MEMORY GET k", GetCommand("k")),
        ("memory get a  b", GetCommand("a b")),
        ("MEMORY LIST x", ListCommand()),
        ("MEMORY LIST", ListCommand()),
        ("memory list", ListCommand()),
        ("please MEMORY GET a", "please MEMORY GET a"),
        ("MEMOR GET a", "MEMOR GET a"),
        ("", ""),
    ],
)
def test_a_line_is_a_command_a_malformed_one_or_passes(line: str, parsed: str | MemoryCommand) -> None:
    assert parse(line) == [parsed]


@pytest.mark.parametrize("line", ["MEMORY STORE k", "MEMORY GET", "memory ", "MEMORYSTORE k=v"])
def test_a_command_that_lacks_a_part_is_malformed(line: str) -> None:
    assert isinstance(parse(line)[0], MalformedCommand)


def test_the_text_is_trimmed_and_an_indented_line_further_down_passes() -> None:
    assert parse("\n  MEMORY GET a\n  MEMORY GET b\n\nhello  \n") == [GetCommand("a"), "  MEMORY GET b", "", "hello"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (store_reply("k"), "Stored 'k' in memory"),
        (store_reply("it's"), "Stored 'it's' in memory"),
        (get_reply("k", "v"), "k = v"),
        (get_reply("k", None), "k = Not found"),
        (list_reply(["a", "b"]), "Memory keys: a, b"),
        (list_reply([]), "Memory keys: none"),
        (error_reply("why"), "Memory error: why"),
    ],
)
def test_the_answers_are_those_of_promptchain(answer: str, text: str) -> None:
    assert answer == text


@given(st.text())
def test_no_line_vanishes_and_what_is_no_command_is_unchanged(text: str) -> None:
    lines = text.strip().split("\n")

    parsed = parse(text)

    assert len(parsed) == len(lines)
    assert [line for line in lines if not line.upper().startswith("MEMORY")] == [
        each for each in parsed if isinstance(each, str)
    ]


WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Z", "Cc", "Cf"], exclude_characters="="), min_size=1),
    min_size=1,
)


@given(key=WORDS, value=WORDS, case=st.sampled_from([str.upper, str.lower, str.title]))
def test_what_is_stored_is_what_was_written_with_single_spaces(
    key: list[str], value: list[str], case: type[str]
) -> None:
    keys, values = " ".join(" ".join(key).split()), " ".join(" ".join(value).split())

    assert parse(f"{case('memory store')}   {'  '.join(key)} = {'   '.join(value)}") == [StoreCommand(keys, values)]
    assert parse(f"{case('memory get')} {'  '.join(key)}") == [GetCommand(keys)]
