"""Formats for people: times, tokens, money, and text without terminal control sequences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from cantata.values import Usage

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and the like: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Return a text without escape sequences and control characters, except line ends and tabs."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))


def state_label(state: str) -> str:
    """Return the state of a run or a step as people read it: 'timed out', 'succeeded with failures'."""
    return state.replace("_", " ")


def line(text: str, max_chars: int = 100) -> str:
    """Return a clean text in one line of at most `max_chars` characters."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= max_chars else f"{flat[: max_chars - 1]}…"


def duration(ms: float) -> str:
    """Return milliseconds in a suitable unit."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(int(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 entry`, `2 entries`; without `many`, the plural ends in -s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def speaker(role: str, agent: str | None) -> str:
    """Return the author of an entry of a conversation."""
    return {"user": "you", "system_error": "error"}.get(role) or line(agent or "answer")


def clock(at_ms: int) -> str:
    """Return the local time of day."""
    return moment(at_ms / 1000, "%H:%M:%S")


def moment(seconds: float, form: str = "%m-%d %H:%M:%S") -> str:
    """Return a local time, given in seconds since 1970; one that no calendar has as this number."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s"


def utc(seconds: float) -> str:
    """Return a time of day in UTC, given in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def utc_minute(seconds: float) -> str:
    """Return a day and time in UTC, given in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def tokens(tokens_in: int, tokens_out: int) -> str:
    """Return the tokens in and out; an empty text if there were none."""
    return f"{tokens_in:,}→{tokens_out:,} tokens" if tokens_in or tokens_out else ""


def cost(usd: float | None) -> str:
    """Return an amount in dollars; an empty text if it is not known."""
    if usd is None:
        return ""
    return f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.6f}".rstrip("0")


def usage(used: Usage) -> str:
    """Return the tokens and the cost of a run."""
    return " · ".join(part for part in (tokens(used.input_tokens, used.output_tokens), cost(used.cost_usd)) if part)
