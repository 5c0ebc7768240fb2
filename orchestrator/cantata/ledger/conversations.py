"""Sessions as the ledger keeps them: their names, and the messages of their turns, oldest first.

`ledger/run.lua` lists the keys; `ledger/lib.lua` writes them when a turn ends. A session lies in one shard with the runs of its turns, so
one script ends a run, records its messages and starts the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, cast
from urllib.parse import quote, unquote

from cantata.flows.definitions import SessionSettings
from cantata.flows.wire import HistoryEntry, SessionInfo
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import KeptItem
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import SHARDS, shard_key, shard_of
from cantata.ledger.redis.pieces import ask_each
from cantata.ledger.redis.records import ask_apart, command, good, readable
from cantata.values import stored

SHARDS_AT_ONCE = 8  # whose newest sessions are read in one round trip
PAGE = 50  # entries in one read: at most 32 kB each


def scoped(tenant: str, name: str) -> str:
    """Return the name of a session in keys: with its tenant, percent-encoded."""
    return f"{quote(tenant, safe='')}/{quote(name, safe='')}"


def shard_of_session(scope: str) -> int:
    """Return the shard of a session and of all runs of its turns."""
    return shard_of(scope)


def item_of(scope: str) -> KeptItem:
    """Return a session as it is counted for its tenant."""
    return KeptItem(shard_of_session(scope), f"session:{scope}")


def run_session(tenant: str, name: str | None, kept: SessionSettings) -> RunSession | None:
    """Return the session of a turn as its run is accepted with it; None if the turn belongs to none."""
    return (
        None if name is None else RunSession(scoped(tenant, name), kept.retention_s, kept.max_entries, kept.max_waiting)
    )


def history(ledger: Ledger, scope: str, most: int | None = None) -> list[HistoryEntry]:
    """Return the messages of the session with this scoped name, oldest first: the newest `most`, or all that are kept."""
    if most is not None and most < 1:
        return []
    key = key_of(ledger.redis, scope, "history")
    texts = cast("list[str]", ledger.with_retries(partial(ledger.redis.lrange, key, -(most or 0), -1)))
    return [entry_of(text) for text in texts]


def newest_first(ledger: Ledger, scope: str) -> Iterator[HistoryEntry]:
    """Yield the same, newest first, read as they are consumed."""
    key = key_of(ledger.redis, scope, "history")
    for start in count(0, PAGE):
        texts = cast("list[str]", ledger.with_retries(partial(ledger.redis.lrange, key, -start - PAGE, -start - 1)))
        yield from (entry_of(text) for text in reversed(texts))
        if len(texts) < PAGE:
            return


def entry_of(text: str) -> HistoryEntry:
    """Return an entry of a conversation; in place of one that cannot be read a `system_error` that says so."""

    def row(why: str) -> HistoryEntry:
        return HistoryEntry(role="system_error", content=f"an entry of this conversation: {why}", ts=0.0)

    return readable(
        lambda: stored(HistoryEntry, text, ignores_unknown=True),
        row,
        remedy="`submit sessions clear` deletes the conversation",
    )


def last_used(ledger: Ledger, tenant: str, most: int) -> list[SessionInfo]:
    """Return the sessions of a tenant that were used last, newest first."""
    redis, owner = ledger.redis, quote(tenant, safe="")

    def fetch(shards: Sequence[int]) -> list[list[tuple[str, float]]]:
        keys = (f"{shard_key(redis, shard)}:sessions:{owner}" for shard in shards)
        return ask_each(redis, keys, lambda pipe, key: pipe.zrevrange(key, 0, most - 1, withscores=True))

    at_once = range(0, SHARDS, SHARDS_AT_ONCE)
    parts = [ledger.with_retries(partial(fetch, range(start, start + SHARDS_AT_ONCE))) for start in at_once]
    newest = sorted((pair for part in parts for pairs in part for pair in pairs), key=lambda pair: (-pair[1], pair[0]))[
        :most
    ]

    lists = [key_of(redis, scope, part) for scope, _ in newest for part in ("history", "queue")]
    lengths = ledger.with_retries(lambda: ask_apart(redis, lists, lambda pipe, key: pipe.llen(key)))
    return [
        _info(tenant, unquote(scope.removeprefix(f"{owner}/")), at_ms / 1000, entries, waiting)
        for (scope, at_ms), entries, waiting in zip(newest, lengths[::2], lengths[1::2], strict=True)
        if entries or waiting
    ]


def _info(tenant: str, session: str, at_s: float, entries: Any, waiting: Any) -> SessionInfo:
    def row(why: str) -> SessionInfo:
        return SessionInfo(session=session, entries=0, waiting=0, last_used_at=at_s, unreadable=why)

    def read() -> SessionInfo:
        return SessionInfo(session=session, entries=good(entries), waiting=good(waiting), last_used_at=at_s)

    return readable(read, row, remedy=f"{command('sessions clear', session, tenant)} deletes it")


def key_of(redis: object, scope: str, part: str) -> str:
    """Return a key of a session: its `history`, or its `queue` of open runs."""
    return f"{shard_key(redis, shard_of_session(scope))}:session:{scope}:{part}"
