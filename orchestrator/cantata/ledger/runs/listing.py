"""Lists of runs, newest first, in pages, filtered by tenant, status, kind and text.

Each shard returns its newest runs behind a position, and the results are merged. One call scans a bounded number of runs of a shard, and a
page a bounded number in all, so a page may be short though more follow. A position is a run and when it was accepted, so runs that are
accepted meanwhile change nothing. Rows of batches are listed only by a search for a text, such as the name of their batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args
from urllib.parse import quote

from pydantic import Field

from cantata.bounds import check_instant
from cantata.errors import ConfigError, UnknownRunError
from cantata.flows.wire import RunStatus
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS, run_key, shard_key
from cantata.ledger.runs.summaries import FIELDS, REQUEST_BYTES, RunSummary, listed_summary_of
from cantata.ledger.scripts import SCRIPTS
from cantata.values import JsonValue, Value

SCANNED_PER_CALL = 500  # runs that one call scans in one shard: a few milliseconds
MAX_SCANNED_PER_ROUND = 12_800  # runs that are scanned in one round trip
MAX_SCANNED = 25_600  # and for one page, except in its last round
MAX_ROUNDS = 8
MAX_WORDS = 8  # that Redis searches for; its matches are compared with the whole text
MAX_SEARCH_CHARS = 200  # characters
ANY_RUN = "~"  # sorts behind every run's id: the position of the newest run of a moment

_STATUSES = frozenset(get_args(RunStatus))
_KINDS = ("turn", "chain", "webhook")
_PLACE = re.compile(r"(\d{1,15})\.(\S{1,200})")

Position = tuple[int, str]
"""The time a run was accepted (ms), and its id. The list begins with the greatest."""


class RunList(Value):
    """Runs, newest first."""

    runs: list[RunSummary] = Field(description="newest first")
    next: str | None = Field(default=None, description="what `before` is for the rest; null if there is none")


class RunCounts(Value):
    """Numbers of runs by status."""

    counts: dict[str, int] = Field(description="status → number of runs")
    is_complete: bool = Field(description="whether all runs were counted, and not only the newest")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs to list."""

    tenant: str | None = None
    """None: all tenants."""
    statuses: tuple[str, ...] = ()
    kind: str | None = None
    text: str = ""
    """Part of the id, title, target, session or labels; case-insensitive."""
    since: float | None = None
    until: float | None = None
    """Accepted between these times, seconds since 1970."""

    def __post_init__(self) -> None:
        """Raise ConfigError for values that no run can have."""
        if odd := sorted(set(self.statuses) - _STATUSES):
            raise ConfigError(f"no run is {odd[0]!r}; a status is one of {', '.join(sorted(_STATUSES))}", source="runs")
        if self.kind is not None and self.kind not in _KINDS:
            raise ConfigError(f"no run is of kind {self.kind!r}; it is turn, chain or webhook", source="runs")
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None:
                check_instant(time, name)
        if len(self.text) > MAX_SEARCH_CHARS:
            raise ConfigError(
                f"the search text has {len(self.text)} characters; at most {MAX_SEARCH_CHARS} are allowed",
                source="runs",
            )


def find_page(ledger: Ledger, wanted: RunFilter, *, before: str | None = None, most: int = 50) -> RunList:
    """Return a page of runs, behind the position `next` of an earlier page. Raises ConfigError for an invalid position."""
    starts = [
        *([] if before is None else [_place(before)]),
        *([] if wanted.until is None else [(int(wanted.until * 1000), ANY_RUN)]),
    ]
    search = _Search(ledger, wanted, min(starts, default=None), most)
    search.run()
    return search.page()


def count(ledger: Ledger, wanted: RunFilter) -> RunCounts:
    """Return the number of runs by status, whatever statuses and text are wanted, of the newest MAX_SCANNED or so."""
    at = "" if wanted.until is None else int(wanted.until * 1000)
    wanted = replace(wanted, text="")
    call = {
        **_call(wanted),
        "at": at,
        "run": ANY_RUN,
        "counts": True,
        "most_found": 1,
        "most_looked": MAX_SCANNED // SHARDS,
    }
    call.pop("statuses", None)
    replies = _call_shards(ledger, [(shard, to_json(call)) for shard in range(SHARDS)])
    found = Counter[str]()
    for _, _, _, _, _, *counts in replies:
        found.update(dict(counts))
    return RunCounts(counts=dict(found), is_complete=all(is_end for _, _, _, is_end, *_ in replies))


def iterate(ledger: Ledger, wanted: RunFilter, *, behind: str | None = None) -> Iterator[RunSummary]:
    """Yield runs, newest first, behind the one with an id. Raises UnknownRunError if there is no such run."""
    before = None if behind is None else _place_of(ledger, behind)
    while True:
        page = find_page(ledger, wanted, before=before)
        yield from page.runs
        before = page.next
        if before is None:
            return


def _place_of(ledger: Ledger, run_id: str) -> str:
    at = ledger.with_retries(lambda: ledger.redis.hget(run_key(ledger.redis, run_id), "created_at"))
    if at is None:
        raise UnknownRunError.of(run_id)
    return _text_of((int(at), run_id))


# --- searching --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ShardCursor:
    """The progress of the scan of a shard."""

    shard: int
    place: Position | None
    is_open: bool = True


class _Search:
    """The search for one page. Runs are certain to be the next ones down to the newest position of a shard that is not finished."""

    def __init__(self, ledger: Ledger, wanted: RunFilter, start: Position | None, most: int) -> None:
        self._ledger = ledger
        self._wanted = wanted
        self._most = most
        self._start = start
        self._fronts = [_ShardCursor(shard, start) for shard in range(SHARDS)]
        self._found: list[tuple[Position, RunSummary]] = []
        self._looks = self._rounds = 0
        self._origin_ms = start[0] if start else 0

    def run(self) -> None:
        """Scan until the page is full, all runs are scanned, or a bound is reached."""
        fronts = self._fronts
        while fronts and self._looks < MAX_SCANNED and self._rounds < MAX_ROUNDS:
            self._scan(fronts)
            self._rounds += 1
            self._found.sort(key=lambda found: found[0], reverse=True)
            fronts = self._unfinished()

    def page(self) -> RunList:
        """Return the runs found, as far as they are certain."""
        bound = self._bound()
        if bound is not None and self._wanted.tenant is not None:
            bound = self._public_bound(bound)
        sure = [found for found in self._found if bound is None or found[0] >= bound]
        if len(sure) > self._most:
            sure = sure[: self._most]
            bound = sure[-1][0]
        return RunList(runs=[run for _, run in sure], next=None if bound is None else _text_of(bound))

    def _bound(self) -> Position | None:
        return max((front.place for front in self._fronts if front.is_open and front.place), default=None)

    def _public_bound(self, bound: Position) -> Position:
        """Return the bound without the id of another tenant's run, so before all runs that were accepted at that moment."""
        moment = bound[0], ANY_RUN
        is_own = any(place == bound for place, _ in self._found)
        return bound if is_own or (self._start is not None and moment >= self._start) else moment

    def _unfinished(self) -> list[_ShardCursor]:
        """Return the shards to scan further: those that have not reached the end of the page, or lag behind the others."""
        still = [(front, front.place) for front in self._fronts if front.is_open and front.place]
        if len(self._found) >= self._most:
            last = self._found[self._most - 1][0]
            return [front for front, place in still if place > last]
        if not still:
            return []
        least_ms = min(self._origin_ms - place[0] for _, place in still)
        return [front for front, place in still if self._origin_ms - place[0] <= 2 * least_ms]

    def _scan(self, fronts: Sequence[_ShardCursor]) -> None:
        most_looked = min(SCANNED_PER_CALL, MAX_SCANNED_PER_ROUND // len(fronts))
        call = {**_call(self._wanted), "most_found": self._most // SHARDS + 2, "most_looked": most_looked}
        places = ((front.shard, front.place or ("", "")) for front in fronts)
        replies = _call_shards(
            self._ledger, [(shard, to_json({**call, "at": str(at), "run": run_id})) for shard, (at, run_id) in places]
        )
        for front, (now, run_id, at, is_end, looks, *rows) in zip(fronts, replies, strict=True):
            self._origin_ms = self._origin_ms or int(now)
            front.is_open = not is_end
            front.place = (int(at), run_id) if run_id else front.place
            self._looks += looks
            self._found += [
                found for row in rows if matches_text((found := _row(row, int(now) / 1000))[1], self._wanted.text)
            ]


def _call(wanted: RunFilter) -> dict[str, JsonValue]:
    """Return a filter as `page.lua` takes it."""
    call: dict[str, JsonValue] = {"request_bytes": REQUEST_BYTES, "fields": list(FIELDS), "words": _words(wanted.text)}
    if wanted.tenant is not None:
        call["tenant"] = wanted.tenant
    if wanted.statuses:
        call["statuses"] = dict.fromkeys(wanted.statuses, True)
    if wanted.kind:
        call["kind"] = wanted.kind
    if wanted.since is not None:
        call["since"] = int(wanted.since * 1000)
    return call


def _call_shards(ledger: Ledger, calls: Sequence[tuple[int, str]]) -> list[Any]:
    keyed = [(shard_key(ledger.redis, shard), [call]) for shard, call in calls]
    return ledger.with_retries(lambda: SCRIPTS.call_each(ledger.redis, "runs/page", keyed))


def matches_text(run: RunSummary, text: str) -> bool:
    """Return whether a text is part of a run's id, title, target, session or labels."""
    if not text:
        return True
    sought = text.casefold()
    labels = (f"{name}={value}" for name, value in run.labels.items())
    return any(sought in each.casefold() for each in (run.run_id, run.title, run.target, run.session or "", *labels))


def _words(text: str) -> list[JsonValue]:
    """Return what Redis searches for: the words of a text, which JSON leaves as they are, each in several spellings."""
    words = sorted(re.findall(r"\w+", text), key=len, reverse=True)
    return [[*sorted(_spellings(word))] for word in words[:MAX_WORDS]]


def _spellings(word: str) -> set[str]:
    """Return a word in several cases, for letters whose case Lua does not know, and percent-encoded, as in a session's name."""
    return {_lower(each) for each in (word, word.lower(), word.upper(), word.title(), quote(word, safe=""))}


def _lower(text: str) -> str:
    """Return a text in lower case as Lua does it: only ASCII letters."""
    return "".join(char.lower() if char.isascii() else char for char in text)


def _place(text: str) -> Position:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not a position in the list of runs; use `next` of an earlier page", source="before"
        )
    return int(match[1]), match[2]


def _text_of(place: Position) -> str:
    return f"{place[0]}.{place[1]}"


# --- reading ----------------------------------------------------------------------------------------------------------------


def _row(row: Sequence[str | None], now: float) -> tuple[Position, RunSummary]:
    run_id, at, request, *values = row
    return (int(at or 0), str(run_id)), listed_summary_of(str(run_id), int(at or 0), request or "", values, now)
