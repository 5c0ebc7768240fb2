"""The steps of a chain as read from the file: ids, kinds, and checks of their keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count

from cantata.text.suggestions import hint, nearest
from cantata_frontends.langswarm.config_part import ConfigPart
from cantata_frontends.langswarm.vocabulary import ALIASES, ALL_STEP_KEYS, KINDS, STEP, TYPES

_FORBIDDEN = "/#@|=,*"  # delimiters in the ids of a run's steps
_TAKEN = {"input", "output", "item", "index", "_item"}  # names with another meaning in expressions of chains


_PLAIN_NAME = re.compile(r"[\w-]+")

FAULTY = "faulty"
"""The kind of a step without a valid kind."""


@dataclass(frozen=True)
class ChainStep:
    """A step, as the file has it."""

    id: str
    node: str
    """The id of its node."""
    kind: str
    """agent, function, tool, transform, invoke_workflow, loop, condition, approval"""
    part: ConfigPart

    def at(self, key: str) -> ConfigPart:
        """Return the part under a key or one of its aliases."""
        return self.part.first(*ALIASES.get(key, (key,))) or self.part.at(key)

    def has(self, key: str) -> bool:
        """Return whether there is a value under a key or one of its aliases."""
        return any(map(self.part.has, ALIASES.get(key, (key,))))

    def is_true(self, key: str) -> bool:
        """Return whether the value of a key is true."""
        return bool(self.at(key).boolean())

    def names(self, key: str) -> list[tuple[ConfigPart, str]]:
        """Return the texts of a list under a key."""
        return self.at(key).texts() if self.has(key) else []

    @cached_property
    def asks(self) -> str | None:
        """The agent that it calls."""
        name = self.at("agent").value if self.kind == "agent" else None
        return name if isinstance(name, str) else None

    @property
    def is_navigator(self) -> bool:
        """Return whether an agent's answer chooses the next step."""
        return self.kind == "agent" and self.has("navigation")


def read_steps(part: ConfigPart) -> list[ChainStep]:
    """Return the steps of a list."""
    found: list[ChainStep] = []
    taken: dict[str, ConfigPart] = {}
    given = {str(item.value.get("id", item.value.get("step"))) for item in part.items() if isinstance(item.value, dict)}
    for item in part.items():
        if not isinstance(item.value, dict):
            item.fault("expected a step: a mapping such as {agent: ..., input: ...}")
            continue
        kind = _kind(item)
        step_id = _id(item, kind, taken, given)
        if step_id in taken:
            item.fault(
                f"the id {step_id!r} is also the id of the step on line {taken[step_id].document.line(taken[step_id].path)}"
            )
        if step_id == "user":
            item.fault("the id 'user' means the user in 'output.to'; give the step another id")
        for character in sorted(set(step_id) & set(_FORBIDDEN)):
            item.fault(f"the id {step_id!r} contains {character!r}, which is not allowed in ids")
        taken.setdefault(step_id, item)
        found.append(ChainStep(step_id, f"{step_id}-step" if step_id in _TAKEN else step_id, kind or FAULTY, item))
        if kind:
            _check_keys(found[-1])
    return found


def _kind(part: ConfigPart) -> str | None:
    """Return the kind of a step; None with a fault."""
    declared = part.at("type").value
    if declared is not None and not part.at("type").is_known(str(declared), TYPES, "type"):
        return None
    kinds = [kind for kind in KINDS if any(map(part.has, ALIASES.get(kind, (kind,))))]
    is_choice = any(map(part.has, (*ALIASES["true_step"], *ALIASES["false_step"])))
    if declared is not None:
        kinds = [kind for kind in kinds if kind != "function"] if TYPES[str(declared)] == "transform" else kinds
        kinds = list(dict.fromkeys([TYPES[str(declared)], *kinds]))
    if is_choice:
        kinds = list(dict.fromkeys(["condition", *kinds]))
    if "transform" in kinds and "function" in kinds:
        kinds.remove("function")
    if part.has("no_mcp") and "agent" not in kinds:
        part.at("no_mcp").fault("'no_mcp' needs an 'agent', which chooses among the tools")
        return None
    if not kinds:
        part.fault(f"the step does nothing; it needs one of {', '.join(map(repr, reversed(KINDS)))}{_near_kind(part)}")
        return None
    if kinds == ["agent"] and not any(map(part.has, ALIASES["agent"])):
        part.fault("the step names no agent; it needs an 'agent', which answers or chooses the next step")
        return None
    if len(kinds) > 1:
        part.fault(f"a step does one thing, not {' and '.join(map(repr, kinds))}")
        return None
    return kinds[0]


def _near_kind(part: ConfigPart) -> str:
    unknown = [key for key, _ in part.entries() if key not in _KEYS]
    hints = [f" (unknown key {key!r}{hint(near)})" for key in unknown if (near := nearest(key, _KEYS))]
    return hints[0] if hints else ""


_TITLES = {"invoke_workflow": "another workflow", "approval": "an approval", "agent": "an agent's"}
_KEYS = sorted({*ALL_STEP_KEYS, *(alias for aliases in ALIASES.values() for alias in aliases)})


def _check_keys(step: ChainStep) -> None:
    known = {alias for key in STEP[step.kind] for alias in ALIASES.get(key, (key,))}
    step.part.check_keys(known, _KEYS, f"a step that is {_TITLES.get(step.kind, f'a {step.kind}')}")
    for aliases in ALIASES.values():
        first, *others = [alias for alias in aliases if step.part.has(alias)] or [""]
        for other in others:
            step.part.at(other).fault(f"{other!r} means the same as {first!r}; write one of them")


def _id(part: ConfigPart, kind: str | None, taken: dict[str, ConfigPart], given: set[str]) -> str:
    """Return the id of a step, or a new one: the name of its callee, with a number if that is taken."""
    own = part.first(*ALIASES["id"])
    if own is not None:
        return own.text()
    title = part.at("name").value
    if isinstance(title, str) and _PLAIN_NAME.fullmatch(title):
        return title if title not in {*taken, *given} else free_name(title, {*taken, *given})
    named = part.first(*ALIASES.get(kind or "", ())) if kind else None
    name = named.value if named is not None and isinstance(named.value, str) else kind or "step"
    base = "".join("-" if character in _FORBIDDEN or character.isspace() else character for character in name) or "step"
    return free_name(base, {*taken, *given})


def free_name(base: str, taken: Collection[str]) -> str:
    """Return a name, with a number if it is taken."""
    names = chain([base], (f"{base}-{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def agents_of(steps: Sequence[ChainStep]) -> dict[str, str]:
    """Return for each agent the first step that calls it."""
    return {step.asks: step.id for step in reversed(steps) if step.asks}
