"""Formats for people: texts, times, money."""

from __future__ import annotations

import pytest

from cantata.text import text_format
from cantata.values import Usage


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;never ended", "52;c;never ended"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPq\x1b\\sixel", "sixel"),
        ("a\r\nb\rc\x08\x00", "a\nbc"),
        ("[bold]kept[/bold] ü 漢 🎻", "[bold]kept[/bold] ü 漢 🎻"),
    ],
)
def test_what_could_harm_a_terminal_is_taken_out(text: str, cleaned: str) -> None:
    assert text_format.clean(text) == cleaned


@pytest.mark.parametrize(
    ("ms", "message"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1200, "1.2 s"),
        (59_900, "59.9 s"),
        (63_000, "1 min 03 s"),
        (7_260_000, "2 h 01 min"),
    ],
)
def test_times_have_the_unit_that_fits(ms: float, message: str) -> None:
    assert text_format.duration(ms) == message


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        (Usage(), ""),
        (Usage(input_tokens=1200, output_tokens=3), "1,200→3 tokens"),
        (Usage(input_tokens=1, cost_usd=0.0005), "1→0 tokens · $0.0005"),
        (Usage(input_tokens=1, cost_usd=2.5), "1→0 tokens · $2.50"),
    ],
)
def test_an_unknown_price_is_left_out(usage: Usage, message: str) -> None:
    assert text_format.usage(usage) == message


def test_a_long_text_becomes_one_short_line() -> None:
    assert text_format.line("a\nb  " + "c" * 200, 10) == "a b cccccc…"[:9] + "…"


def test_a_number_comes_with_its_noun() -> None:
    assert [text_format.counted(number, "node") for number in (0, 1, 2, 1200)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
        "1,200 nodes",
    ]
    assert text_format.counted(2, "entry", "entries") == "2 entries"
