"""Teams whose agents are chosen during the turn: by rules, by a router, or in rotation.

    @rules ── matched ─────────────▶ agent ──▶ @reply.agent ── [REROUTE] ──▶ @rules.2 ...
       └──── @router ──▶ @route ──────┘              └──── the answer

Each arrow is an expansion: a step decides on the graph behind it, and the last @reply takes the place of the first step. A router is asked
in a step of its own (`team.ask`, or `team.call` for a function), whose reply is recorded before `team.route` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from cantata.flows.definitions import Definitions, Router, Team
from cantata.flows.graph import Edge, Graph, Step
from cantata.flows.turns.agent_steps import member, numbered
from cantata.values import JsonValue

RULES_S = 30.0
"""Seconds that the functions among the rules may take."""


@dataclass(frozen=True)
class RoutingRound:
    """The state of routing: the `number` of the next agent, and the steps that hold the current text and the original request."""

    team: str
    text: str
    request: str
    prefix: str = ""
    number: int = 1
    again: bool = False
    """True if the router is asked again, since its first reply was invalid."""
    last: str | None = None
    """The step that holds the previous agent's answer, if the router decides after each agent."""

    @classmethod
    def of(cls, params: Mapping[str, JsonValue]) -> RoutingRound:
        """Return the round that a step belongs to, from the step's parameters."""
        return cls(**cast("dict[str, Any]", params["round"]), team=str(params["team"]))

    @property
    def params(self) -> dict[str, JsonValue]:
        """Return the round as parameters of a step."""
        return {
            "team": self.team,
            "round": {key: value for key, value in vars(self).items() if value and key != "team"},
        }

    def id(self, word: str) -> str:
        """Return the id of a step of this round."""
        return f"{self.prefix}{numbered(word, self.number, is_alone=self.number == 1)}{'.again' if self.again else ''}"


def begin_routing(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """Return the first steps of a router team, its rules or its router, and the step that holds the answer."""
    graph = next_routing_round(RoutingRound(name, text, text, prefix), definitions)
    return graph.model_copy(update={"exit": None}), cast(str, graph.exit)


def begin_round_robin(name: str, team: Team, definitions: Definitions, prefix: str, text: str) -> tuple[Graph, str]:
    """Return the step that chooses the next agent in the rotation over all turns, and expands to that agent's answer."""
    step = Step(
        id=f"{prefix}@next",
        kind="team.next",
        work=f"teams:{name}",
        reads={"@text": text},
        params={"team": name, "prefix": prefix},
        decides=True,
        expands=True,
    )
    return Graph(steps=(step,)), step.id


def next_routing_round(now: RoutingRound, definitions: Definitions) -> Graph:
    """Return the steps of the next round: the rules, or the router if there are none."""
    team = definitions.teams[now.team]
    if not team.rules and asks_router(team):
        return ask_router(now, definitions)
    runs_code = any(rule.function for rule in team.rules)
    runs_on = {"queue": "tools", "timeout_s": RULES_S} if runs_code else {"decides": True}
    rules = Step(
        id=now.id("@rules"),
        kind="team.rules",
        work=f"teams:{now.team}",
        reads={"@text": now.text},
        params=now.params,
        expands=True,
        **runs_on,
    )
    return Graph(steps=(rules,), exit=rules.id)


def asks_router(team: Team) -> bool:
    """Return whether a router is asked if no rule matches; else the default agent answers."""
    return team.router is not None or team.default_agent is None


def ask_router(now: RoutingRound, definitions: Definitions, *, fault: str = "", said: str | None = None) -> Graph:
    """Ask the router, and decide by its reply. `fault` describes the error in an earlier reply, the output of the step `said`."""
    settings = definitions.teams[now.team].router or Router()
    reads = {
        "@text": now.text,
        "@request": now.request,
        **({"@last": now.last} if now.last else {}),
        **({"@reply": said} if said else {}),
    }
    ask = Step(
        id=now.id("@router"),
        kind="team.call" if settings.function else "team.ask",
        queue="tools" if settings.function else "agents",
        work=f"teams:{now.team}",
        reads=reads,
        params={**now.params, **({"fault": fault} if fault else {})},
        on_error="skip",
        retries=0 if settings.function else settings.retries,
        timeout_s=settings.timeout_s if settings.function else None,
        cheap=False,
    )
    reads = {"@text": now.text, "@reply": ask.id, **({"@last": now.last} if now.last else {})}
    route = Step(
        id=now.id("@route"),
        kind="team.route",
        work=f"teams:{now.team}",
        reads=reads,
        params={**now.params, "asked": ask.id},
        decides=True,
        expands=True,
    )
    return Graph(steps=(ask, route), edges=(Edge(source=ask.id, target=route.id),), exit=route.id)


def run_agent(
    now: RoutingRound, agent: str, definitions: Definitions, *, asked: str, is_default: bool = False
) -> Graph:
    """Run an agent on the output of the step `asked`, and handle the prefix of its answer. `is_default`: no agent was chosen."""
    now = replace(now, again=False)
    failure = f"Sorry, agent {agent} encountered an error: "
    params: dict[str, JsonValue] = {"agent": agent, **({"is_default": True} if is_default else {})}
    return _answering(now, agent, definitions, now.id(agent), asked, failure, params)


def run_plan(
    now: RoutingRound, plan: Sequence[str], definitions: Definitions, *, asked: str, position: int = 0, run: int = 1
) -> Graph:
    """Run the agent at a position of a plan; the next one follows when it has answered. `run` counts its runs, from 1."""
    agent = plan[position]
    step_id = f"{now.prefix}{position + 1}.{agent}{f'.{run}' if run > 1 else ''}"
    failure = f"Plan failed at step {position + 1} ({agent}): "
    params: dict[str, JsonValue] = {"agent": agent, "plan": list(plan), "position": position, "run": run}
    return _answering(replace(now, again=False), agent, definitions, step_id, asked, failure, params)


def run_next(name: str, agent: str, definitions: Definitions, *, prefix: str, asked: str) -> Graph:
    """Run the next agent of a rotation; its answer is the team's."""
    chosen = member(
        f"{prefix}{agent}",
        agent,
        definitions,
        asked,
        team=name,
        is_chosen=True,
        params={"failure": f"Round robin agent {agent} failed: "},
    )
    return Graph(steps=chosen.steps, edges=chosen.edges, exit=chosen.last)


def _answering(
    now: RoutingRound,
    agent: str,
    definitions: Definitions,
    step_id: str,
    asked: str,
    failure: str,
    params: Mapping[str, JsonValue],
) -> Graph:
    """Return an agent's steps, and the step that handles the prefix of its answer."""
    chosen = member(step_id, agent, definitions, asked, team=now.team, is_chosen=True, params={"failure": failure})
    reply = Step(
        id=f"{now.prefix}@reply.{step_id.removeprefix(now.prefix)}",
        kind="team.reply",
        work=f"agents:{agent}",
        reads={"@text": chosen.last},
        params={**now.params, **params},
        decides=True,
        expands=True,
    )
    edges = (*chosen.edges, Edge(source=chosen.last, target=reply.id))
    return Graph(steps=(*chosen.steps, reply), edges=edges, exit=reply.id)
