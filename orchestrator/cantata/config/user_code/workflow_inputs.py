"""Inputs of workflows in Python, checked against the parameters in the text of their functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from cantata.config.user_code.decorators import parameters_of
from cantata.config.user_code.function_source import definition_of
from cantata.errors import Fault
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue


def input_faults(function: str, given: Mapping[str, JsonValue], *, folder: Path | None) -> Iterator[Fault]:
    """Yield a fault for each argument that workflow `module:name` lacks or does not know; none if its source is not here."""
    if found := _parameters(function, folder):
        known, needed, takes_any = found
        for name in [name for name in needed if name not in given]:
            yield Fault(f"{function} requires the argument {name!r}", f"input.{name}")
        for name in [] if takes_any else [name for name in given if name not in known]:
            yield Fault(
                f"{name!r} is not an argument of {function}{did_you_mean(name, known) or ', which takes none'}",
                f"input.{name}",
            )


def turn_faults(function: str, *, folder: Path | None) -> Iterator[Fault]:
    """Yield a fault if workflow `module:name` cannot answer a turn, whose text is its only required argument."""
    if (found := _parameters(function, folder)) and len(needed := found[1]) != 1:
        names = ", ".join(map(repr, needed)) or "none"
        yield Fault(
            f"a turn gives one argument, and {function} requires {names}; use `submit workflow` with --input",
            "workflow",
        )


def _parameters(function: str, folder: Path | None) -> tuple[list[str], list[str], bool] | None:
    """Return the parameters behind the workflow itself, those without a default, and whether any others are accepted."""
    definition = definition_of(function, folder=folder)
    if definition is None or not isinstance(definition.node, ast.AsyncFunctionDef):
        return None
    known, needed, takes_any = parameters_of(definition.node.args)
    return known[1:], [name for name in needed if name in known[1:]], takes_any
