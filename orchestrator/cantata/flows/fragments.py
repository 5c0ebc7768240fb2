"""Inheritance of a fragment from the parent step: scope, window and handling of errors."""

from __future__ import annotations

from cantata.flows.graph import Graph, Spec, Step
from cantata.values import JsonValue


def adopt(fragment: Graph, parent: str, spec: Spec) -> Graph:
    """Return the fragment with the scope, window and error handling of its steps set.

    The exit replaces the parent: it fails as the parent would, in the parent's scope and window. The other steps form a scope of the
    parent's own, so that one of them that aborts fails the exit. Without an exit, or unscoped, they are in the scope that the parent is in.
    """
    scope = parent if fragment.exit is not None and fragment.scoped else spec.scope
    inherited: dict[str, JsonValue] = {"failure": spec.params["failure"]} if "failure" in spec.params else {}

    def adopted(step: Step) -> Step:
        params = {**inherited, **step.params} if inherited else step.params
        if step.id == fragment.exit:
            own = {"on_error": spec.on_error, "scope": spec.scope, "window": spec.window, "params": params}
        else:
            window = parent if fragment.items is not None and step.id == fragment.items.like else step.window
            own = {"scope": scope, "window": window, "params": params}
        return step if all(getattr(step, name) == value for name, value in own.items()) else step.model_copy(update=own)

    steps = tuple(map(adopted, fragment.steps))
    return fragment if steps == fragment.steps else fragment.model_copy(update={"steps": steps})
