"""Memory bank for programs: it finds its Redis as the client does."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cantata.features.memory import memory_store
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import check, connect
from cantata.operation.embedded import stack_url
from cantata.settings import settings

MAX_OUTAGE_S = 5.0  # how long a call to Redis is repeated while Redis is away


class MemoryBank(memory_store.MemoryStore):
    """Values by key and namespace, kept in Redis: of one tenant, or of one of its sessions.

    `redis_url` is REDIS_URL if None, else the stack that `submit up` keeps in this folder. Raises UnavailableError if there is none.
    """

    def __init__(self, redis_url: str | None = None, *, tenant: str = "", session: str | None = None) -> None:
        url = redis_url or settings().redis_url or stack_url()
        self._redis = connect(url)
        self.warnings = check(self._redis, url=url)
        super().__init__(Ledger(self._redis, patience_s=MAX_OUTAGE_S), tenant=tenant, session=session)

    def close(self) -> None:
        """Close the connections, also those of banks that `of` returned; stored values stay."""
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
