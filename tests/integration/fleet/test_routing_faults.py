"""Teams and sessions through real workers that are killed at named points, a Redis that is killed, and texts and names that are odd."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.errors import ConfigError
from cantata.flows.definitions import Agent, Definitions, Limits
from cantata.operation.embedded.stack_plan import worker_command
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import definitions
from tests.integration.fleet.test_kills import pid_of
from tests.integration.fleet.test_routing import MODEL, Stage, chosen
from tests.waiting import until

PATIENCE_S = 60.0
KEPT_BYTES = 32_768
names = itertools.count()


class Victim(Stage):
    """A stage whose workers can be struck."""

    def __init__(self, client: EmbeddedClient, models: ScriptedModels, folder: Path) -> None:
        super().__init__(client.redis_url, models)
        self.embedded = client
        self._folder = folder

    def strike(self, role: str, where: str) -> None:
        """Let the next worker of a role die that comes to a point."""
        (self._folder / role).write_text(where)

    def wait_struck(self, role: str) -> None:
        """Wait until it has."""
        until(lambda: not (self._folder / role).exists(), f"a strike at {role}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where strikes are written, a file for each role."""
    return tmp_path_factory.mktemp("strikes")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels, folder: Path) -> Iterator[EmbeddedClient]:
    """A stack whose workers can be struck."""

    def command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
        usual = worker_command(name, queues, concurrency)
        where = usual.index("cantata_workers")
        return [*usual[:where], "tests.integration.fleet.struck_worker", str(folder / queues[0]), *usual[where + 1 :]]

    with Client.embedded(
        tmp_path_factory.mktemp("struck"), config=definitions(), agents=2, tools=2, command=command
    ) as client:
        yield client


@pytest.fixture
def victim(stack: EmbeddedClient, models: ScriptedModels, folder: Path) -> Iterator[Victim]:
    """Where router teams are asked on that stack."""
    victim = Victim(stack, models, folder)
    yield victim
    victim.close()


def session_of() -> str:
    """The name of a session that no other test has."""
    return f"faulty {next(names)}"


def said(client: Client, session: str) -> list[tuple[str, str]]:
    return [(entry.role, entry.content) for entry in client.sessions.history(session)]


# workers


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
@pytest.mark.parametrize(
    ("where", "asked"),
    [("model-answered:1:kill", 2), ("committed:1:kill", 1), ("graph-expanded:1:kill", 1)],
    ids=["before its reply is recorded", "before its reply is read", "before the agent that it chose runs"],
)
def test_a_router_whose_worker_is_killed_is_asked_again_only_if_its_reply_is_lost(
    victim: Victim, where: str, asked: int
) -> None:
    victim.script(chosen("poet"), {"match": "^poet", "reply": "verse"})
    client = victim.client()
    victim.strike("agents", where)

    run = client.submit_turn("hello", team="team")
    victim.wait_struck("agents")
    result = run.result(PATIENCE_S)

    assert (result.status, result.output, result.agents) == ("succeeded", "verse", ["poet"])
    assert (len(victim.routed()), len(victim.asked())) == (asked, 1)


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_a_chosen_agent_whose_worker_is_killed_is_asked_again_and_its_router_is_not(victim: Victim) -> None:
    victim.script(chosen("poet"), {"match": "^poet", "delay_s": 30, "times": 1}, {"match": "^poet", "reply": "verse"})
    run = victim.client().submit_turn("hello", team="team")
    until(victim.asked, "the agent's request")

    os.kill(int(run.record().steps["poet"].worker.rpartition("#")[2]), signal.SIGKILL)

    assert run.result(PATIENCE_S).output == "verse"
    assert (len(victim.routed()), len(victim.asked())) == (1, 2)


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
@pytest.mark.parametrize(
    "where", ["rotation-replied:1:kill", "committed:2:kill"], ids=["before it is recorded", "when it is recorded"]
)
def test_no_agent_loses_its_turn_when_the_worker_that_gives_it_is_killed(victim: Victim, where: str) -> None:
    client, session = victim.client(mode="round_robin"), session_of()
    victim.strike("coordinator", where)

    runs = [client.submit_turn("x", team="team", session=session) for _ in range(4)]
    victim.wait_struck("coordinator")

    assert [run.result(PATIENCE_S).agents for run in runs] == [["math"], ["poet"], ["clerk"], ["math"]]
    assert len(victim.asked()) == 4


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
@pytest.mark.parametrize("where", ["run-closed:1:kill", "successors-sent:1:kill"])
def test_a_turn_that_waits_runs_though_the_worker_that_ended_the_one_before_was_killed(
    victim: Victim, where: str
) -> None:
    client, session = victim.client(), session_of()
    victim.strike("agents", where)

    runs = [client.submit_turn(text, agent="clerk", session=session) for text in ("one", "two", "three")]
    victim.wait_struck("agents")

    assert runs[-1].result(PATIENCE_S).status == "succeeded"
    assert [content for role, content in said(client, session) if role == "user"] == ["one", "two", "three"]
    lost = sum(
        event.type == "lost" for run in runs for event in run.log()
    )  # the next turn may have begun where the one before ended
    assert 3 <= len(victim.asked()) <= 3 + lost


# Redis


@pytest.mark.thorough("a restarted Redis is held by gateway/test_chat.py")
@pytest.mark.slow("a Redis is ended and started again")
def test_a_chat_goes_on_when_redis_is_killed_in_the_middle_of_it(tmp_path: Path, models: ScriptedModels) -> None:
    session, texts = session_of(), [f"text {n}" for n in range(5)]
    with Client.embedded(tmp_path, config=definitions(), agents=1, tools=1) as embedded:
        stage = Stage(embedded.redis_url, models)
        stage.script({"match": "<text 1>", "delay_s": 3.0, "reply": "late"})
        client = stage.client()
        runs = [client.submit_turn(text, agent="poet", session=session) for text in texts]
        until(lambda: len(stage.asked()) >= 2, "the second turn")

        os.kill(pid_of(embedded, "valkey"), signal.SIGKILL)
        until(lambda: len(stage.asked()) >= 5, "the last turn", PATIENCE_S)

        assert [run.result(PATIENCE_S).status for run in runs] == ["succeeded"] * 5
        answers = [f"echo: poet <{text}>" if text != "text 1" else "late" for text in texts]
        assert said(client, session)[::2] == [("user", text) for text in texts]
        assert said(client, session)[1::2] == [("assistant", answer) for answer in answers]
        assert client.sessions.waiting(session) == []
        assert [len(request["body"]["messages"]) for request in stage.requests(MODEL)] == [1, 3, 5, 7, 9]
        stage.close()


# texts and names


def test_a_megabyte_of_text_reaches_router_and_agent_whole_and_is_kept_in_part(victim: Victim) -> None:
    victim.script(chosen("poet"), {"match": "^poet", "reply": "[FINAL] too long"})
    client, session, text = victim.client(), session_of(), "ü" * 500_000

    result = client.submit_turn(text, team="team", session=session).result(PATIENCE_S)
    following = client.submit_turn("shorter", team="team", session=session).result(PATIENCE_S)

    assert (result.output, following.output) == ("too long", "too long")
    assert text in victim.routed()[0]
    assert victim.asked()[0] == f"poet <{text}>"
    kept = said(client, session)[0][1]
    assert kept.startswith("üüü")
    assert len(kept.encode()) == KEPT_BYTES + len("…".encode())
    assert "Assistant: too long" in victim.routed()[1], "what fits is shown to the router, the long text is not"
    assert "üüü" not in victim.routed()[1]


def test_more_text_than_a_request_may_have_is_refused(victim: Victim) -> None:
    small = Definitions(agents={"math": Agent(model=MODEL)}, limits=Limits(input_bytes=1000))
    with (
        Client(victim.embedded.redis_url, config=small) as client,
        pytest.raises(ConfigError, match=r"limits\.input_bytes"),
    ):
        client.submit_turn("x" * 1000, agent="math", session=(session := session_of()))

    assert client.sessions.waiting(session) == []


def test_two_clients_may_send_turns_of_a_session_at_once(victim: Victim) -> None:
    clients, session = [victim.client(), victim.client()], session_of()

    def send(number: int) -> str:
        run = clients[number % 2].submit_turn(f"text {number}", agent="clerk", session=session)
        return str(run.result(PATIENCE_S).output)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))

    assert answers == [f"echo: clerk <text {number}>" for number in range(6)]
    entries = said(clients[0], session)
    assert len(entries) == 12
    pairs = {(asked[1], answer[1]) for asked, answer in zip(entries[::2], entries[1::2], strict=True)}
    assert pairs == {(f"text {number}", answer) for number, answer in enumerate(answers)}
    assert [len(request["body"]["messages"]) for request in victim.requests(MODEL)] == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("name", ["a b", "a/b", "{1}", "a|b:c", "ü-字-🎼", "%2F", "..", "*", "x" * 200])
def test_a_session_may_have_any_name_that_can_be_printed(victim: Victim, name: str) -> None:
    client = victim.client(mode="round_robin")
    name = f"{name[:190]}{next(names)}"

    first, second = (client.submit_turn(text, team="team", session=name) for text in ("one", "two"))

    assert (first.result(PATIENCE_S).agents, second.result(PATIENCE_S).agents) == (["math"], ["poet"])
    assert [content for role, content in said(client, name) if role == "user"] == ["one", "two"]
    assert name in [each.session for each in client.sessions.list()]
    assert client.sessions.clear(name) == 4


@pytest.mark.parametrize(
    ("name", "why"), [("", "empty"), (" ", "empty"), ("a\nb", "cannot be printed"), ("x" * 201, "201 characters")]
)
def test_a_session_without_a_name_that_can_be_one_is_refused(victim: Victim, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        victim.client().submit_turn("hello", agent="math", session=name)
