"""Bad turns, and replies of a router that name no agent."""

from __future__ import annotations

from collections.abc import Iterator

from cantata.flows.definitions import Agent, Definitions, Strategy, Team
from cantata.flows.turns import turn_plan
from cantata.flows.turns.choices import decision_of
from cantata.flows.turns.memory_commands import MalformedCommand, parse
from cantata.flows.wire import TurnRequest
from cantata.values import JsonValue
from tests.unit.messages.entries import Entry, data, entries, said_by

DEFINITIONS = Definitions(
    agents={"a": Agent(), "b": Agent(), "two": Agent()}, teams={"row": Team(mode="pipeline", agents=["a", "b"])}
)
TURNS: dict[str, list[TurnRequest]] = {
    "turns": [
        TurnRequest(text=" "),
        TurnRequest(text="hi \udcff"),
        TurnRequest(text="x", team="rwo"),
        TurnRequest(text="x", agent="zzz"),
        TurnRequest(text="x", team="row", agent="a"),
    ]
}

REPLIES: dict[str, list[tuple[Strategy, JsonValue]]] = {
    "replies of a router": [
        ("single_agent_dispatch", ""),
        ("single_agent_dispatch", "ann or bob"),
        ("single_agent_dispatch", '["ann"]'),
        ("single_agent_dispatch", 7),
        ("single_agent_dispatch", None),
        ("single_agent_dispatch", {"chosen_agent": "Ann"}),
        ("single_agent_dispatch", {"chosen_agent": ["ann"]}),
        ("static_plan", {"plan": []}),
        ("static_plan", {"plan": "ann"}),
        ("static_plan", {"plan": ["ann", "cleo"]}),
        ("static_plan", "ann"),
        ("dynamic_decomposition", {}),
        ("dynamic_decomposition", {"next_action": "final_answer"}),
        ("dynamic_decomposition", {"next_action": "call_agent"}),
    ],
}


COMMANDS: dict[str, list[str]] = {
    "commands to the memory": [
        "MEMORY STORE k",
        "MEMORY STORE",
        "MEMORY STORE = v",
        "MEMORY GET",
        "MEMORY FLY x",
        "MEMORY",
        "memory ",
        "MEMORYSTORE k=v",
    ]
}


def found() -> Iterator[Entry]:
    """Check each of them."""
    yield from entries(TURNS, lambda turn: said_by(lambda: turn_plan.plan_turn(turn, DEFINITIONS)), _fields)
    yield from entries(
        COMMANDS, lambda line: [each.fault for each in parse(line) if isinstance(each, MalformedCommand)], repr
    )
    yield from entries(REPLIES, _decided, lambda given: f"{given[0]}: {data(given[1])}")


def _decided(given: tuple[Strategy, JsonValue]) -> list[str]:
    strategy, reply = given
    return said_by(lambda: decision_of(reply, strategy, ("ann", "bob")), ValueError)


def _fields(turn: TurnRequest) -> str:
    return repr(turn.model_dump(exclude_defaults=True))
