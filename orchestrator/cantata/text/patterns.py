"""Regular expressions that others write: bounded when they are compiled, and searched with one time-out for several of them.

`re` has no time-out, and some patterns search a short text for years. `regex` has one; but it unrolls exact repetitions when it compiles,
so that `((a?){1000}){1000}` takes gigabytes.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Any

import regex

MAX_PATTERN_CHARS = 2_000  # of one pattern: the slowest of this length compile in 0.1 s
MAX_PATTERN_PARTS = 5_000  # of one pattern, once its repetitions are unrolled: 10 ms and 5 MB
SEARCH_S = 0.25  # processor time of all searches in one value; another thread can run meanwhile

Pattern = Any  # `regex` ships no types

_TOKEN = re.compile(
    r"""
      (?P<comment> \(\?\#[^)]*\) )
    | (?P<flags> \(\?[A-Za-z0-9-]*[xV][A-Za-z0-9-]*[:)] )    # free spacing, and the other syntax of `regex`
    | (?P<open> \( )
    | (?P<close> \) )
    | (?P<count> \{\s*(?P<least>\d*)\s*(?:,\s*\d*\s*)?\} )
    | (?P<repeat> [*+?] )
    | (?P<part> \\. | \[\^?\]?(?:\\.|(?!\[:)[^\]\\])*\] | [^\[\\] )  # an escape, a class without POSIX names, a character
    """,
    re.VERBOSE | re.DOTALL,
)


def compiled(pattern: str) -> Pattern:
    """Return a pattern as `regex` compiles it. Raises ValueError, with the reason, if it is not valid or takes too much to compile."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"it has {len(pattern):,} characters, more than {MAX_PATTERN_CHARS:,}")
    if parts_of(pattern) > MAX_PATTERN_PARTS:
        raise ValueError(
            f"it repeats more than {MAX_PATTERN_PARTS:,} parts; write {{0,N}} in place of {{N}}, or 'maxLength'"
        )
    return _compiled(pattern)


def parts_of(pattern: str) -> int:
    """Return the number of parts that a pattern has when its counted repetitions are unrolled. Raises ValueError if it is not valid."""
    groups = [[0, 0]]  # of each open group: all of its parts, and those of the last one
    end = 0
    while end < len(pattern):
        token = _TOKEN.match(pattern, end)
        if token is None:
            raise ValueError(f"the character class or escape at position {end} is not closed, or names a POSIX class")
        end = token.end()
        match token.lastgroup:
            case "flags":
                raise ValueError(f"the flags {token[0]!r} are not supported")
            case "open":
                groups.append([0, 0])
            case "close":
                if len(groups) == 1:
                    raise ValueError(f"the parenthesis at position {end - 1} closes no group")
                parts = max(groups.pop()[0], 1)
                groups[-1] = [groups[-1][0] + parts, parts]
            case "part":
                groups[-1] = [groups[-1][0] + 1, 1]
            case "count":
                total, last = groups[-1]
                times = min(max(int(token["least"][:9] or 1), 1), MAX_PATTERN_PARTS + 1)
                groups[-1] = [total + last * (times - 1), last * times]
            case _:
                continue
        if groups[-1][0] > MAX_PATTERN_PARTS:
            return groups[-1][0]
    return groups[0][0]


@lru_cache(maxsize=64)  # at most 5 MB each
def _compiled(pattern: str) -> Pattern:
    try:
        return regex.compile(pattern, cache_pattern=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # noqa: BLE001  # `regex.error`, and for some odd patterns whatever its parser comes upon
        raise ValueError(str(error)) from None


class SearchTime:
    """The processor time that several searches share."""

    def __init__(self, seconds: float = SEARCH_S) -> None:
        self.seconds = seconds
        self._left = seconds

    def is_found(self, pattern: Pattern, text: str) -> bool:
        """Return whether a pattern is found in a text. Raises TimeoutError once all searches have used up the time."""
        begun = time.thread_time()
        try:
            if self._left <= 0:
                raise TimeoutError
            # Only of a `str` itself does `regex` release the interpreter while it searches.
            return pattern.search(str(text), timeout=self._left, concurrent=True) is not None
        except TimeoutError:
            self._left = 0.0
            raise TimeoutError(
                f"the pattern {pattern.pattern[:200]!r} takes too long: the search has {self.seconds:g} s"
            ) from None
        finally:
            self._left -= time.thread_time() - begun
