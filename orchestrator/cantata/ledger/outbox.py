"""The outbox: events that are to be posted to webhooks, and the creation of the runs that post them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cantata.ledger.encoding import ready_of_runs
from cantata.ledger.records import Ready
from cantata.ledger.scripts import ScriptCaller

CREATED_AT_ONCE = 10  # runs, by one call, which takes Redis about 0.2 ms each: all of one event of a request
TENANTS_AT_ONCE = 20  # of each shard, that are looked for at once


class Created(NamedTuple):
    """The result of one call for one tenant in one shard."""

    ready: tuple[tuple[str, Ready], ...]
    """The first steps of the new runs, to be sent."""
    has_more: bool
    """Further ones can be created now."""
    faults: tuple[tuple[str, str], ...]
    """Runs, with the error for which an event of theirs can never be posted."""


class Outbox:
    """The outboxes of a ledger's tenants. An event that is to be posted is one entry, whatever the number of its webhooks.

    A tenant has an outbox in each shard, so that one with thousands of events delays no other.
    """

    def __init__(self, caller: ScriptCaller) -> None:
        self._caller = caller

    def due(self, shards: Sequence[int]) -> list[tuple[int, str]]:
        """Return the shards and tenants for which runs are to be created now."""
        found = self._caller.read_shards("ledger/outbox_due", shards, str(TENANTS_AT_ONCE))
        return [(part[flat[i] - 1], str(flat[i + 1])) for part, flat in found for i in range(0, len(flat), 2)]

    def create(self, shard: int, tenant: str, shards: Sequence[int], *, most: int = CREATED_AT_ONCE) -> Created:
        """Create the next runs of a tenant in a shard, as far as its quota of open deliveries in `shards` has room. Safe to repeat."""
        others = [each for each in shards if each != shard]
        elsewhere = (
            sum(found[0] for _, found in self._caller.read_shards("ledger/open_deliveries", others, tenant))
            if others
            else 0
        )
        following, has_more, faults = self._caller.call_shard("ledger/outbox", shard, tenant, most, elsewhere)
        return Created(ready_of_runs(following), bool(has_more), tuple(zip(faults[::2], faults[1::2], strict=True)))
