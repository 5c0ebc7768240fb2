"""The shapes of runs that are hurt: what they ask for, and the output they must give."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from cantata.client.client import Client
from cantata.client.runs import ChainRun, Run
from cantata.features.forks.fork_requests import FORKED_FROM
from cantata.flows.definitions import (
    Agent,
    Budget,
    Budgets,
    Chain,
    Defaults,
    Definitions,
    Limits,
    PythonWorkflow,
    Rates,
    Router,
    Synthesizer,
    Team,
    TeamRule,
    Tool,
    Webhook,
)
from cantata.flows.wire import ChainNode, ChainRequest
from tests.faults import formats
from tests.waiting import until

HERE = Path(__file__).parent
AGENTS = ("ann", "bob", "cleo")
HAND = "hand"
"""The agent with tools."""
FIRST_CALLS, SECOND_CALL = (1, 2), 5
"""The values that its model has the tool take: two in the first round, one in the second; then it answers with what came back."""
ROUTER = "route"
"""What the routing model is called where it is asked."""
FIRST, SECOND = "dora", "emil"
"""Whom the router chooses: the first has it choose again, the second answers."""
ROUND = ("ida", "jon", "kim")
"""Those who take turns, and answer alike."""
TALKERS = ("fay", "gil", "hal")
"""Those who take turns in a session, and are told what was said in it."""
SCOUT, JUDGE, LOOPS = "scout", "judge", 2
"""Whom a workflow asks first, who says that its loop is over, and when."""
CHIEF, CLERK, PIECES = "chief", "clerk", 2
"""A conductor, its agent, and of how many pieces that asks the price."""
MODEL = "openai/gpt-4o-mini"
MERGE = "merge <{user_input}> {agent_responses}"
LINGERS = {"seconds": "input.linger_s"}
TASK_LINGERS = {"seconds": "min([input.linger_s, `3`])"}
TASK_S = 10.0  # for a task of the user's application: Celery loses one that it was executing when its worker was killed
ITEMS = 50
CALLS_AT_ONCE = 50
TOKENS_A_RUN = 10_000_000  # a run of the suite takes a few hundred
NEVER_POISON = 100  # attempts; the suite may strike one step more often than a fleet would in a year
SOURCE = "fork-source"
"""The tag of the run that all forks of a stack are made of."""
PATIENCE_S = 180.0  # for that run, which may be hurt too
HOOK = "hook.url"
"""The file that says where the ends of runs are posted to, beside the journal."""
NEWEST = 200  # runs among which a fork is looked for that was made already


@dataclass(frozen=True)
class Shape:
    """A shape of run: a chain of these nodes; if there are none a turn for an agent or a team, or the turns of a session, sent at once."""

    name: str
    nodes: Sequence[ChainNode] = ()
    expected: JsonValue = None
    agent: str | None = None
    team: str | None = None
    answers: Callable[[Sequence[str]], Sequence[JsonValue]] = list
    """The texts of turns → what is answered."""
    session_turns: int = 0
    workflow: str | None = None
    brings: Callable[[Path], Definitions] | None = None
    """The folder of the journal → definitions in place of the suite's."""
    signals: Mapping[str, int] = field(default_factory=dict)
    """What waiting steps are given."""
    forked_at: str | None = None
    """The step from which a finished run of these nodes is done anew."""

    def submit(self, client: Client, tag: str, journal: Path, *, linger_s: float = 0.0) -> list[Run]:
        """Submit one whose slow step takes `linger_s`. The same tag is the same run, however often it is told."""
        if self.brings:
            client = client.with_definitions(_within_limits(self.brings(journal.parent)))
        if self.forked_at:
            source = self.source(client, journal)
            return [source, _fork(client, source, self.forked_at, {"input.tag": tag, "input.linger_s": linger_s})]
        if self.nodes:
            return [client.submit_chain(self._request(tag, journal, linger_s), idempotency_key=tag)]
        session = session_of(tag) if self.session_turns else None
        return [
            client.submit_turn(
                text, team=self.team, agent=self.agent, workflow=self.workflow, session=session, idempotency_key=own
            )
            for own, text in self._texts(tag, linger_s)
        ]

    def source(self, client: Client, journal: Path) -> ChainRun:
        """The run that forks are made of, when it is over."""
        source = client.submit_chain(self._request(SOURCE, journal, 0.0), idempotency_key=SOURCE)
        source.wait(PATIENCE_S)
        return source

    def _request(self, tag: str, journal: Path, linger_s: float) -> ChainRequest:
        given: dict[str, JsonValue] = {
            "tag": tag,
            "journal": str(journal),
            "linger_s": linger_s,
            "items": list(range(ITEMS)),
        }
        return ChainRequest(nodes=list(self.nodes), entry_node=self.nodes[0].node_id, initial_input=given)

    def expects(self, tag: str, linger_s: float = 0.0) -> list[tuple[str, JsonValue]]:
        """The tag and the output of each run that was submitted with this tag."""
        if self.forked_at:
            return list(zip((SOURCE, tag), self.answers((SOURCE, tag)), strict=True))
        if self.nodes:
            return [(tag, self.answers([tag])[0] if self.expected is None else self.expected)]
        tags, texts = zip(*self._texts(tag, linger_s), strict=True)
        return list(zip(tags, self.answers(texts), strict=True))

    def _texts(self, tag: str, linger_s: float) -> Iterator[tuple[str, str]]:
        """A tag for each turn, and its text; of several the first lingers."""
        for own in [f"{tag}.{number}" for number in range(self.session_turns)] or [tag]:
            yield own, f"{own} linger" if linger_s and own in (tag, f"{tag}.0") else own


def session_of(tag: str) -> str:
    """The session that the turns of a shape belong to: no name that is easy to write down."""
    return f"{tag} ü|/{{0}}"


@dataclass(frozen=True)
class Group(Shape):
    """What a ChainBuilder submits for a group: its own request, with definitions of its own."""

    def submit(self, client: Client, tag: str, journal: Path, *, linger_s: float = 0.0) -> list[Run]:
        """Submit it."""
        ((own, text),) = self._texts(tag, linger_s)
        request, brought = formats.group(MODEL, text)
        return [client.with_definitions(_within_limits(brought)).submit_chain(request, idempotency_key=own)]


@dataclass(frozen=True)
class Scheduled(Shape):
    """A run that a schedule starts at its one time, which has come."""

    def submit(self, client: Client, tag: str, journal: Path, *, linger_s: float = 0.0) -> list[Run]:
        """Create the schedule, and delete it when it has started its run."""
        request = self._request(tag, journal, linger_s).model_dump(exclude_defaults=True)
        client.schedules.create(tag, {"at": datetime.now(UTC).isoformat(), "chain": request}, replace=True)
        runs = until(lambda: client.schedules.get(tag).runs, f"the run of schedule {tag}", PATIENCE_S)
        client.schedules.delete(tag)
        return [client.run(runs[0].run_id)]


def _within_limits(brought: Definitions) -> Definitions:
    """Definitions with the suite's limits."""
    own = definitions()
    return brought.model_copy(update={"limits": own.limits, "defaults": own.defaults})


def _fork(client: Client, source: ChainRun, from_step: str, changes: Mapping[str, JsonValue]) -> Run:
    """The fork with these changes: the one that was made already, if nobody was told of it, or a new one."""
    for record in client.runs(most=NEWEST):
        if record.labels.get(FORKED_FROM) == source.run_id and f'"tag":"{changes["input.tag"]}"' in record.request:
            return client.run(record.run_id)
    return client.fork(source.run_id, from_step, changes=changes)


def _of_all(texts: Sequence[str]) -> list[JsonValue]:
    """The synthesizer's answers."""
    answers = [{name: f"echo: {name} <{text}>" for name in AGENTS} for text in texts]
    return [
        f"echo: merge <{text}> {json.dumps(answer, separators=(',', ':'))}"
        for text, answer in zip(texts, answers, strict=True)
    ]


def _of_hand(texts: Sequence[str]) -> list[JsonValue]:
    return [
        answer_of_hand(f"{HAND} <{text}>", [str(value + 1) for value in (*FIRST_CALLS, SECOND_CALL)]) for text in texts
    ]


def answer_of_hand(asked: str, results: Sequence[str]) -> str:
    """What the model of the agent with tools answers, which shows what came back for its calls."""
    return f"{asked}: {' '.join(results)}"


def _of_second(texts: Sequence[str]) -> list[JsonValue]:
    return [f"{SECOND} <{rerouted(text)}>" for text in texts]


def rerouted(text: str) -> str:
    """What the agent chosen first says is to be asked for next."""
    return f"{text} again"


def _of_round(texts: Sequence[str]) -> list[JsonValue]:
    return [taken(text) for text in texts]


def taken(text: str) -> str:
    """What each of those who take turns answers."""
    return f"taken: {text}"


def _of_talkers(texts: Sequence[str]) -> list[JsonValue]:
    """An echo of all that was said before."""
    said: list[str] = []
    answers: list[JsonValue] = []
    for agent, text in zip(TALKERS, texts, strict=True):
        asked = "\n".join(["Conversation History:", *said, "", "Current Input:", text]) if said else text
        answers.append(f"echo: {agent} <{asked}>")
        said += [f"User: {text}", f"Assistant: {answers[-1]}"]
    return answers


def _of_forks(tags: Sequence[str]) -> list[JsonValue]:
    """Each says its tag, and what was said upstream, where the source was asked."""
    return [f"echo: max <{tag} echo: lou <{SOURCE}>>" for tag in tags]


def _of_workflow(texts: Sequence[str]) -> list[JsonValue]:
    return [f"echo: teller <{text}> echo: wren <{text}> {LOOPS + 1}" for text in texts]


def _of_desk(texts: Sequence[str]) -> list[JsonValue]:
    return [{"answer": answer_of_clerk(text, [str(3 * PIECES)])} for text in texts]


def answer_of_clerk(text: str, results: Sequence[str]) -> str:
    """What the conductor's agent answers with what its tool gave."""
    return f"{CLERK} <{text}>: {' '.join(results)}"


def _of_group(texts: Sequence[str]) -> list[JsonValue]:
    """The outputs of all chains, since a group has no last one."""
    found: list[JsonValue] = []
    for text in texts:
        outputs: dict[str, JsonValue] = {name: f"echo: {name} <{text}>" for name in formats.SOURCES}
        found.append({**outputs, formats.SINK: f"echo: {formats.SINK} <{text}> {' '.join(map(str, outputs.values()))}"})
    return found


def tool(
    node_id: str, name: str = "work", *, next_node: str | None = None, deps: Sequence[str] = (), **reads: str
) -> ChainNode:
    """A tool that writes to the run's journal."""
    return ChainNode(
        node_id=node_id,
        kind="tool",
        name=name,
        next_node=next_node,
        deps=list(deps),
        input_map={"journal": "input.journal", **reads},
    )


def chain(node_id: str, name: str, *, next_node: str | None = None, **reads: str) -> ChainNode:
    """A named chain as a node."""
    return ChainNode(
        node_id=node_id, kind="chain", name=name, next_node=next_node, input_map={"journal": "input.journal", **reads}
    )


def _row() -> Shape:
    nodes = (
        tool("a", next_node="b"),
        tool("b", next_node="c", value="a", **LINGERS),
        tool("c", next_node="d", value="b"),
        tool("d", value="c"),
    )
    return Shape("row", nodes, 4)


def _fan() -> Shape:
    """Each member is a source, so the canvas is a chord."""
    members = [f"m{i}" for i in range(6)]
    nodes = [tool(name, deps=["a"], value="a", **(LINGERS if name == "m3" else {})) for name in members]
    return Shape("fan", (tool("a"), *nodes, tool("join", "add", deps=members, **{name: name for name in members})), 12)


def _diamond() -> Shape:
    nodes = (
        tool("top"),
        tool("left", deps=["top"], value="top", **LINGERS),
        tool("right", deps=["top"], value="top"),
        tool("bottom", "add", deps=["left", "right"], left="left", right="right"),
    )
    return Shape("diamond", nodes, 4)


def _map() -> Shape:
    item = tool("item", "quick", value="_item", seconds="(_item == `7` && input.linger_s) || `0`")
    every = ChainNode(node_id="every", kind="map", items_path="input.items", map_node="item", next_node="last")
    return Shape("map", (every, item, tool("last", value="every[49]")), ITEMS + 1)


def _loop() -> Shape:
    """The third round lingers."""
    body = tool("n", "quick", next_node="again", value="n OR `0`", seconds="(n == `2` && input.linger_s) || `0`")
    again = ChainNode(node_id="again", kind="branch", condition="n < `4`", true_node="n", false_node="last")
    return Shape("loop", (body, again, tool("last", value="n")), 5)


def _retry() -> Shape:
    return Shape(
        "retry",
        (tool("a", next_node="b"), tool("b", "stumble", next_node="c", value="a"), tool("c", value="b", **LINGERS)),
        3,
    )


def lone(queue: str) -> Shape:
    """One step that lingers, on a queue of its own."""
    return Shape("lone", (tool("only", queue, **LINGERS),), 1)


def backlog(queue: str, journal: Path, steps: int) -> ChainRequest:
    """So many steps at once, of two seconds each."""
    every = ChainNode(node_id="every", kind="map", items_path="input.items", map_node="item", max_concurrency=steps)
    given: dict[str, JsonValue] = {"journal": str(journal), "linger_s": 2.0, "items": list(range(steps))}
    return ChainRequest(nodes=[every, tool("item", queue, **LINGERS)], entry_node="every", initial_input=given)


def blocking(blocks_s: float) -> Shape:
    """One step that lingers as a coroutine, after it kept the event loop to itself for a while."""
    return Shape("blocking", (tool("only", "block", blocks_s=f"`{blocks_s}`", **LINGERS),), "done")


def deployed(version: int) -> Shape:
    """A row through the chain `deployed`, which is laid out when it is reached, as its version was when the run started."""
    nodes = (
        tool("before", next_node="middle", **LINGERS),
        chain("middle", "deployed", next_node="after"),
        tool("after", value="middle"),
    )
    return Shape("deployed", nodes, version + 2)


def _unserved() -> Shape:
    return Shape("unserved", (tool("a", next_node="b"), tool("b", "unserved", value="a")), 2)


def served_by(queue: str) -> Shape:
    """A map whose items are done on one queue, then a retry."""
    every = ChainNode(node_id="every", kind="map", items_path="input.items", map_node="item", next_node="again")
    nodes = (
        every,
        tool("item", queue, value="_item"),
        tool("again", f"{queue}-stumble", next_node="last", value="every[9]"),
        tool("last", value="again"),
    )
    return Shape(queue, nodes, 12)


def _memory() -> Shape:
    """Appends at once to one memory of the run, and what came of it."""
    names = [f"m{i}" for i in range(5)]
    nodes = [tool(name, "remember", deps=["a"], **(LINGERS if name == "m3" else {})) for name in names]
    return Shape("memory", (tool("a", "remember"), *nodes, tool("all", "recall", deps=names)), ["a", *names])


def _parked() -> Shape:
    """Waits twice for a value: it is there before the first time, and comes when the second waits."""
    nodes = (
        tool("a", next_node="early"),
        ChainNode(node_id="early", kind="wait", next_node="b"),
        tool("b", next_node="late", value="early", **LINGERS),
        ChainNode(node_id="late", kind="wait", next_node="all"),
        tool("all", "add", early="early", b="b", late="late"),
    )
    return Shape("parked", nodes, 10 + 11 + 20, signals={"early": 10, "late": 20})


def _code() -> Shape:
    """A workflow in Python: a step, three at once of which one lingers, a wait, a step."""
    return Shape("code", (_in_python("code"),), 6 + 7 + 1, signals={"flow/4.wait/approve": 7})


def _code_race() -> Shape:
    """A workflow in Python takes the first of two, again and again, and leaves the others."""
    return Shape("race", (_in_python("race"),), 3)


def _code_mixed() -> Shape:
    """A workflow in Python sleeps, asks a model, has a child, catches failures and hurries."""
    return Shape(
        "mixed",
        (_in_python("mixed", tag="input.tag"),),
        answers=lambda tags: [f"echo: lou <{tag}> timeout 4" for tag in tags],
    )


def _in_python(name: str, **reads: str) -> ChainNode:
    given = {"journal": "input.journal", "linger_s": "input.linger_s", **reads}
    return ChainNode(node_id="flow", kind="workflow", name=name, input_map=given)


def _posted() -> Shape:
    """The end of the run is posted to a webhook."""
    return Shape("posted", (tool("only"),), 1, brings=_posting)


def _posting(folder: Path) -> Definitions:
    bell = Webhook(url=(folder / HOOK).read_text(), on=["end"], allow_private=True)
    return definitions().model_copy(update={"webhooks": {"bell": bell}})


def _tasks() -> Shape:
    """Tasks of the user's application, and a tool of ours between them."""
    nodes = (
        tool("one", "task", next_node="two"),
        tool("two", "task", next_node="tool", value="one", **TASK_LINGERS),
        tool("tool", next_node="three", value="two", **LINGERS),
        tool("three", "task", value="tool"),
    )
    return Shape("task", nodes, 4)


def _forked() -> Shape:
    """A model is asked upstream of where it is forked, and one downstream."""
    nodes = (
        tool("top", next_node="said"),
        ChainNode(node_id="said", kind="agent", name="lou", next_node="slow", input_map={"input": "input.tag"}),
        tool("slow", next_node="told", value="top", **LINGERS),
        ChainNode(node_id="told", kind="agent", name="max", input_map={"input": "join(' ', [input.tag, said])"}),
    )
    return Shape("fork", nodes, forked_at="slow", answers=_of_forks)


CHAINS = (
    _row(),
    _fan(),
    _diamond(),
    _map(),
    _loop(),
    _retry(),
    _memory(),
    _parked(),
    _code(),
    _code_race(),
    _code_mixed(),
    _tasks(),
    _forked(),
    _unserved(),
    _posted(),
    Scheduled("scheduled", _row().nodes, 4),
)
TURNS = (
    Shape("broadcast", team="all", answers=_of_all),
    Shape("agent", agent=HAND, answers=_of_hand),
    Shape("router", team="desk", answers=_of_second),
    Shape("round", team="round", answers=_of_round),
    Shape("session", team="talk", answers=_of_talkers, session_turns=len(TALKERS)),
    Shape("workflow", workflow="flow", answers=_of_workflow, brings=formats.workflows),
    Shape("conductor", answers=_of_desk, brings=formats.desk),
    Group("group", answers=_of_group),
)
SHAPES = {shape.name: shape for shape in (*CHAINS, *TURNS)}
ANYWHERE = [shape for shape in SHAPES.values() if shape.name not in ("unserved", "scheduled", "posted")]
"""Those that need nothing besides the usual stack, and are over with their runs."""

QUEUES = ("unserved", "apart", "recovery", "ahead", "behind", "old")
"""Queues that no worker of the usual stack serves."""


def definitions(*, version: int = 1) -> Definitions:
    """What the runs may name. A version changes what the chain `deployed` gives."""
    versioned = tool("told").model_copy(update={"input": {"value": version}})
    return Definitions(
        folder=str(HERE),
        tools={
            "work": Tool(function="fault_tools:work", cheap=False),
            "quick": Tool(function="fault_tools:work", cheap=True),
            "add": Tool(function="fault_tools:add", cheap=False),
            "stumble": Tool(function="fault_tools:stumble", cheap=False, retries=5),
            "block": Tool(function="fault_tools:block", queue="apart"),
            "remember": Tool(function="fault_tools:remember", cheap=False),
            "recall": Tool(function="fault_tools:recall", cheap=False),
            "task": Tool(task="faults.work", timeout_s=TASK_S, retries=10),
            **{queue: Tool(function="fault_tools:work", queue=queue) for queue in QUEUES},
            **{f"{queue}-stumble": Tool(function="fault_tools:stumble", queue=queue, retries=5) for queue in QUEUES},
        },
        agents={
            **{name: _agent(name) for name in (*AGENTS, FIRST, SECOND, *ROUND, *TALKERS, "lou", "max")},
            HAND: _agent(HAND, "work"),
        },
        teams={
            "all": Team(
                mode="broadcast", agents=list(AGENTS), synthesizer=Synthesizer(model=MODEL, prompt=MERGE, retries=10)
            ),
            "desk": Team(
                mode="router",
                agents=[FIRST, SECOND],
                rules=[TeamRule(match="^never$", agent=SECOND)],
                router=Router(
                    models=[MODEL], decision_prompt_template=f"{ROUTER} <{{user_input}}>", retries=10, timeout_s=120
                ),
            ),
            "round": Team(mode="round_robin", agents=list(ROUND)),
            "talk": Team(mode="round_robin", agents=list(TALKERS), auto_include_history=True),
        },
        workflows={name: PythonWorkflow(function=f"fault_workflows:{name}") for name in ("code", "race", "mixed")},
        chains={"deployed": Chain(entry_node="told", nodes=[versioned])},
        defaults=Defaults(max_attempts=NEVER_POISON, timeout_s=600),
        limits=Limits(
            models={MODEL: Rates(concurrency=CALLS_AT_ONCE)}, budgets=Budgets(run=Budget(tokens=TOKENS_A_RUN))
        ),
    )


def _agent(name: str, *tools: str) -> Agent:
    return Agent(model=MODEL, description=name, retries=10, instructions=[f"{name} <{{input}}>"], tools=list(tools))
