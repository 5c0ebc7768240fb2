"""dramatiq on the same Redis: pipelines, and groups with a completion callback; results kept, two worker processes.

A pipeline cannot hold a group, so the step before the hundred starts them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]
from dramatiq.middleware import GroupCallbacks  # type: ignore[import-not-found]
from dramatiq.rate_limits.backends import RedisBackend as Barriers  # type: ignore[import-not-found]
from dramatiq.results import Results  # type: ignore[import-not-found]
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]

from tests.bench.peers.timing import noop, tell

PROCESSES = 2
PATIENCE_MS = 120_000

url = os.environ["PEER_URL"]
broker = RedisBroker(url=url)
broker.add_middleware(Results(backend=RedisBackend(url=url)))
broker.add_middleware(GroupCallbacks(Barriers(url=url)))
dramatiq.set_broker(broker)


def split(join_id: str) -> int:
    """The step before the hundred: it starts them, and says what follows when all are done."""
    hundred = dramatiq.group([step.message() for _ in range(100)])
    hundred.add_completion_callback(step.message().copy(message_id=join_id))
    hundred.run()
    return 1


step = dramatiq.actor(noop, actor_name="noop", store_results=True)
split_step = dramatiq.actor(split, actor_name="split", store_results=True)


def row() -> None:
    """Ten steps, one after the other."""
    dramatiq.pipeline([step.message() for _ in range(10)]).run().get_result(block=True, timeout=PATIENCE_MS)


def diamond() -> None:
    """A step, a hundred at once, and one that waits for all."""
    join = step.message()
    split_step.send(join.message_id)
    join.get_result(block=True, timeout=PATIENCE_MS)


def rows() -> None:
    """Fifty pipelines at once."""
    running = [dramatiq.pipeline([step.message() for _ in range(10)]).run() for _ in range(50)]
    for each in running:
        each.get_result(block=True, timeout=PATIENCE_MS)


def main() -> None:
    """Time the shapes."""
    command = [sys.executable, "-m", "dramatiq", "tests.bench.peers.dramatiq_peer", "--processes", str(PROCESSES)]
    workers = subprocess.Popen([*command, *sys.argv[1:]], stdout=subprocess.DEVNULL)
    try:
        tell({"row of 10": row, "1 → 100 → 1": diamond, "50 rows of 10 at once": rows})
    finally:
        workers.terminate()
        workers.wait(30)


if __name__ == "__main__":
    main()
