"""A stack that may be hurt: two workers of each sort, a model server, a journal, and the file that arms fault points."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import cast

from cantata.client.client import Client
from cantata.client.runs import Run
from cantata.engine.fleet import registry
from cantata.operation.embedded import Stack, StackProcess
from cantata.operation.embedded.stack_plan import worker_command
from cantata.testing import Rule, ScriptedModels
from cantata.testing.answers import JsonObject
from cantata.testing.rules import ToolCall
from cantata_workers.models.llm import CHARACTERS_PER_TOKEN
from tests.faults import formats
from tests.faults.approver import Approver
from tests.faults.journal import Journal
from tests.faults.processes import children, family
from tests.faults.shapes import (
    CHIEF,
    CLERK,
    FIRST,
    FIRST_CALLS,
    HAND,
    HERE,
    HOOK,
    JUDGE,
    LOOPS,
    PIECES,
    ROUND,
    ROUTER,
    SCOUT,
    SECOND,
    SECOND_CALL,
    Shape,
    answer_of_clerk,
    answer_of_hand,
    definitions,
    rerouted,
    taken,
)
from tests.integration.receiver import Receiver, receiving
from tests.waiting import until

ASKED = re.compile(r"(?P<agent>\w+) <(?:.*\n\nCurrent Input:\n)?(?P<text>(?P<tag>[^ >]+)[^>]*)>", re.DOTALL)
"""What a model of the suite is asked, after what was said before if it is told that."""
ROUNDS = {0: 0, len(FIRST_CALLS): 1, len(FIRST_CALLS) + 1: 2}
"""How many results of tools a model is shown → which turn it is asked for."""
LATE = ("bob", SECOND, *ROUND, "fay", formats.SOURCES[1])
"""Whose model lets a run linger."""
LINGER_S = 1.5  # longer than a renewal, so that a step that lingers has its lease renewed
READY_S = 120.0  # a supervisor that had to start a worker often waits up to 30 s
CREW = {
    "agents-2": ("tools-2", "tools", 2),
    "agents-3": ("coordinator-2", "coordinator", 4),
    "agents-4": ("tasks-2", "tasks", 8),
}
"""The stack knows one worker for tools, one for tasks and one coordinator; three of its agents workers become a second of each."""

WORKERS = {
    **{name: name for name in ("coordinator", "agents", "tools", "tasks")},
    **{name: role for name, (role, *_) in CREW.items()},
}
"""The stack's name of each worker → what it really is."""


class Models(ScriptedModels):
    """Writes into the journal who asked for which turn; the answer is the echo, and comes late for some agents of a run that lingers.

    For the agent with tools it is calls of a tool, one of which lingers, then another, then what came back. A router chooses one agent, who
    has it choose again, then the other.
    """

    def __init__(self, journal: Journal) -> None:
        late = Rule(match=rf"(?s)^({'|'.join(LATE)}) <.* linger( again)?>$", delay_s=LINGER_S)
        super().__init__(
            [late, *_rules_of_router(), *_rules_of_hand(journal), *_rules_of_workflow(journal), *_rules_of_desk()]
        )
        self._lines = journal

    def receive(self, body: JsonObject, authorization: str | None) -> tuple[Rule, JsonObject]:
        """Write a request down."""
        rule, entry = super().receive(body, authorization)
        asked, results = ASKED.match(str(entry["text"])), _results(body)
        assert asked, f"an agent of the suite asks as it was instructed, not {entry['text']!r}"
        agent, text = asked["agent"], asked["text"]
        sent = len(json.dumps(body["messages"], ensure_ascii=False)) // CHARACTERS_PER_TOKEN + 1
        turn = _round(agent, text, len(results))
        self._lines.write(
            "asked", agent=agent, tag=asked["tag"], round=turn, about_tokens=2 * sent
        )  # the answer is an echo at most
        if agent in REPLIES and not rule.tool_calls:
            rule = rule.model_copy(update={"reply": REPLIES[agent](text, results)})
        return rule, entry


def _round(agent: str, text: str, results: int) -> int:
    """For which of its turns a model is asked, from 0; -1 if that is none."""
    if agent == ROUTER:
        return int(text.endswith(rerouted("")))
    if agent == JUDGE:
        return int(text.rpartition("#")[2]) - 1
    return results if agent == CLERK else ROUNDS.get(results, -1)


REPLIES: Mapping[str, Callable[[str, Sequence[str]], str]] = {
    HAND: lambda text, results: answer_of_hand(f"{HAND} <{text}>", results),
    FIRST: lambda text, _: f"[REROUTE] {rerouted(text)}",
    SECOND: lambda text, _: f"[FINAL] {SECOND} <{text}>",
    **dict.fromkeys(ROUND, lambda text, _: taken(text)),
    CLERK: lambda text, results: json.dumps({"answer": answer_of_clerk(text, results)}),
}
"""What models say that do not echo, by what they are asked and what came back from tools."""


def _rules_of_router() -> list[Rule]:
    return [
        Rule(match=f"^{ROUTER} <.*{rerouted('')}>", reply={"chosen_agent": SECOND, "refined_query": None}),
        Rule(match=f"^{ROUTER} <", reply={"chosen_agent": FIRST}),
    ]


def _rules_of_hand(journal: Journal) -> list[Rule]:
    def calls(*values: int, last_s: float = 0.0) -> tuple[ToolCall, ...]:
        given: list[JsonObject] = [{"journal": str(journal.path), "value": value} for value in values]
        given[-1]["seconds"] = last_s
        return tuple(ToolCall(name="work", arguments=each) for each in given)

    return [
        Rule(match=f"^{HAND} <.* linger>$", after_tools=0, tool_calls=calls(*FIRST_CALLS, last_s=LINGER_S)),
        Rule(match=f"^{HAND} <", after_tools=0, tool_calls=calls(*FIRST_CALLS)),
        Rule(match=f"^{HAND} <", after_tools=len(FIRST_CALLS), tool_calls=calls(SECOND_CALL)),
    ]


def _rules_of_workflow(journal: Journal) -> list[Rule]:
    """Where to write to, and how long to take for it; then that the loop is over in its last round."""

    def go(seconds: float) -> JsonObject:
        return {"go": True, "journal": str(journal.path), "seconds": seconds, "rounds": 0}

    rounds: list[JsonObject] = [{"good": number == LOOPS, "rounds": number} for number in range(1, LOOPS + 1)]
    return [
        Rule(match=f"^{SCOUT} <.* linger>$", reply=go(LINGER_S)),
        Rule(match=f"^{SCOUT} <", reply=go(0.0)),
        *(Rule(match=f"^{JUDGE} <.* #{number}>$", reply=reply) for number, reply in enumerate(rounds, 1)),
    ]


def _rules_of_desk() -> list[Rule]:
    def call(seconds: float) -> tuple[ToolCall, ...]:
        return (ToolCall(name="price", arguments={"pieces": PIECES, "seconds": seconds}),)

    return [
        Rule(match=f"^{CHIEF} <", reply={"next_agent": CLERK}),
        Rule(match=f"^{CLERK} <.* linger>$", after_tools=0, tool_calls=call(LINGER_S)),
        Rule(match=f"^{CLERK} <", after_tools=0, tool_calls=call(0.0)),
    ]


def _results(body: JsonObject) -> list[str]:
    """What tools gave, as a model is shown it."""
    messages = cast("list[JsonObject]", body["messages"])
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


class Stage:
    """A stack under way, with what is known of it outside Redis."""

    def __init__(self, client: Client, stack: Stack, folder: Path, journal: Journal, hook: Receiver) -> None:
        self.client = client
        self.hook = hook
        """Where the ends of some runs are posted to."""
        self.stack = stack
        self.folder = folder
        self.journal = journal
        self.fault = folder / "fault"
        """Where a strike is written for the first process that comes to its point."""
        self.clients: list[subprocess.Popen[bytes]] = []
        """Processes that submitted and may stand still."""
        self._numbers = count(1)
        self._together: dict[str, Sequence[Run]] = {}
        self._approver = Approver()
        self.user_worker: subprocess.Popen[bytes] | None = None
        """What keeps up a worker of the user's own application, from the first run on that calls its tasks."""

    def prepare(self, shape: Shape) -> None:
        """Do what is to be over before runs of a shape are struck."""
        if shape.forked_at:
            shape.source(self.client, self.journal.path)

    def submit(self, shape: Shape, tag: str, *, linger_s: float = 0.0, client: Client | None = None) -> Run:
        """Submit a run, and write down that it was accepted; of the turns of a session it is the last."""
        if shape.name == "task" and not self.user_worker:
            self.start_user_worker()
        runs = shape.submit(client or self.client, tag, self.journal.path, linger_s=linger_s)
        for run, (own, expected) in zip(runs, shape.expects(tag, linger_s), strict=True):
            self.journal.write("accepted", run_id=run.run_id, tag=own, shape=shape.name, expected=expected)
        self._together[runs[-1].run_id] = runs
        self._approver.approve(runs[-1], shape.signals)
        return runs[-1]

    def together(self, run: Run) -> Sequence[Run]:
        """The runs that were submitted with this one, which is the last of them."""
        return self._together[run.run_id]

    def workers(self) -> dict[str, StackProcess]:
        """The supervisor's workers that are alive, by what they are."""
        return {WORKERS[each.name]: each for each in self.stack.processes() if each.name in WORKERS and each.alive}

    def valkey(self) -> int:
        """The server's process; 0 while it is away."""
        return next(
            (process.pid for process in self.stack.processes() if process.name == "valkey" and process.alive), 0
        )

    def everybody(self) -> list[int]:
        """All processes that work, with their children."""
        return [pid for process in self.workers().values() for pid in family(process.pid)]

    def worker_of(self, pid: int) -> int:
        """The worker that a process belongs to: itself, or its parent."""
        return next((each.pid for each in self.workers().values() if pid in (each.pid, *children(each.pid))), pid)

    def note_frozen(self, pid: int, seconds: float) -> None:
        """Write down that a process stands still for so long."""
        self.journal.write("frozen", pid=pid, until=time.time() + seconds)

    def close(self) -> None:
        """Wait until nobody submits or approves any more."""
        for submitter in self.clients:
            submitter.wait()
        self._approver.close()

    def wait_whole(self) -> None:
        """Wait until all workers are there and say so."""

        def is_whole() -> bool:
            announced = {worker.pid for worker in registry.workers(self.client.redis)}
            pids = {process.pid for process in self.workers().values()}
            return len(pids) == len(WORKERS) and pids <= announced

        until(is_whole, "the whole fleet", READY_S)

    @contextmanager
    def extra_worker(
        self, queue: str, *, program: tuple[str, ...] = ("-m", "cantata_workers"), **environment: str
    ) -> Iterator[int]:
        """One more worker, outside the stack, ready when the block begins: its process, which leads a group of its own."""
        worker = self.start_worker(queue, program=program, **environment)
        try:
            self.wait_announced(worker.pid)
            yield worker.pid
        finally:
            end(worker)

    def start_worker(
        self, queue: str, *, program: tuple[str, ...] = ("-m", "cantata_workers"), **environment: str
    ) -> subprocess.Popen[bytes]:
        """Begin to start a worker outside the stack."""
        name = f"{queue}-{next(self._numbers)}"
        command = [sys.executable, "-P", *program, queue, "--name", name, "--concurrency", "4"]
        with (self.folder / f"{name}.log").open("ab") as log:
            surroundings = {**os.environ, "REDIS_URL": self.client.redis_url, **environment}
            return subprocess.Popen(command, env=surroundings, stdout=log, stderr=log, start_new_session=True)

    def start_user_worker(self) -> None:
        """Begin to start the user's worker; one that runs is killed before."""
        self.end_user_worker()
        worker = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "fault_tasks",
            "worker",
            "--concurrency",
            "2",
            "--loglevel",
            "WARNING",
        ]
        command = [
            "sh",
            "-c",
            'while :; do "$@"; sleep 1; done',
            "sh",
            *worker,
        ]  # Celery's workers exit if Redis is full
        with (self.folder / "user-worker.log").open("ab") as log:
            surroundings = {**os.environ, "REDIS_URL": self.client.redis_url}
            self.user_worker = subprocess.Popen(
                command, env=surroundings, cwd=HERE, stdout=log, stderr=log, start_new_session=True
            )

    def end_user_worker(self) -> None:
        """Kill all processes of the user's worker."""
        if self.user_worker:
            for pid in family(self.user_worker.pid):
                self.journal.write("killed", pid=pid)
            end(self.user_worker)

    def wait_announced(self, pid: int) -> None:
        """Wait until a worker takes work."""
        until(
            lambda: pid in [worker.pid for worker in registry.workers(self.client.redis)], f"the worker {pid}", READY_S
        )


def end(worker: subprocess.Popen[bytes]) -> None:
    """Make sure that nothing is left of a worker."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


@contextmanager
def stage(folder: Path, *, drain_s: float = 8.0, armed: bool = False, server_only: bool = False) -> Iterator[Stage]:
    """A stack with its home in a folder; its logs and journal stay there. With `server_only` nobody works."""
    journal = Journal(folder / "journal.jsonl")
    fault = {"CANTATA_FAULT": f"@{folder / 'fault'}"} if armed else {}
    with (
        Models(journal) as models,
        receiving() as hook,
        _environment(
            OPENAI_API_BASE=models.url,
            OPENAI_API_KEY="sk-faults",
            CANTATA_WEBHOOK_SECRET="hook",
            CANTATA_DRAIN_S=str(drain_s),
            **fault,
        ),
        _stack(folder / "home", server_only=server_only) as stack,
        Client(stack.url, config=definitions()) as client,
    ):
        formats.write_desk(folder)
        (folder / HOOK).write_text(hook.url)
        stage = Stage(client, stack, folder, journal, hook)
        try:
            yield stage
            stage.close()
        finally:
            stage.end_user_worker()


def _stack(home: Path, *, server_only: bool) -> Stack:
    """Start a stack whose workers know the user's application; this process does not."""
    with _environment(CANTATA_APP="fault_tasks:app"), chdir(HERE):
        return Stack.start(home, agents=4, tools=2, command=_command, server_only=server_only)


def _command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
    name, queue, concurrency = CREW.get(name, (name, queues[0], concurrency))
    return worker_command(name, (queue,), concurrency)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
