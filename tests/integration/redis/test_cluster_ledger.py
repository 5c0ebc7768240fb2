"""The ledger's own tests of what lies over many keys, on a cluster: sessions, forks, lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from tests.integration.features.batches import test_batches
from tests.integration.features.forks import test_forks
from tests.integration.features.sessions import test_sessions
from tests.integration.features.webhooks import test_webhooks
from tests.integration.redis.servers import Clustered
from tests.integration.state import test_listing, test_outputs, test_sizes, test_timeline
from tests.integration.state.invariants import check_all

pytestmark = pytest.mark.thorough(
    "another Redis; what each room of it does on a cluster is held by redis/test_cluster.py"
)

SHARED = (test_batches, test_forks, test_listing, test_outputs, test_timeline, test_sessions, test_sizes, test_webhooks)
LONG = ("ten_thousand", "any_size", "large_run", "million", "share_of_failures", "cannot_begin")
"""Tests of size, which is no other on a cluster, and of a client, which connects to one Redis."""

store = test_batches.store

globals().update(
    {
        name: value
        for module in SHARED
        for name, value in vars(module).items()
        if name.startswith("test_") and not any(word in name for word in LONG)
    }
)


@pytest.fixture(scope="module")
def valkey(clustered: Clustered) -> Iterator[Redis]:
    """The cluster in the place of the one Valkey of those tests."""
    with connect(clustered.url) as redis:
        yield redis


@pytest.fixture
def ledger(valkey: Redis) -> Iterator[Ledger]:
    """A ledger without runs; what a test leaves in it must be sound."""
    valkey.flushdb()
    yield Ledger(valkey)
    check_all(valkey)
