"""What a fragment takes over from the step that grows it."""

from __future__ import annotations

from cantata.models.graph import Graph, Spec, Step
from cantata.models.values import JsonValue


def adopt(fragment: Graph, parent: str, spec: Spec) -> Graph:
    """The fragment with its place in the run settled.

    The exit stands where the parent stood: it fails as the parent would, in its scope and its window. The other steps are in the parent's
    scope, so that one of them that aborts fails the exit; without an exit, or unscoped, they are where the parent is.
    """
    scope = parent if fragment.exit is not None and fragment.scoped else spec.scope
    inherited: dict[str, JsonValue] = {"failure": spec.params["failure"]} if "failure" in spec.params else {}

    def placed(step: Step) -> Step:
        params = {**inherited, **step.params} if inherited else step.params
        if step.id == fragment.exit:
            return step.model_copy(update={"on_error": spec.on_error, "scope": spec.scope, "window": spec.window, "params": params})
        window = parent if fragment.items is not None and step.id == fragment.items.like else step.window
        return step.model_copy(update={"scope": scope, "window": window, "params": params})

    return fragment.model_copy(update={"steps": tuple(map(placed, fragment.steps))})
