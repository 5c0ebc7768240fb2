"""Who follows a run's events sees each once and in order, however often the connection is cut."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from cantata.bounds import OutOfBoundsError
from cantata.client.client import Client, EmbeddedClient
from cantata.flows.events import ReplyDelta, RunEvent
from cantata.ledger.redis.connection import connect
from cantata.ledger.runs import event_log
from tests.integration.fleet.agent_stage import PATIENCE_S, AgentStage, agent
from tests.waiting import until

FOLLOWERS = 10
CUTS = 200  # of all followers together, at least: half of them by themselves, the rest by the server
WORDS = [f"word-{number}" for number in range(400)]
PIECE_S = 0.01


class Follower:
    """Follows a run with a client of its own, and hangs up itself now and then."""

    def __init__(self, client: Client, number: int) -> None:
        self.name = f"follower-{number}"
        self.hung_up = 0
        self._chance = random.Random(number)
        self._client = client
        client.ledger.redis = connect(client.redis_url, owner=self.name)

    def follow(self, run_id: str) -> list[RunEvent]:
        """All events of a run."""
        seen: list[RunEvent] = []
        while not seen or seen[-1].type != "closed":
            seen += self._some(run_id, seen[-1].seq if seen else 0)
        return seen

    def _some(self, run_id: str, after: int) -> Iterator[RunEvent]:
        hangs_up = self.hung_up < CUTS / FOLLOWERS / 2
        most = self._chance.randint(1, 6) if hangs_up else None
        for number, event in enumerate(self._client.run(run_id).log(after), 1):
            yield event
            if number == most:
                self._client.redis.connection_pool.disconnect()
                self.hung_up += 1
                return


@pytest.mark.slow("two hundred connections are lost, one by one")
def test_events_have_no_gap_and_no_repeat_over_200_lost_connections(stage: AgentStage) -> None:
    stage.script({"reply": " ".join(WORDS), "chunk_delay_s": PIECE_S})
    client = stage.client(agent(instructions=["{input}"], stream=True))
    nodes = [
        {"node_id": "say", "kind": "agent", "name": "it", "input": {"text": "go"}, "next_node": "gate"},
        {"node_id": "gate", "kind": "wait"},
    ]
    run = client.submit_chain({"nodes": nodes, "entry_node": "say"})
    until(
        lambda: any(event.type == "delta" for event in event_log.read(client.redis, run.run_id)),
        "the first words",
        PATIENCE_S,
    )

    with ExitStack() as stack, ThreadPoolExecutor(FOLLOWERS) as pool:
        followers = [
            Follower(stack.enter_context(Client(client.redis_url, config=client.definitions)), n)
            for n in range(FOLLOWERS)
        ]
        names = [follower.name for follower in followers]
        with _killed(client.redis) as killed:
            following = [pool.submit(follower.follow, run.run_id) for follower in followers]
            try:
                until(
                    lambda: cuts_of(killed, followers) >= CUTS and all(map(killed.get, names)),
                    "so many cuts, some of each",
                    PATIENCE_S,
                )
            finally:
                run.signal("gate", True)
            stories = [each.result(PATIENCE_S) for each in following]

    (story,) = {tuple(event.model_dump_json() for event in story) for story in stories}
    assert [event.seq for event in stories[0]] == list(range(1, len(story) + 1))
    told = "".join(event.text for event in stories[0] if isinstance(event, ReplyDelta))
    assert told == run.result(PATIENCE_S).outputs["say"] == " ".join(WORDS)


def cuts_of(killed: Counter[str], followers: Sequence[Follower]) -> int:
    """How often the server and the followers hung up."""
    return sum(list(killed.values())) + sum(follower.hung_up for follower in followers)


@contextmanager
def _killed(redis: Redis) -> Iterator[Counter[str]]:
    """Cut the followers' connections, one at a time, while the block lasts; tells how often whose."""
    killed: Counter[str] = Counter()
    is_over = threading.Event()
    chance = random.Random(0)

    def kill() -> None:
        while not is_over.wait(chance.uniform(0, 2 * PIECE_S)):
            connected = [each for each in redis.client_list() if each["name"].startswith("cantata:follower-")]
            if connected:
                victim = chance.choice(connected)
                killed[victim["name"].removeprefix("cantata:")] += redis.client_kill_filter(_id=victim["id"])

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


def test_a_quiet_run_is_followed_over_lost_connections(client: EmbeddedClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "BLOCK_MS", 1)
    run = client.submit_chain({"nodes": [{"node_id": "gate", "kind": "wait"}], "entry_node": "gate"})
    until(lambda: run.record().steps.get("gate"), "the wait")
    redis = connect(client.redis_url)
    looks = Counter[str]()

    really_exists = redis.exists

    def exists(key: str) -> int:
        if key.endswith(":closed"):
            return int(really_exists(key))
        looks[key] += 1
        if looks[key] % 2:
            raise RedisConnectionError("Connection closed by server.")
        if looks[key] == 6:
            run.signal("gate", {"go": True})
        return 1

    monkeypatch.setattr(redis, "exists", exists)
    seen = list(event_log.follow(redis, run.run_id, timeout_s=PATIENCE_S))

    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type == "closed"


def test_what_is_there_is_told_in_no_time(client: EmbeddedClient) -> None:
    run = client.submit_chain({"nodes": [{"node_id": "gate", "kind": "wait"}], "entry_node": "gate"})

    assert [event.type for event in run.log(timeout_s=0.0)][:1] == ["accepted"]
    with pytest.raises(OutOfBoundsError, match="timeout_s"):
        run.log(timeout_s=-1.0)

    run.cancel()
    assert [event.type for event in run.log(timeout_s=0.0)][-1] == "closed"
