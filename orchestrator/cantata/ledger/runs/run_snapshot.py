"""A run as pages show it: the states of its steps at one moment, and the recorded details of some. `RunReader` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import cast

from cantata.flows.graph import START, answering
from cantata.ledger.records import StepSummary
from cantata.ledger.runs.summaries import RunSummary
from cantata.values import JsonValue


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as read at one moment."""

    run: RunSummary
    request: str
    """The request as JSON text; its beginning, if it `is_cut`."""
    is_cut: bool
    offset: int
    """The last event that it includes."""
    steps: Mapping[str, StepSummary]
    names: Mapping[str, str]
    terminals: tuple[str, ...]

    def answering(self, name: str) -> str:
        """Return the step that answers to a name."""
        return answering(self.names, name)


@dataclass(frozen=True, slots=True)
class Parts:
    """The recorded details of some steps."""

    specs: Mapping[str, Mapping[str, JsonValue]]
    edges: Mapping[str, Sequence[tuple[str, str, bool]]]
    """Step → its out-edges: target, label, whether it wakes."""
    infos: Mapping[str, Mapping[str, JsonValue]]
    expansions: Mapping[str, Mapping[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class Beginning:
    """An output, or its beginning."""

    value: JsonValue
    is_cut: bool = False
    """If so, the value is a text: the beginning of a text, or of the JSON of anything else."""


def planned_steps(states: Iterable[str], edges: Mapping[str, str], expansions: Mapping[str, str]) -> list[str]:
    """Return the steps of a run's plan, without @start, each behind those that it waits for, from the texts of its hashes."""
    parents: dict[str, str] = {START: ""}
    maps: set[str] = set()
    for parent, text in expansions.items():
        expansion = json.loads(text)
        parents |= dict.fromkeys(expansion["ids"] or (), parent)
        maps |= {expansion["items"]["prefix"]} if "items" in expansion else set()
    planned = [
        step_id for step_id in sorted(states) if step_id not in parents and step_id.rpartition("/")[0] not in maps
    ]
    sorter = TopologicalSorter(dict.fromkeys(planned, ()))
    for step_id, parent in parents.items():  # the out-edges of a step that expanded are those of its exit
        sorter.add(step_id, parent)
    for source, text in edges.items():
        for target, _, _ in edges_of(json.loads(text)):
            sorter.add(target, source)
    known = set(planned)
    return [step_id for step_id in sorter.static_order() if step_id in known]


def decoded(texts: Mapping[str, str]) -> dict[str, Mapping[str, JsonValue]]:
    """Return texts of JSON, decoded; equal ones are one object."""
    made: dict[str, Mapping[str, JsonValue]] = {}
    for text in texts.values():
        if text not in made:
            made[text] = json.loads(text)
    return {step_id: made[text] for step_id, text in texts.items()}


def edges_of(found: JsonValue) -> list[tuple[str, str, bool]]:
    """Return edges that Lua wrote: an empty list may be an object."""
    return [
        (str(target), str(label), bool(wakes))
        for target, label, wakes, *_ in cast("list[list[JsonValue]]", found or [])
    ]
