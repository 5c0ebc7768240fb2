"""The decorator of workflow functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cantata.errors import StepError

Function = TypeVar("Function", bound=Callable[..., Coroutine[Any, Any, Any]])

_MARK = "__cantata_workflow__"


def workflow(function: Function) -> Function:
    """Mark an `async def` function as a workflow. Its first parameter is the `Workflow`; the others are its input, by name.

    Raises TypeError for another function.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"a workflow must be an async function, and {getattr(function, '__qualname__', function)!r} is not"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters[1:]):
        raise TypeError(
            f"workflow {function.__qualname__!r} gets its input by name, so it cannot have positional-only parameters"
        )
    if not parameters:
        raise TypeError(f"workflow {function.__qualname__!r} needs a first parameter for the Workflow")
    setattr(function, _MARK, True)
    return function


def check_workflow(function: object, reference: str) -> None:
    """Raise StepError for a function that is not marked as a workflow."""
    if not getattr(function, _MARK, False):
        raise StepError(f"{reference} is not a workflow; decorate it with @workflow", code="not_a_workflow")


def reference_of(function: Callable[..., Any]) -> str:
    """Return `module:name` of a function that another process can import. Raises TypeError for others."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        shown = name or repr(function)
        raise TypeError(
            f"{shown!r} cannot be imported by a worker: define it at the top of a module, with a name of its own"
        )
    return f"{module}:{name}"
