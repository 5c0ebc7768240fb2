"""Bounds of values and times: one table, and the checks that hold it wherever a value comes in or is recorded.

Values are JSON. A request, a signal, a memory or an output is checked where it comes in, with an error that names place and bound, such as
`input.items[3].x: nested deeper than 64 levels`. On its way a value is wrapped: as an argument, in a step's parameters, in an event. So
whatever reads it takes READ_DEPTH levels.

The types of fields with these bounds are in `values`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from cantata.errors import ConfigError, Fault

MAX_DEPTH = 64
"""Levels of lists and objects in a value that comes in or is recorded; no honest value that was seen has more than 12."""
READ_DEPTH = 128
"""Levels that readers and scripts take. pydantic gives up at 200 in JSON text and 255 in Python, cjson and json at about 1,000."""
MAX_DIGITS = 300
"""Digits of a whole number: it still fits into a float. JSON of 309 digits becomes `inf` in a Lua script, which cannot write it."""
MAX_BYTES = 16_000_000
"""Bytes of a request or output as JSON, unless the configuration's `limits` have others: 16 MB keep calls of Redis under 0.1 s."""
MAX_MEMORY_BYTES = 1_000_000
"""Bytes of a memory as JSON: an append copies the value within Redis, which takes 8 ms at this size."""
MAX_MEMORY_TTL_S = 100 * 365 * 86_400.0
"""The longest time to live of a memory: a hundred years, its own bound. Longer ones are stored for good."""
MAX_LABELS = 40
"""Labels of a run. Lists look at all labels of each run."""
LABEL_NAME_BYTES, LABEL_BYTES = 100, 500
"""Bytes of a label's name and value."""

DAY_S = 86_400.0
MAX_DURATION_S = 3650 * DAY_S
"""Ten years, in seconds. A time limit or pause that is longer is a mistake: in milliseconds, or a date."""
FIRST_YEAR, LAST_YEAR = 2000, 2199
"""Instants lie between 2000-01-01 and 2200-01-01. Time zones, clocks and languages differ on years that are far away."""
FIRST_INSTANT_S = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC).timestamp()
LAST_INSTANT_S = datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC).timestamp()

_MAX_INTEGER = 10**MAX_DIGITS
MAX_SHOWN_PARTS = 8  # keys of a place in a message: one that is too deep has 64 of them
_MAX_SHOWN_KEY = 40  # characters
_PLAIN_KEY = re.compile(r"[^\s.'\"\[\]]+")
_CONTAINERS = (dict, list, tuple)

Key = str | int


class OutOfBoundsError(ConfigError, ValueError):
    """A value or a time is beyond its bound. The message names the place and the bound."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__([Fault(message, where=where)])


class Excess(NamedTuple):
    """A place at which a value is beyond a bound, and that bound."""

    path: tuple[Key, ...]
    message: str

    def of(self, name: str) -> OutOfBoundsError:
        """Return the error for a value of this name."""
        return OutOfBoundsError(place_of(name, self.path), self.message)


def check(value: object, name: str, *, max_bytes: int = MAX_BYTES, depth: int = MAX_DEPTH) -> None:
    """Check that a value is JSON within the bounds, save its exact size. Takes a microsecond for a small one.

    Raises:
        OutOfBoundsError: It is not, with the place and the bound. `name` is that of the value.
    """
    if excess := find(value, max_bytes=max_bytes, depth=depth):
        raise excess.of(name)


def read_json(text: str, name: str = "the value") -> Any:
    """Return the value of a JSON text, such as a line of a file or an option.

    Raises:
        ValueError: It is no JSON; JSONDecodeError has the column.
        OutOfBoundsError: It is beyond a bound.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole_number)
    except RecursionError:
        raise OutOfBoundsError(name, f"nested deeper than {MAX_DEPTH} levels") from None
    check(value, name)
    return value


def read_json_or_text(text: str) -> Any:
    """Return the value of a JSON text; any other text as it is. Raises OutOfBoundsError."""
    try:
        return read_json(text)
    except OutOfBoundsError:
        raise
    except ValueError:
        return text


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON; numbers in JSON are finite")


def _whole_number(digits: str) -> int:
    return (
        int(digits) if len(digits) <= MAX_DIGITS else _MAX_INTEGER
    )  # Python reads no 4,300 digits; the check finds its place


def check_size(size: int, name: str, max_bytes: int = MAX_BYTES) -> None:
    """Check the size of a value as JSON. Raises OutOfBoundsError."""
    if size > max_bytes:
        raise OutOfBoundsError(name, f"{size:,} bytes as JSON, more than {max_bytes:,}")


def find(value: object, *, max_bytes: int = MAX_BYTES, depth: int = MAX_DEPTH) -> Excess | None:
    """Return the first place where a value is no JSON or beyond a bound; None if there is none. Never recursive."""
    level: list[Any] = [value]
    left = (
        max_bytes // 2 + 1
    )  # each value takes two bytes; a list that contains itself, or one list a billion times, ends here
    for number in range(depth + 1):
        inner: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is str:
                if not each.isascii() and not is_text(each):
                    return _locate(value, depth)
            elif kind is dict:
                for key in each:
                    if type(key) is not str or not (key.isascii() or is_text(key)):
                        return _locate(value, depth)
                inner.extend(each.values())
            elif kind is list:
                inner.extend(each)
            elif kind is int:
                if not -_MAX_INTEGER < each < _MAX_INTEGER:
                    return _locate(value, depth)
            elif kind is float:
                if each - each != 0.0:  # nan, inf
                    return _locate(value, depth)
            elif each is not None and kind is not bool:  # tuples, and classes derived from those above
                if _fault_of(each):
                    return _locate(value, depth)
                if isinstance(each, _CONTAINERS):
                    inner.extend(each.values() if isinstance(each, dict) else each)
            elif kind not in _CONTAINERS:
                continue
            if number == depth and isinstance(each, _CONTAINERS):
                return _locate(value, depth)
            if len(inner) > left:
                return Excess((), f"more than {max_bytes:,} bytes as JSON")
        if not inner:
            return None
        left -= len(inner)
        level = inner
    return None


def _locate(value: object, depth: int) -> Excess:
    """Return the first place, in the order of the text, at which `find` stops."""
    path: list[Key] = []
    stack: list[Iterator[tuple[Key, object]]] = [iter([("", value)])]
    while stack:
        key, each = next(stack[-1], (None, None))
        if key is None:
            stack.pop()
            path[-1:] = []
            continue
        here = (*path[1:], key) if path else ()
        if fault := _fault_of(each):
            return Excess(here, fault)
        if isinstance(each, _CONTAINERS):
            if len(stack) > depth:
                return Excess(here, f"nested deeper than {depth} levels")
            path.append(key)
            stack.append(iter([*each.items()]) if isinstance(each, dict) else iter([*enumerate(each)]))
    return Excess((), f"nested deeper than {depth} levels")


def _fault_of(value: object) -> str:
    """Return why a value alone, without those inside it, is no JSON or beyond a bound; empty if it is not."""
    match value:
        case None | bool():
            return ""
        case str():
            return "" if is_text(value) else "text with half a surrogate pair, which is not a character"
        case int():
            return "" if -_MAX_INTEGER < value < _MAX_INTEGER else f"a whole number of more than {MAX_DIGITS} digits"
        case float():
            return "" if math.isfinite(value) else f"{value} is not JSON; use null or a number"
        case dict():
            key = next((key for key in value if not (isinstance(key, str) and is_text(key))), None)
            if isinstance(key, str):
                return "a key with half a surrogate pair, which is not a character"
            return (
                ""
                if all(isinstance(key, str) for key in value)
                else f"the key {shown(key)} of type {_type_name(key)}; keys are texts"
            )
        case list() | tuple():
            return ""
    return f"a value of type {_type_name(value)} is not JSON"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shown(value: object) -> str:
    """Return the beginning of a value as a message has it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such as a number of 5,000 digits
        return f"a value of type {_type_name(value)}"
    return text if len(text) <= _MAX_SHOWN_KEY else f"{text[:_MAX_SHOWN_KEY]}..."


def place_of(name: str, path: tuple[Key, ...]) -> str:
    """Return a place in a value as text, `input.items[3].x`; of a long path its first keys."""
    words = name
    for part in path[:MAX_SHOWN_PARTS]:
        if isinstance(part, int):
            words += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part) and len(part) <= _MAX_SHOWN_KEY:
            words += f".{part}" if words else part
        else:
            words += f"[{shown(part)}]"
    return f"{words}..." if len(path) > MAX_SHOWN_PARTS else words


def is_text(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- times ------------------------------------------------------------------------------------------------------------


def duration_of(value: object, name: str, *, most: float = MAX_DURATION_S, may_be_zero: bool = False) -> float:
    """Return a duration in seconds.

    Raises:
        OutOfBoundsError: It is no number, not above 0 (or below it, with `may_be_zero`), or more than `most`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (value > 0 or (may_be_zero and value == 0)) and value <= most:  # type: ignore[operator]  # mypy forgets the alias
        return float(value)  # type: ignore[arg-type]
    least = "from 0" if may_be_zero else "above 0 and"
    years = f" ({most / 365 / DAY_S:g} years)" if most >= 365 * DAY_S else ""
    raise OutOfBoundsError(name, f"expected a number of seconds {least} up to {most:,.0f}{years}, found {shown(value)}")


def check_instant(seconds: float, name: str) -> None:
    """Check a time in seconds since 1970. Raises OutOfBoundsError unless it lies between 2000 and 2200."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not FIRST_INSTANT_S <= seconds <= LAST_INSTANT_S
    ):
        message = (
            f"expected a time between {FIRST_YEAR} and {LAST_YEAR + 1}, in seconds since 1970, found {shown(seconds)}"
        )
        raise OutOfBoundsError(name, message)


def check_moment(moment: datetime, name: str) -> None:
    """Check a date and time, with or without a time zone. Raises OutOfBoundsError unless it lies between 2000 and 2200."""
    if not isinstance(moment, datetime) or not FIRST_YEAR <= moment.year <= LAST_YEAR:
        found = moment.isoformat() if isinstance(moment, datetime) else shown(moment)
        raise OutOfBoundsError(
            name, f"expected a date and time between {FIRST_YEAR} and {LAST_YEAR + 1}, found {found}"
        )
