"""User turns: an agent alone, a pipeline, a broadcast."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from itertools import pairwise

from orchestrator.errors import ConfigError, Fault
from orchestrator.models.definitions import Definitions, Team
from orchestrator.models.graph import RAW, START, Edge, Graph, Step
from orchestrator.models.wire import Turn
from orchestrator.planning.strategies.agents import agent_step

SYNTHESIZER_PATIENCE_S = 30.0


def check(turn: Turn, definitions: Definitions) -> list[Fault]:
    """What is wrong with a turn, before anything runs."""
    faults = []
    if not turn.text.strip():
        faults.append(Fault("the text is empty; say what you want", "text"))
    if turn.text.encode("utf-8", "ignore").decode() != turn.text:
        faults.append(Fault("the text is not UTF-8", "text"))
    if turn.team and turn.agent:
        faults.append(Fault("name a team or an agent, not both", "team"))
    for kind, name, known in (("team", turn.team, definitions.teams), ("agent", turn.agent, definitions.agents)):
        if name and name not in known:
            faults.append(Fault(_unknown(kind, name, known), kind))
    if not faults and _target(turn, definitions) is None:
        faults.append(Fault("nobody to answer: name a team or an agent, or set defaults.team in the configuration", "team"))
    return faults


def plan(turn: Turn, definitions: Definitions) -> Graph:
    """The graph that answers a turn. Raises ConfigError."""
    faults = check(turn, definitions)
    target = _target(turn, definitions)
    if faults or target is None:
        raise ConfigError(faults)
    kind, name = target
    text = f"{RAW}{START}"
    if kind == "team":
        graph, last = _team(name, definitions, prefix="", text=text)
    else:
        last = name
        graph = Graph(steps=(agent_step(name, name, definitions.agents[name], text),))
    return graph.model_copy(update={"terminals": (last,)})


def team_fragment(name: str, definitions: Definitions, *, grower: str) -> Graph:
    """What a step grows to have a team answer its output; the exit is the team's answer."""
    graph, last = _team(name, definitions, prefix=f"{grower}/", text=f"{RAW}{grower}")
    return graph.model_copy(update={"exit": last})


def _team(name: str, definitions: Definitions, *, prefix: str, text: str) -> tuple[Graph, str]:
    team = definitions.teams[name]
    return MODES[team.mode](name, team, definitions, prefix, text)


def _pipeline(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """A row: each agent gets only the answer before it; the first failure ends it."""
    ids = [f"{prefix}{_numbered(team.agents, position)}" for position in range(len(team.agents))]
    texts = [text, *ids[:-1]]
    steps = tuple(
        agent_step(step_id, agent, definitions.agents[agent], before,
                   params={"failure": f"Pipeline failed at step {position + 1} ({agent}): "})
        for position, (step_id, agent, before) in enumerate(zip(ids, team.agents, texts, strict=True))
    )  # fmt: skip
    return Graph(steps=steps, edges=_row(ids)), ids[-1]


def _broadcast(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """A fan and a join: all at once; a failed agent is an answer that says so."""
    members = {agent: f"{prefix}{agent}" for agent in team.agents}
    agents = tuple(agent_step(step_id, agent, definitions.agents[agent], text, on_error="skip") for agent, step_id in members.items())
    join = _join(name, team, members, prefix, text)
    return Graph(steps=(*agents, join), edges=tuple(Edge(source=step_id, target=join.id) for step_id in members.values())), join.id


def _join(name: str, team: Team, members: Mapping[str, str], prefix: str, text: str) -> Step:
    common = {
        "id": f"{prefix}@{'synthesizer' if team.synthesizer else 'responses'}", "reads": {"@text": text, **members},
        "params": {"team": name, "members": dict(members)}, "quorum": team.min_responses, "deadline_s": team.deadline_s,
    }  # fmt: skip
    if team.synthesizer is None:
        return Step.model_validate({**common, "kind": "team.collect", "decides": True})
    return Step.model_validate(
        {
            **common, "kind": "team.synthesize", "queue": "agents", "work": f"teams:{name}", "cheap": False,
            "retries": team.synthesizer.retries, "timeout_s": team.synthesizer.timeout_s + SYNTHESIZER_PATIENCE_S,
        }
    )  # fmt: skip


Builder = Callable[[str, Team, Definitions, str, str], tuple[Graph, str]]

MODES: dict[str, Builder] = {"pipeline": _pipeline, "broadcast": _broadcast}
"""How a team's mode becomes a graph and the step that holds its answer."""


def _row(ids: list[str]) -> tuple[Edge, ...]:
    return tuple(Edge(source=source, target=target) for source, target in pairwise(ids))


def _numbered(names: list[str], position: int) -> str:
    """A name that stands more than once in a row gets a number."""
    name = names[position]
    return name if names.count(name) == 1 else f"{name}.{names[: position + 1].count(name)}"


def _target(turn: Turn, definitions: Definitions) -> tuple[str, str] | None:
    for kind, name in (
        ("agent", turn.agent),
        ("team", turn.team),
        ("team", definitions.defaults.team),
        ("agent", definitions.defaults.agent),
    ):
        if name:
            return kind, name
    return ("agent", next(iter(definitions.agents))) if len(definitions.agents) == 1 else None


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(map(repr, known)) or 'none'}"
    return f"no {kind} is called {name!r}{hint}"
