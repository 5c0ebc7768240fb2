"""How values read to people: times, tokens, money, and text that cannot harm a terminal."""

from __future__ import annotations

import re
from datetime import datetime

from cantata.models.values import Usage

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and their kin: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text without escape sequences and control characters, save line ends and tabs."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))


def spoken(state: str) -> str:
    """A state of a run or a step in words: 'timed out', 'succeeded with failures'."""
    return state.replace("_", " ")


def line(text: str, most: int = 100) -> str:
    """Clean text in one line, cut to `most` characters."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def duration(ms: float) -> str:
    """Milliseconds in the unit that fits."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(int(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def speaker(role: str, agent: str | None) -> str:
    """Who said an entry of a conversation."""
    return {"user": "you", "system_error": "error"}.get(role) or line(agent or "answer")


def clock(at_ms: int) -> str:
    """The time of day here."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%H:%M:%S")


def tokens(tokens_in: int, tokens_out: int) -> str:
    """Tokens in and out; nothing if there were none."""
    return f"{tokens_in:,}→{tokens_out:,} tokens" if tokens_in or tokens_out else ""


def cost(usd: float | None) -> str:
    """Dollars; nothing if the price is not known."""
    if usd is None:
        return ""
    return f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.6f}".rstrip("0")


def usage(used: Usage) -> str:
    """What a run consumed, in a few words."""
    return " · ".join(part for part in (tokens(used.input_tokens, used.output_tokens), cost(used.cost_usd)) if part)
