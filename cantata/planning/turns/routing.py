"""A team whose agents are chosen while the turn goes on: by rules, by a router, or one after the other.

    @rules ── matched ─────────────▶ agent ──▶ @reply.agent ── [REROUTE] ──▶ @rules.2 ...
       └──── @router ──▶ @route ──────┘              └──── the answer

Each arrow is growth: what is decided in a step is the graph behind it, and the last @reply stands in the place of the first step. A router
is asked in a step of its own (`team.ask`, or `team.call` for a function), whose reply is recorded before it is read in `team.route`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from cantata.models.definitions import Definitions, Router, Team
from cantata.models.graph import Edge, Graph, Step
from cantata.models.values import JsonValue
from cantata.planning.turns.member_steps import member, numbered

RULES_S = 30.0
"""How long the functions among the rules may take."""


@dataclass(frozen=True)
class RoutingRound:
    """Where a turn stands: the `number` of the agent to come, and the steps that hold what is asked for now and at first."""

    team: str
    text: str
    request: str
    prefix: str = ""
    number: int = 1
    again: bool = False
    """Whether the router's first reply could not be used."""
    last: str | None = None
    """The step that holds what the agent before answered, where the router decides after each."""

    @classmethod
    def of(cls, params: Mapping[str, JsonValue]) -> RoutingRound:
        """The round that a step belongs to."""
        return cls(**cast("dict[str, Any]", params["round"]), team=str(params["team"]))

    @property
    def params(self) -> dict[str, JsonValue]:
        """As a step holds it."""
        return {"team": self.team, "round": {key: value for key, value in vars(self).items() if value and key != "team"}}

    def id(self, word: str) -> str:
        """The name of a step of this round."""
        return f"{self.prefix}{numbered(word, self.number, is_alone=self.number == 1)}{'.again' if self.again else ''}"


def begin_routing(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """What a router team begins with: its rules, else its router."""
    graph = next_routing_round(RoutingRound(name, text, text, prefix), definitions)
    return graph.model_copy(update={"exit": None}), cast(str, graph.exit)


def begin_round_robin(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """Chooses the next agent of all turns; its place is taken by that agent's answer."""
    step = Step(
        id=f"{prefix}@next", kind="team.next", work=f"teams:{name}", reads={"@text": text}, params={"team": name, "prefix": prefix},
        decides=True, expands=True,
    )  # fmt: skip
    return Graph(steps=(step,)), step.id


def next_routing_round(now: RoutingRound, definitions: Definitions) -> Graph:
    """The rules, or without any the router, for what is asked for now."""
    team = definitions.teams[now.team]
    if not team.rules and asks_router(team):
        return ask_router(now, definitions)
    runs_code = any(rule.function for rule in team.rules)
    placed = {"queue": "tools", "timeout_s": RULES_S} if runs_code else {"decides": True}
    rules = Step(
        id=now.id("@rules"), kind="team.rules", work=f"teams:{now.team}", reads={"@text": now.text}, params=now.params, expands=True,
        **placed,
    )  # fmt: skip
    return Graph(steps=(rules,), exit=rules.id)


def asks_router(team: Team) -> bool:
    """Whether someone is asked where no rule chooses; else the default agent answers."""
    return team.router is not None or team.default_agent is None


def ask_router(now: RoutingRound, definitions: Definitions, *, fault: str = "", said: str | None = None) -> Graph:
    """Asks the router, and decides by its reply; once more if `fault` tells what was wrong with what it `said` in the step of that name."""
    settings = definitions.teams[now.team].router or Router()
    reads = {"@text": now.text, "@request": now.request, **({"@last": now.last} if now.last else {}), **({"@reply": said} if said else {})}
    ask = Step(
        id=now.id("@router"), kind="team.call" if settings.function else "team.ask", queue="tools" if settings.function else "agents",
        work=f"teams:{now.team}", reads=reads, params={**now.params, **({"fault": fault} if fault else {})}, on_error="skip",
        retries=0 if settings.function else settings.retries, timeout_s=settings.timeout_s if settings.function else None, cheap=False,
    )  # fmt: skip
    reads = {"@text": now.text, "@reply": ask.id, **({"@last": now.last} if now.last else {})}
    route = Step(
        id=now.id("@route"), kind="team.route", work=f"teams:{now.team}", reads=reads, params={**now.params, "asked": ask.id}, decides=True,
        expands=True,
    )  # fmt: skip
    return Graph(steps=(ask, route), edges=(Edge(source=ask.id, target=route.id),), exit=route.id)


def run_agent(now: RoutingRound, agent: str, definitions: Definitions, *, asked: str, is_default: bool = False) -> Graph:
    """An agent that was chosen, or answers since nobody was (`is_default`), asked with the text that `asked` refers to; behind it what its
    answer says is done.
    """
    now = replace(now, again=False)
    failure = f"Sorry, agent {agent} encountered an error: "
    params: dict[str, JsonValue] = {"agent": agent, **({"is_default": True} if is_default else {})}
    return _answering(now, agent, definitions, now.id(agent), asked, failure, params)


def run_plan(now: RoutingRound, plan: Sequence[str], definitions: Definitions, *, asked: str, position: int = 0, run: int = 1) -> Graph:
    """The agent at a position of a plan; the next one follows when it has answered. `run` counts how often it was asked."""
    agent = plan[position]
    step_id = f"{now.prefix}{position + 1}.{agent}{f'.{run}' if run > 1 else ''}"
    failure = f"Plan failed at step {position + 1} ({agent}): "
    params: dict[str, JsonValue] = {"agent": agent, "plan": list(plan), "position": position, "run": run}
    return _answering(replace(now, again=False), agent, definitions, step_id, asked, failure, params)


def run_next(name: str, agent: str, definitions: Definitions, *, prefix: str, asked: str) -> Graph:
    """The agent whose turn it is; its answer is the team's."""
    chosen = member(
        f"{prefix}{agent}", agent, definitions, asked, team=name, is_chosen=True,
        params={"failure": f"Round robin agent {agent} failed: "},
    )  # fmt: skip
    return Graph(steps=chosen.steps, edges=chosen.edges, exit=chosen.last)


def _answering(
    now: RoutingRound, agent: str, definitions: Definitions, step_id: str, asked: str, failure: str, params: Mapping[str, JsonValue]
) -> Graph:
    """An agent, and the step that reads what its answer says of the turn."""
    chosen = member(step_id, agent, definitions, asked, team=now.team, is_chosen=True, params={"failure": failure})
    reply = Step(
        id=f"{now.prefix}@reply.{step_id.removeprefix(now.prefix)}", kind="team.reply", work=f"agents:{agent}",
        reads={"@text": chosen.last}, params={**now.params, **params}, decides=True, expands=True,
    )  # fmt: skip
    edges = (*chosen.edges, Edge(source=chosen.last, target=reply.id))
    return Graph(steps=(*chosen.steps, reply), edges=edges, exit=reply.id)
