"""Conversations of sessions: the messages of their turns, oldest first. `ledger/run.lua` lists the keys and writes them when a turn ends.

A session lies in one shard with the runs of its turns, so one script ends a run, records its messages and starts the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, cast
from urllib.parse import quote, unquote

from cantata.flows.definitions import SessionSettings
from cantata.flows.values import stored
from cantata.flows.wire import HistoryEntry, SessionInfo
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import KeptItem
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import SHARDS, shard_key
from cantata.ledger.redis.pieces import ask_each
from cantata.ledger.redis.records import ask_apart, command, good, readable
from cantata.ledger.session_names import fault_of, scoped, shard_of_session

SHARDS_AT_ONCE = 8  # whose newest sessions are read in one round trip
PAGE = 50  # entries in one read: at most 32 kB each


def item_of(scope: str) -> KeptItem:
    """Return a session as it is counted for its tenant."""
    return KeptItem(shard_of_session(scope), f"session:{scope}")


def run_session(tenant: str, name: str | None, kept: SessionSettings) -> RunSession | None:
    """Return the session of a turn as its run is accepted with it; None if the turn belongs to none."""
    return None if name is None else RunSession(scoped(tenant, name), kept.retention_s, kept.max_entries, kept.max_waiting)


class Sessions:
    """The conversations of one tenant. Raises ValueError for a name that cannot be one."""

    def __init__(self, ledger: Ledger, tenant: str = "") -> None:
        self._ledger = ledger
        self._tenant = tenant

    def of(self, tenant: str) -> Sessions:
        """Return the conversations of another tenant."""
        return Sessions(self._ledger, tenant)

    def history(self, session: str, most: int | None = None) -> list[HistoryEntry]:
        """Return the messages, oldest first: the newest `most`, or all that are kept."""
        if most is not None and most < 1:
            return []
        key = _key(self._ledger.redis, self._scope(session), "history")
        texts = cast("list[str]", self._ledger.with_retries(partial(self._ledger.redis.lrange, key, -(most or 0), -1)))
        return [entry_of(text) for text in texts]

    def waiting(self, session: str) -> list[str]:
        """Return the open runs of its turns: the current one, then those that wait."""
        key = _key(self._ledger.redis, self._scope(session), "queue")
        return cast("list[str]", self._ledger.with_retries(partial(self._ledger.redis.lrange, key, 0, -1)))

    def clear(self, session: str) -> int:
        """Delete the messages; return how many there were. An open turn goes on, and its messages are recorded when it ends."""
        scope = self._scope(session)
        return cast(int, self._ledger.caller.call_shard("sessions/clear", shard_of_session(scope), scope))

    def restore(self, session: str, entries: Sequence[HistoryEntry]) -> None:
        """Replace the messages by recorded ones; the turns that follow see these."""
        scope, texts = self._scope(session), [entry.model_dump_json() for entry in entries]
        self.clear(session)
        if texts:
            self._ledger.caller.call_shard("sessions/restore", shard_of_session(scope), scope, self._tenant, *texts)

    def list(self, most: int = 100) -> list[SessionInfo]:
        """Return the conversations that were used last, newest first."""
        redis, tenant = self._ledger.redis, quote(self._tenant, safe="")

        def fetch(shards: Sequence[int]) -> list[list[tuple[str, float]]]:
            keys = (f"{shard_key(redis, shard)}:sessions:{tenant}" for shard in shards)
            return ask_each(redis, keys, lambda pipe, key: pipe.zrevrange(key, 0, most - 1, withscores=True))

        at_once = range(0, SHARDS, SHARDS_AT_ONCE)
        parts = [self._ledger.with_retries(partial(fetch, range(start, start + SHARDS_AT_ONCE))) for start in at_once]
        newest = sorted((pair for part in parts for pairs in part for pair in pairs), key=lambda pair: (-pair[1], pair[0]))[:most]

        lists = [_key(redis, scope, part) for scope, _ in newest for part in ("history", "queue")]
        lengths = self._ledger.with_retries(lambda: ask_apart(redis, lists, lambda pipe, key: pipe.llen(key)))
        return [
            self._listed(unquote(scope.removeprefix(f"{tenant}/")), at_ms / 1000, entries, waiting)
            for (scope, at_ms), entries, waiting in zip(newest, lengths[::2], lengths[1::2], strict=True)
            if entries or waiting
        ]

    def _listed(self, session: str, at_s: float, entries: Any, waiting: Any) -> SessionInfo:
        def row(why: str) -> SessionInfo:
            return SessionInfo(session=session, entries=0, waiting=0, last_used_at=at_s, unreadable=why)

        def read() -> SessionInfo:
            return SessionInfo(session=session, entries=good(entries), waiting=good(waiting), last_used_at=at_s)

        return readable(read, row, remedy=f"{command('sessions clear', session, self._tenant)} deletes it")

    def _scope(self, session: str) -> str:
        if fault := fault_of(session):
            raise ValueError(fault)
        return scoped(self._tenant, session)


def newest_first(ledger: Ledger, scope: str) -> Iterator[HistoryEntry]:
    """Yield the messages of the session with this scoped name, newest first, read as they are consumed."""
    key = _key(ledger.redis, scope, "history")
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
        lambda: stored(HistoryEntry, text, ignores_unknown=True), row, remedy="`submit sessions clear` deletes the conversation"
    )


def _key(redis: object, scope: str, part: str) -> str:
    return f"{shard_key(redis, shard_of_session(scope))}:session:{scope}:{part}"
