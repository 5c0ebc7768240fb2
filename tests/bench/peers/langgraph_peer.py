"""LangGraph in this process: compiled graphs, SQLite saver, durability "sync": every step is on the disk before the next begins."""

from __future__ import annotations

import itertools
import os
import sqlite3
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]
from langgraph.graph import START, StateGraph  # type: ignore[import-not-found]

from tests.bench.peers.timing import tell

_threads = itertools.count()


class State(TypedDict, total=False):
    """A graph must have a state; the steps leave it alone."""

    value: int


def step(_: State) -> dict[str, int]:
    """Do nothing."""
    return {}


def row(saver: Any) -> Any:
    """Ten steps, one after the other."""
    graph = StateGraph(State)
    names = [f"s{number}" for number in range(10)]
    for name in names:
        graph.add_node(name, step)
    for before, after in itertools.pairwise([START, *names]):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


def diamond(saver: Any) -> Any:
    """A step, a hundred at once, and one that waits for all."""
    graph = StateGraph(State)
    middle = [f"m{number}" for number in range(100)]
    for name in ("s", *middle, "join"):
        graph.add_node(name, step)
    graph.add_edge(START, "s")
    for name in middle:
        graph.add_edge("s", name)
    graph.add_edge(middle, "join")
    return graph.compile(checkpointer=saver)


def thread() -> dict[str, Any]:
    """The configuration of a run of its own."""
    return {"configurable": {"thread_id": str(next(_threads))}}


def main() -> None:
    """Time the shapes."""
    connection = sqlite3.connect(os.path.join(os.environ["PEER_HOME"], "checkpoints.db"), check_same_thread=False)
    connection.execute(
        "PRAGMA synchronous = NORMAL"
    )  # a crash of the host may lose the last moment, as with an AOF everysec
    saver = SqliteSaver(connection)
    one, wide = row(saver), diamond(saver)
    tell(
        {
            "row of 10": lambda: one.invoke({"value": 1}, thread(), durability="sync"),
            "1 → 100 → 1": lambda: wide.invoke({"value": 1}, thread(), durability="sync"),
            "50 rows of 10 at once": lambda: one.batch(
                [{"value": 1}] * 50, [thread() for _ in range(50)], durability="sync"
            ),
        }
    )


if __name__ == "__main__":
    main()
