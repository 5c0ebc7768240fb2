"""Steps of one agent in a turn: one step, or two if its input begins with the conversation so far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from cantata.models.definitions import Definitions
from cantata.models.graph import Edge, Step
from cantata.models.values import JsonValue
from cantata.planning.turns.agent_steps import agent_step
from cantata.planning.turns.history import MAX_HISTORY_TOKENS

_NUMBER_BEHIND = re.compile(r"\.[0-9]+\Z")


class MemberSteps(NamedTuple):
    """The steps of one agent in sequence; the last one has the requested id."""

    steps: tuple[Step, ...]

    @property
    def first(self) -> str:
        """Return the id of the first step, the target of edges to the agent."""
        return self.steps[0].id

    @property
    def last(self) -> str:
        """Return the id of the step whose output is the answer."""
        return self.steps[-1].id

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Return the edges between the steps."""
        return chain_edges([step.id for step in self.steps])


def member(
    step_id: str, name: str, definitions: Definitions, text: str, *, team: str | None = None, is_chosen: bool = False,
    send_history: bool = False, params: Mapping[str, JsonValue] | None = None, **more: object,
) -> MemberSteps:  # fmt: skip
    """Return the steps of an agent that answers a text, with the conversation of the turn's session, if there is one.

    With `send_history`, or if its team is configured so, the conversation comes before its input as text. Else, if the agent `is_chosen` or
    its own settings ask for it, its model gets the conversation as messages.
    """
    agent, of_team = definitions.agents[name], definitions.teams[team] if team else None
    max_tokens = agent.history.max_tokens or (of_team.max_history_tokens if of_team else MAX_HISTORY_TOKENS)
    if send_history or (of_team and of_team.auto_include_history and agent.history.enabled is not False):
        block = Step(
            id=f"{step_id}/@asked", kind="history.block", work=f"history:{name}", reads={"@text": text},
            params={**(params or {}), "agent": name, "history": max_tokens}, decides=True,
        )  # fmt: skip
        return MemberSteps((block, agent_step(step_id, name, agent, block.id, params=params, **more)))
    wants = is_chosen if agent.history.enabled is None else agent.history.enabled
    seen = {"history": max_tokens} if wants else {}
    return MemberSteps((agent_step(step_id, name, agent, text, params={**seen, **(params or {})}, **more),))


def chain_edges(ids: list[str]) -> tuple[Edge, ...]:
    """Return the edges of a sequence of steps."""
    return tuple(Edge(source=source, target=target) for source, target in pairwise(ids))


def numbered(name: str, number: int, *, is_alone: bool) -> str:
    """Return a name with its number, or without one if it is unique. A name that ends in `.2` always gets one: it may be an agent's own."""
    return name if is_alone and not _NUMBER_BEHIND.search(name) else f"{name}.{number}"
