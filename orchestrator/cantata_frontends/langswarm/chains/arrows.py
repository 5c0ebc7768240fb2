"""Chains that are written as arrows: `a -> b -> user`, `a, b -> c`, `a -> (b | c) -> user`.

They are short for steps. Steps joined by `,` run in parallel, and the next one gets an object of their outputs. Of steps joined by `|` one
runs: the one that the answer before names, else the last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue
from cantata_frontends.langswarm.config_part import ConfigPart

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class ArrowNames:
    """The names that may occur between arrows."""

    agents: Collection[str]
    tools: Collection[str]
    chains: Collection[str]

    def key(self, name: str) -> str | None:
        """Return the key of a step that calls what the name refers to."""
        kinds = (("agent", self.agents), ("tool", self.tools), ("invoke_workflow", self.chains))
        return next((key for key, known in kinds if name in known), None)


@dataclass(frozen=True)
class _Stage:
    """The steps between two arrows: all of them run, or one."""

    names: tuple[str, ...]
    ids: tuple[str, ...]
    is_choice: bool


def is_arrow(value: JsonValue) -> bool:
    """Return whether a value is a chain written as arrows."""
    return isinstance(value, str) and "->" in value


def unfold(part: ConfigPart, names: ArrowNames) -> list[JsonValue]:
    """Return the steps that an arrow text is short for."""
    taken: Counter[str] = Counter()
    stages = [stage for text in part.text().split("->") if (stage := _stage(part, text.strip(), taken))]
    to_user = bool(stages) and stages[-1].names == ("user",)
    stages = stages[:-1] if to_user else stages
    if not stages:
        part.fault("the workflow has no steps: write names between the arrows, such as 'analyst -> writer -> user'")
    steps: list[JsonValue] = []
    for before, stage, after in zip([None, *stages], stages, [*stages[1:], None], strict=False):
        if stage.is_choice and (before is None or len(before.ids) > 1):
            part.fault(
                f"{' | '.join(stage.names)!r} needs one step before it, whose answer names the one that is meant"
            )
        if after is None:
            output: JsonValue = {"to": "user"} if to_user else {}
        else:
            output = {"to": _choice(stage.ids[0], after)} if after.is_choice else {}
        for name, step_id in zip(stage.names, stage.ids, strict=True):
            depends_on: list[JsonValue] = [*before.ids] if before else []
            step: dict[str, JsonValue] = {
                _key(part, name, names): name,
                "input": _input(before),
                "depends_on": depends_on,
            }
            steps.append({"id": step_id, **step, **({"output": output} if output else {})})
    return steps


def _stage(part: ConfigPart, text: str, taken: Counter[str]) -> _Stage | None:
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    names = tuple(name.strip() for name in re.split(r"[|,]", inner))
    if not all(map(_NAME.fullmatch, names)) or ("|" in inner and "," in inner):
        part.fault(f"{text!r} is neither a name, nor names with ',' between them, nor names with '|' between them")
        return None
    ids = []
    for name in names:
        taken[name] += 1
        ids.append(name if taken[name] == 1 else f"{name}-{taken[name]}")
    return _Stage(names, tuple(ids), "|" in inner)


def _key(part: ConfigPart, name: str, names: ArrowNames) -> str:
    key = names.key(name)
    if key is None and name == "user":
        part.fault("'user' may only follow the last arrow")
    elif key is None:
        known = [*names.agents, *names.tools, *names.chains, "user"]
        part.fault(f"there is no agent, tool or workflow {name!r}{did_you_mean(name, known)}")
    return key or "agent"


def _input(before: _Stage | None) -> JsonValue:
    if before is None:
        return "${user_input}"
    if before.is_choice or len(before.ids) == 1:
        return "${" + " || ".join(before.ids) + "}"
    return {step_id: f"${{{step_id}}}" for step_id in before.ids}


def _choice(step_id: str, stage: _Stage) -> JsonValue:
    """Return the route to one step of a stage, by the name that an answer contains in any case, the longest names first."""
    target: JsonValue = stage.ids[-1]
    for name, chosen in sorted(zip(stage.names, stage.ids, strict=True), key=lambda pair: len(pair[0])):
        spellings = dict.fromkeys((name, name.lower(), name.capitalize(), name.upper()))
        condition = " or ".join(f"${{{step_id}}} contains '{spelling}'" for spelling in spellings)
        target = {"condition": {"if": condition, "then": chosen, "else": target}}
    return target
