"""What an agent's answer says of the turn, and whom a chat line is for."""

from __future__ import annotations

import pytest

from cantata.flows.turns.mentions import Mention, mention_of, prefix_of
from cantata.values import JsonValue


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("[REROUTE] x", ("reroute", "x")),
        ("\n [REROUTE]x \n", ("reroute", "x")),
        ("[REROUTE]", ("reroute", "")),
        ("[FINAL]  x y ", ("final", "x y")),
        ("[FINAL] [REROUTE] x", ("final", "[REROUTE] x")),
        (" x ", ("", " x ")),
        ("x [FINAL] y", ("", "x [FINAL] y")),
        ("[reroute] x", ("", "[reroute] x")),
        ({"a": "[FINAL] x"}, ("", {"a": "[FINAL] x"})),
        (None, ("", None)),
    ],
)
def test_a_prefix_counts_at_the_very_start(answer: JsonValue, read: tuple[str, JsonValue]) -> None:
    assert prefix_of(answer) == read


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("@ann: add it", Mention("ann", "add it", False)),
        ("  @ann:add it", Mention("ann", "add it", False)),
        ("@history @ann: add it", Mention("ann", "add it", True)),
        ("@math_agent-2.b: two\nlines", Mention("math_agent-2.b", "two\nlines", False)),
        ("@ann:", Mention("ann", "", False)),
        ("ask @ann: this", None),
        ("@ann add it", None),
        ("@history: what was it", Mention("history", "what was it", False)),
        ("mail me @ home", None),
        ("", None),
    ],
)
def test_a_line_may_be_for_one_agent(line: str, read: Mention | None) -> None:
    assert mention_of(line) == read
