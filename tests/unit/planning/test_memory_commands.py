"""Commands to the memory bank: which lines are some, what they say, and how they are answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.planning.turns.memory_commands import Command, Get, List, Malformed, Store, failed, got, listed, parse, stored

NO_VERB = "there is no verb; use STORE, GET or LIST"


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("MEMORY STORE k=v", Store("k", "v")),
        ("memory store k=v", Store("k", "v")),
        ("Memory Store  a  key =  a   value ", Store("a key", "a value")),
        ("MEMORY STORE a=b=c", Store("a", "b=c")),
        ("MEMORY STORE k=", Store("k", "")),
        ("MEMORY\tSTORE\tk=v\r", Store("k", "v")),
        ("MEMORY GET k", Get("k")),
        ("memory get a  b", Get("a b")),
        ("MEMORY LIST x", List()),
        ("MEMORY LIST", List()),
        ("memory list", List()),
        ("MEMORY STORE k", Malformed("STORE needs key=value, not 'k'")),
        ("MEMORY STORE", Malformed("STORE needs key=value")),
        ("MEMORY STORE = v", Malformed("STORE needs a key before the '=' of '= v'")),
        ("MEMORY GET", Malformed("GET needs a key: MEMORY GET key")),
        ("MEMORY FLY x", Malformed("there is no verb 'FLY'; use STORE, GET or LIST")),
        ("MEMORY", Malformed(NO_VERB)),
        ("memory ", Malformed(NO_VERB)),
        ("MEMORYSTORE k=v", Malformed("'MEMORYSTORE' is no command; write MEMORY and a space before the verb")),
        ("please MEMORY GET a", "please MEMORY GET a"),
        ("MEMOR GET a", "MEMOR GET a"),
        ("", ""),
    ],
)
def test_a_line_is_a_command_a_malformed_one_or_passes(line: str, parsed: str | Command) -> None:
    assert parse(line) == [parsed]


def test_the_text_is_trimmed_and_an_indented_line_further_down_passes() -> None:
    assert parse("\n  MEMORY GET a\n  MEMORY GET b\n\nhello  \n") == [Get("a"), "  MEMORY GET b", "", "hello"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (stored("k"), "Stored 'k' in memory"),
        (stored("it's"), "Stored 'it's' in memory"),
        (got("k", "v"), "k = v"),
        (got("k", None), "k = Not found"),
        (listed(["a", "b"]), "Memory keys: a, b"),
        (listed([]), "Memory keys: none"),
        (failed("why"), "Memory error: why"),
    ],
)
def test_the_answers_are_those_of_promptchain(answer: str, text: str) -> None:
    assert answer == text


@given(st.text())
def test_no_line_vanishes_and_what_is_no_command_is_unchanged(text: str) -> None:
    lines = text.strip().split("\n")

    parsed = parse(text)

    assert len(parsed) == len(lines)
    assert [line for line in lines if not line.upper().startswith("MEMORY")] == [each for each in parsed if isinstance(each, str)]


WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Z", "Cc", "Cf"], exclude_characters="="), min_size=1), min_size=1
)


@given(key=WORDS, value=WORDS, case=st.sampled_from([str.upper, str.lower, str.title]))
def test_what_is_stored_is_what_was_written_with_single_spaces(key: list[str], value: list[str], case: type[str]) -> None:
    keys, values = " ".join(" ".join(key).split()), " ".join(" ".join(value).split())

    assert parse(f"{case('memory store')}   {'  '.join(key)} = {'   '.join(value)}") == [Store(keys, values)]
    assert parse(f"{case('memory get')} {'  '.join(key)}") == [Get(keys)]
