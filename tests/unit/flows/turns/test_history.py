"""What of a conversation is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.definitions import History
from cantata.flows.turns import history
from cantata.flows.wire import HistoryEntry

ROLES = ("user", "assistant", "system_error")


def entry(role: str, content: str, agent: str | None = None) -> HistoryEntry:
    return HistoryEntry.model_validate({"role": role, "content": content, "agent": agent, "ts": 0.0})


SAID = [
    entry("user", "one"),
    entry("assistant", "two", "ann"),
    entry("system_error", "three"),
    entry("user", "four"),
    entry("assistant", "five", "bob"),
]


def shown(of_team: int = 1000, **settings: Any) -> list[str]:
    found = history.select_entries(reversed(SAID), History.model_validate(settings), max_tokens=of_team)
    return [each.content for each in found]


def test_what_the_user_and_agents_said_is_shown_oldest_first() -> None:
    assert shown() == ["one", "two", "four", "five"]


@pytest.mark.parametrize(
    ("settings", "contents"),
    [
        ({"max_entries": 2}, ["four", "five"]),
        ({"include_types": ["user"]}, ["one", "four"]),
        ({"include_types": ["system_error"]}, ["three"]),
        ({"exclude_sources": ["bob"]}, ["one", "two", "four"]),
        ({"max_tokens": 8}, ["four", "five"]),
        ({"max_tokens": 8, "truncation_strategy": "keep_last"}, ["five"]),
        ({"max_tokens": 1000, "truncation_strategy": "keep_last"}, ["one", "two", "four", "five"]),
        ({"max_tokens": 1}, []),
    ],
)
def test_settings_say_what_is_shown(settings: dict[str, Any], contents: list[str]) -> None:
    assert shown(**settings) == contents


def test_without_tokens_of_its_own_the_bound_of_the_team_counts() -> None:
    assert shown(of_team=8) == ["four", "five"]


def test_lines_of_a_prompt() -> None:
    assert history.as_lines(SAID[:2], is_any=True) == "User: one\nAssistant: two"
    assert history.as_lines([], is_any=False) == "No previous conversation history."
    assert history.as_lines([], is_any=True) == "No recent relevant history (token limit reached)."


def test_a_text_with_what_was_said_before_it() -> None:
    assert history.with_history(SAID[:1], "now") == "Conversation History:\nUser: one\n\nCurrent Input:\nnow"
    assert history.with_history([], "now") == "now"


def messages(*entries: HistoryEntry) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in history.as_messages(entries, "now")]


def test_messages_take_turns() -> None:
    none = ("assistant", "(No answer was given.)")
    assert messages() == [("user", "now")]
    assert messages(entry("user", "a"), entry("assistant", "b")) == [("user", "a"), ("assistant", "b"), ("user", "now")]
    assert messages(entry("user", "a"), entry("assistant", "b"), entry("assistant", "c"))[1:] == [
        ("assistant", "b\n\nc"),
        ("user", "now"),
    ]
    assert messages(entry("user", "a"), entry("user", "b")) == [
        ("user", "a"),
        none,
        ("user", "b"),
        none,
        ("user", "now"),
    ]


def test_the_user_begins_though_the_question_does_not_fit() -> None:
    cut = ("user", "(What was said before is not shown.)")
    assert messages(entry("assistant", "b")) == [cut, ("assistant", "b"), ("user", "now")]
    assert messages(entry("assistant", "b"), entry("assistant", "c")) == [cut, ("assistant", "b\n\nc"), ("user", "now")]
    assert messages(entry("system_error", "e"), entry("assistant", "b"))[:3] == [
        ("system", "e"),
        cut,
        ("assistant", "b"),
    ]


@given(
    st.lists(st.tuples(st.sampled_from(ROLES), st.text(max_size=50)), max_size=30),
    st.integers(1, 200),
    st.integers(1, 40),
)
def test_what_is_shown_is_the_newest_and_fits(said: list[tuple[str, str]], max_tokens: int, max_entries: int) -> None:
    entries = [entry(role, content) for role, content in said]
    found = history.select_entries(reversed(entries), History(max_entries=max_entries), max_tokens=max_tokens)
    wanted = [each for each in entries if each.role != "system_error"]
    assert found == wanted[len(wanted) - len(found) :]
    assert len(found) <= max_entries
    assert sum(history.estimate_tokens(f"{each.role}: {each.content}") for each in found) <= max_tokens
