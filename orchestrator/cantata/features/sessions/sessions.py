"""Sessions: the conversations of a tenant, for programs and surfaces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from cantata.errors import ConfigError
from cantata.flows.wire import HistoryEntry, SessionInfo, fault_of_session
from cantata.ledger import conversations
from cantata.ledger.conversations import key_of, scoped, shard_of_session
from cantata.ledger.ledger import Ledger


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
        return conversations.history(self._ledger, self._scope(session), most)

    def waiting(self, session: str) -> list[str]:
        """Return the open runs of its turns: the current one, then those that wait."""
        key = key_of(self._ledger.redis, self._scope(session), "queue")
        return cast("list[str]", self._ledger.with_retries(partial(self._ledger.redis.lrange, key, 0, -1)))

    def conversation(self, session: str, most: int | None = None) -> tuple[Sequence[HistoryEntry], Sequence[str]]:
        """Return the newest messages, oldest first, and the open runs. Raises ConfigError if it has neither, or for an invalid name."""
        if fault := fault_of_session(session):
            raise ConfigError(fault, source="session")
        entries, waiting = self.history(session, most), self.waiting(session)
        if not entries and not waiting:
            raise ConfigError(
                f"no conversation {session!r} is kept here; `submit sessions list` shows those kept",
                code="unknown_session",
            )
        return entries, waiting

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
        return conversations.last_used(self._ledger, self._tenant, most)

    def _scope(self, session: str) -> str:
        if fault := fault_of_session(session):
            raise ValueError(fault)
        return scoped(self._tenant, session)
