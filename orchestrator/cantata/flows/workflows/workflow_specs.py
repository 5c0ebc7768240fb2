"""Steps that begin a workflow in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantata.flows.definitions import Definitions
from cantata.flows.graph import Spec
from cantata.values import JsonValue

ADVANCE_TIMEOUT_S = 60.0  # of one execution of a workflow's code, which waits for nothing: it imports its modules


def workflow_spec(name: str, definitions: Definitions, params: Mapping[str, JsonValue], **own: Any) -> Spec:
    """Return the spec of a step that begins a workflow; `own` overrides its fields."""
    queue = definitions.workflows[name].queue
    common = {
        "work": f"workflows:{name}",
        "queue": queue,
        "expands": True,
        "cheap": True,
        "timeout_s": ADVANCE_TIMEOUT_S,
    }
    return Spec(kind="workflow.advance", params={"workflow": name, **params}, **{**common, **own})
