"""Graphs of user turns: an agent alone, a team in one of its modes, a workflow, or the agents of a further format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cantata.errors import ConfigError, Fault
from cantata.flows.chains.declared_inputs import TURN_INPUTS, turn_faults
from cantata.flows.definitions import Definitions, Extension, Team
from cantata.flows.graph import RAW, START, Edge, Graph, Step
from cantata.flows.turns import routing
from cantata.flows.turns.agent_steps import MemberSteps, chain_edges, member, numbered
from cantata.flows.wire import TurnRequest
from cantata.flows.workflows.workflow_specs import workflow_spec
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue

SYNTHESIZER_MARGIN_S = 30.0


def check_turn(turn: TurnRequest, definitions: Definitions) -> list[Fault]:
    """Return the faults of a turn."""
    faults = []
    if not turn.text.strip():
        faults.append(Fault("the text is empty; say what you want", "text"))
    if turn.text.encode("utf-8", "ignore").decode() != turn.text:
        faults.append(Fault("the text is not UTF-8", "text"))
    if turn.send_history and not turn.agent:
        faults.append(Fault("only an agent that is named can be sent the history", "send_history"))
    if sum(map(bool, (turn.team, turn.agent, turn.workflow))) > 1:
        faults.append(Fault("name a team, an agent or a workflow, one of them", "team"))
    workflows = {**definitions.workflows, **definitions.chains}
    known: dict[str, Mapping[str, object]] = {
        "team": definitions.teams,
        "agent": definitions.agents,
        "workflow": workflows,
    }
    for kind, names in known.items():
        name = getattr(turn, kind)
        if kind == "workflow" and name in definitions.refused:
            faults += [Fault(message, f"workflow {name!r}") for message in definitions.refused[name]]
        elif name and name not in names:
            faults.append(Fault(_unknown(kind, name, names, definitions.extension), kind))
    if turn.workflow in definitions.chains:
        faults += [
            Fault(message, "workflow") for message in turn_faults(turn.workflow, definitions.chains[turn.workflow])
        ]
    if not faults and target_of(turn, definitions) is None:
        named = f", or a workflow: {', '.join(workflows)}; " if workflows else ", "
        missing = "no agent is configured to answer: name a team or an agent"
        faults.append(Fault(f"{missing}{named}or set defaults.team in the configuration", "team"))
    return faults


def plan_turn(turn: TurnRequest, definitions: Definitions) -> Graph:
    """Return the graph that answers a turn. Raises ConfigError."""
    faults = check_turn(turn, definitions)
    target = target_of(turn, definitions)
    if faults or target is None:
        raise ConfigError(faults)
    kind, name = target
    text = f"{RAW}{START}"
    if kind == "team":
        graph, last = _team(name, definitions, prefix="", text=text)
    elif kind == "extension" and definitions.extension:
        opening = Step(
            id="@open",
            kind=definitions.extension.kind,
            queue="tools",
            work=f"extension:{name}",
            reads={"@text": text},
            expands=True,
        )
        graph, last = Graph(steps=(opening,)), opening.id
    elif kind == "workflow":
        step = _workflow(name, text) if name in definitions.chains else _python_workflow(name, text, definitions)
        graph, last = Graph(steps=(step,)), name
    else:
        alone = member(name, name, definitions, text, is_chosen=True, send_history=turn.send_history)
        graph, last = Graph(steps=alone.steps, edges=alone.edges), alone.last
    return graph.model_copy(update={"terminals": (last,)})


def expand_team(name: str, definitions: Definitions, *, parent: str) -> Graph:
    """Return the fragment in which a team answers the parent's output; the output of the exit is the team's answer."""
    graph, last = _team(name, definitions, prefix=f"{parent}/", text=f"{RAW}{parent}")
    return graph.model_copy(update={"exit": last})


def _team(name: str, definitions: Definitions, *, prefix: str, text: str) -> tuple[Graph, str]:
    team = definitions.teams[name]
    return MODES[team.mode](name, team, definitions, prefix, text)


def _pipeline(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """Return a sequence: each agent gets only the previous answer; the first failure ends it."""
    members: list[MemberSteps] = []
    for position, agent in enumerate(team.agents):
        step_id = prefix + numbered(
            agent, team.agents[: position + 1].count(agent), is_alone=team.agents.count(agent) == 1
        )
        failure: dict[str, JsonValue] = {"failure": f"Pipeline failed at step {position + 1} ({agent}): "}
        members.append(
            member(step_id, agent, definitions, members[-1].last if members else text, team=name, params=failure)
        )
    steps = [step for each in members for step in each.steps]
    return Graph(steps=tuple(steps), edges=chain_edges([step.id for step in steps])), steps[-1].id


def _broadcast(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """Return a fan-out and a join: all agents in parallel; the join gets the error of a failed agent as its answer."""
    members = {
        agent: member(f"{prefix}{agent}", agent, definitions, text, team=name, on_error="skip") for agent in team.agents
    }
    join = _join(name, team, {agent: each.last for agent, each in members.items()}, prefix, text)
    edges = [edge for each in members.values() for edge in (*each.edges, Edge(source=each.last, target=join.id))]
    return Graph(steps=(*(step for each in members.values() for step in each.steps), join), edges=tuple(edges)), join.id


def _join(name: str, team: Team, members: Mapping[str, str], prefix: str, text: str) -> Step:
    common = {
        "id": f"{prefix}@{'synthesizer' if team.synthesizer else 'responses'}", "reads": {"@text": text, **members},
        "params": {"team": name, "members": dict(members)}, "quorum": team.min_responses, "deadline_s": team.deadline_s,
    }  # fmt: skip
    if team.synthesizer is None:
        return Step.model_validate({**common, "kind": "team.collect", "decides": True})
    return Step.model_validate(
        {
            **common,
            "kind": "team.synthesize",
            "queue": "agents",
            "work": f"teams:{name}",
            "cheap": False,
            "retries": team.synthesizer.retries,
            "timeout_s": team.synthesizer.timeout_s + SYNTHESIZER_MARGIN_S,
        }
    )


Builder = Callable[[str, Team, Definitions, str, str], tuple[Graph, str]]

MODES: dict[str, Builder] = {
    "pipeline": _pipeline,
    "broadcast": _broadcast,
    "router": routing.begin_routing,
    "round_robin": routing.begin_round_robin,
}
"""Mode of a team → builder of its graph and of the step that holds its answer."""


def _workflow(name: str, text: str) -> Step:
    """Return the step that runs a chain of the configuration on the text."""
    mapped: JsonValue = dict.fromkeys(TURN_INPUTS, "text")
    params: dict[str, JsonValue] = {"chain": name, "map": mapped}
    return Step(
        id=name,
        kind="chain.run",
        work=f"chains:{name}",
        reads={"text": text},
        params=params,
        decides=True,
        expands=True,
    )


def _python_workflow(name: str, text: str, definitions: Definitions) -> Step:
    """Return the step that runs a workflow in Python whose only required parameter gets the text."""
    mapped: JsonValue = {"text": "text"}
    return Step(
        id=name, **dict(workflow_spec(name, definitions, {"map": mapped, "is_turn": True}, reads={"text": text}))
    )


def target_of(turn: TurnRequest, definitions: Definitions) -> tuple[str, str] | None:
    """Return what answers a turn, as its kind and its name; None if nothing is named and there is no default."""
    for kind, name in (
        ("workflow", turn.workflow),
        ("agent", turn.agent),
        ("team", turn.team),
        ("team", definitions.defaults.team),
        ("agent", definitions.defaults.agent),
        ("extension", definitions.extension and definitions.extension.first_agent),
    ):
        if name:
            return kind, name
    return ("agent", next(iter(definitions.agents))) if len(definitions.agents) == 1 else None


def _unknown(kind: str, name: str, known: Mapping[str, object], extension: Extension | None) -> str:
    if extension:
        return f"no {kind} can be named here: with this configuration, a turn starts at {extension.first_agent!r}"
    remedy = hint(nearest(name, known)) or f"; known: {', '.join(map(repr, known)) or 'none'}"
    return f"no {kind} is called {name!r}{remedy}"
