"""Conversations: what was said in the turns of a session, oldest first. `lua/lib.lua` lists their keys and writes them when a turn ends.

A session lives in one shard, and the runs of its turns lie in that shard too. So one script ends a run, writes down what was said, and
gives the next one its turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import cast
from urllib.parse import quote, unquote

from cantata.models.wire import HistoryEntry, SessionInfo
from cantata.state.ledger.ledger import Ledger
from cantata.state.redis.keys import SHARDS, shard_key, shard_of

MAX_NAME_CHARS = 200  # characters
SHARDS_AT_ONCE = 8  # whose newest sessions are asked for in one round trip
PAGE = 50  # entries in one read: at most 32 kB each


def fault_of(name: str) -> str | None:
    """What is wrong with a session's name, if anything."""
    if not name.strip():
        return "the session's name is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"the session's name has {len(name)} characters; {MAX_NAME_CHARS} are the most"
    if not name.isprintable():
        return "the session's name has characters that cannot be printed, such as line ends"
    return None


def scoped(tenant: str, name: str) -> str:
    """A session as keys have it: of one tenant, and without any odd characters."""
    return f"{quote(tenant, safe='')}/{quote(name, safe='')}"


def shard_of_session(scope: str) -> int:
    """The shard that a session lives in, with all runs of its turns."""
    return shard_of(scope)


class Sessions:
    """The conversations of one tenant. Raises ValueError for a name that cannot be one."""

    def __init__(self, ledger: Ledger, tenant: str = "") -> None:
        self._ledger = ledger
        self._tenant = tenant

    def of(self, tenant: str) -> Sessions:
        """Those of another tenant."""
        return Sessions(self._ledger, tenant)

    def history(self, session: str, most: int | None = None) -> list[HistoryEntry]:
        """What was said, oldest first: the newest `most` entries, or all that are kept."""
        if most is not None and most < 1:
            return []
        key = _key(self._ledger.redis, self._scope(session), "history")
        texts = cast("list[str]", self._ledger.with_retries(partial(self._ledger.redis.lrange, key, -(most or 0), -1)))
        return [HistoryEntry.model_validate(json.loads(text)) for text in texts]

    def waiting(self, session: str) -> list[str]:
        """The runs of its turns that are not over: the one under way, then those that wait."""
        key = _key(self._ledger.redis, self._scope(session), "queue")
        return cast("list[str]", self._ledger.with_retries(partial(self._ledger.redis.lrange, key, 0, -1)))

    def clear(self, session: str) -> int:
        """Forget what was said; answers how many entries that were. A turn under way goes on, and is written down when it ends."""
        scope, redis = self._scope(session), self._ledger.redis

        def call() -> tuple[int, int]:
            with redis.pipeline(transaction=True) as pipe:
                pipe.llen(_key(redis, scope, "history"))
                pipe.delete(_key(redis, scope, "history"))
                return cast("tuple[int, int]", tuple(pipe.execute()))

        return self._ledger.with_retries(call)[0]

    def list(self, most: int = 100) -> list[SessionInfo]:
        """The conversations that were used last, newest first."""
        redis, tenant = self._ledger.redis, quote(self._tenant, safe="")

        def fetch(shards: Sequence[int]) -> list[list[tuple[str, float]]]:
            with redis.pipeline(transaction=False) as pipe:
                for shard in shards:
                    pipe.zrevrange(f"{shard_key(redis, shard)}:sessions:{tenant}", 0, most - 1, withscores=True)
                return cast("list[list[tuple[str, float]]]", pipe.execute())

        at_once = range(0, SHARDS, SHARDS_AT_ONCE)
        parts = [self._ledger.with_retries(partial(fetch, range(start, start + SHARDS_AT_ONCE))) for start in at_once]
        newest = sorted((pair for part in parts for pairs in part for pair in pairs), key=lambda pair: (-pair[1], pair[0]))[:most]

        def fetch_lengths() -> list[int]:
            with redis.pipeline(transaction=False) as pipe:
                for scope, _ in newest:
                    pipe.llen(_key(redis, scope, "history"))
                    pipe.llen(_key(redis, scope, "queue"))
                return cast("list[int]", pipe.execute())

        lengths = self._ledger.with_retries(fetch_lengths)
        return [
            SessionInfo(session=unquote(scope.removeprefix(f"{tenant}/")), entries=entries, waiting=waiting, last_used_at=at_ms / 1000)
            for (scope, at_ms), entries, waiting in zip(newest, lengths[::2], lengths[1::2], strict=True)
            if entries or waiting
        ]

    def _scope(self, session: str) -> str:
        if fault := fault_of(session):
            raise ValueError(fault)
        return scoped(self._tenant, session)


def newest_first(ledger: Ledger, scope: str) -> Iterator[HistoryEntry]:
    """What was said in the session with this scoped name, newest first, read as far as it is wanted."""
    key = _key(ledger.redis, scope, "history")
    for start in count(0, PAGE):
        texts = cast("list[str]", ledger.with_retries(partial(ledger.redis.lrange, key, -start - PAGE, -start - 1)))
        yield from (HistoryEntry.model_validate(json.loads(text)) for text in reversed(texts))
        if len(texts) < PAGE:
            return


def _key(redis: object, scope: str, part: str) -> str:
    return f"{shard_key(redis, shard_of_session(scope))}:session:{scope}:{part}"
