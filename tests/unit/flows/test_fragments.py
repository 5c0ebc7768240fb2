"""Fragments in the place of the step that expands."""

from __future__ import annotations

from cantata.flows.graph import Graph, Step, adopt


def test_an_exit_takes_the_place_of_its_grower_and_others_fail_it() -> None:
    parent = Step(id="g", kind="x", on_error="skip", scope="outer", window="m", params={"failure": "In g: "})
    fragment = Graph(steps=(Step(id="g/1", kind="y"), Step(id="g/2", kind="y")), exit="g/2")

    inner, exit_step = adopt(fragment, "g", parent).steps

    assert (exit_step.on_error, exit_step.scope, exit_step.window) == ("skip", "outer", "m")
    assert (inner.on_error, inner.scope, inner.window) == ("abort", "g", None)
    assert inner.params == exit_step.params == {"failure": "In g: "}


def test_without_an_exit_or_unscoped_steps_stand_where_the_grower_stood() -> None:
    parent = Step(id="g", kind="x", scope="outer")

    for fragment in (
        Graph(steps=(Step(id="n", kind="y"),)),
        Graph(steps=(Step(id="n", kind="y"), Step(id="e", kind="y")), exit="e", scoped=False),
    ):
        assert adopt(fragment, "g", parent).steps[0].scope == "outer"
