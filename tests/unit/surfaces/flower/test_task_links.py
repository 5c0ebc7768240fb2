"""Which run a task belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from cantata.engine.dispatch.celery_app import make_app
from cantata.flows.canvas import MessageHead
from cantata.surfaces.flower.task_links import TaskTarget, task_target, tasks_of

RUN = "1a1f849485c04486b37"


@dataclass
class Shown:
    """A task as Flower knows it."""

    args: object
    uuid: str = "u"
    name: str | None = "tool.call"
    state: str = "SUCCESS"
    received: float | None = None
    runtime: float | None = None
    worker: object = None


@pytest.mark.parametrize("steps", [("one",), ("a/t0", "b[3]", "c (d)"), tuple(f"s{number}" for number in range(20))])
def test_what_a_message_shows_is_read_again(steps: tuple[str, ...]) -> None:
    shown = (
        MessageHead(make_app("redis://here"), RUN)
        .signature("tool.call", "tools", steps, work="tools:add")
        .options["argsrepr"]
    )

    assert task_target(Shown(shown)) == TaskTarget(RUN, steps[:8])


@pytest.mark.parametrize(
    "args", [None, "", "(1, 2)", f"('{RUN}', ['one'])", f"{RUN}:", "not-a-run:add(one)", f"{RUN}:one", ["x"]]
)
def test_tasks_of_others_have_no_run(args: object) -> None:
    assert task_target(Shown(args)) is None


def test_the_tasks_of_a_run_come_newest_first_with_what_flower_knows() -> None:
    first = Shown(f"{RUN}:add(one)", uuid="1", received=5.0, runtime=0.5, worker=SimpleNamespace(hostname="tools@here"))
    second = Shown(f"{RUN}:add(two,three)", uuid="2", state="RECEIVED", received=6.0)
    sent = Shown(f"{RUN}:add(four)", uuid="3", state="PENDING")
    named = {"name": "tool.call"}
    others = [Shown(f"{RUN}0:add(one)"), Shown(None), Shown("(1,)")]

    found = tasks_of(RUN, [first, *others, sent, second])

    assert found == [
        {
            "uuid": "2",
            "state": "RECEIVED",
            "steps": ["two", "three"],
            "worker": None,
            "received": 6.0,
            "runtime": None,
            **named,
        },
        {
            "uuid": "1",
            "state": "SUCCESS",
            "steps": ["one"],
            "worker": "tools@here",
            "received": 5.0,
            "runtime": 0.5,
            **named,
        },
        {
            "uuid": "3",
            "state": "PENDING",
            "steps": ["four"],
            "worker": None,
            "received": None,
            "runtime": None,
            **named,
        },
    ]
