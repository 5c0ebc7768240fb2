"""A builder's arguments as values: its base settings, instructions with the definitions that they refer to, and lists of tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, get_args

from cantata.bounds import duration_of
from cantata.flows.definitions import Agent, Definitions
from cantata.flows.instructions import FunctionStep, Instruction, NestedStep
from cantata.text.suggestions import did_you_mean
from cantata_frontends.chainbuilder.plan import BuilderBase, ChainParts, Technique
from cantata_frontends.promptchain import PromptChain
from cantata_frontends.promptchain.instruction_lists import models_for
from cantata_frontends.promptchain.prompt_chain import CHAIN

PLACEHOLDERS = ("{instruction}", "{input}")


def read_base(model: str | Mapping[str, Any], instruction: str, technique: str, step_timeout_s: float) -> BuilderBase:
    """Return the settings that all chains share. Raises ValueError.

    In a template without `{instruction}`, each text takes the place of `{input}`.
    """
    if technique not in get_args(Technique):
        raise ValueError(
            f"technique is 'normal' or 'head-tail', not {technique!r}{did_you_mean(technique, get_args(Technique))}"
        )
    if not isinstance(instruction, str) or not any(gap in instruction for gap in PLACEHOLDERS):
        raise ValueError(
            f"Template missing required placeholder: {PLACEHOLDERS[0]} (or {PLACEHOLDERS[1]}), in {instruction!r}"
        )
    if step_timeout_s <= 0:
        raise ValueError(f"step_timeout_s is more than 0 seconds, not {step_timeout_s}")
    duration_of(step_timeout_s, "step_timeout_s")
    (base_model,) = models_for([model], ["{input}"])
    template = instruction if PLACEHOLDERS[0] in instruction else instruction.replace(PLACEHOLDERS[1], PLACEHOLDERS[0])
    return BuilderBase.model_validate(
        {"model": base_model, "instruction": template, "technique": technique, "step_timeout_s": step_timeout_s}
    )


def read_parts(
    instructions: object, technique: Technique, chainbreakers: Sequence[Callable[..., Any]] | None = None
) -> ChainParts:
    """Return a chain's parts. Its instructions are a PromptChain's, or with the technique head-tail also one text. Raises ValueError."""
    if isinstance(instructions, str):
        if technique != "head-tail":
            raise ValueError(
                "First chain must provide instruction list: a single text is for the technique 'head-tail'"
            )
        instructions = [instructions]
    if not isinstance(instructions, Sequence):
        raise ValueError(f"instructions is a list of texts, functions, agentic steps and chains, not {instructions!r}")
    if not instructions:
        raise ValueError("Instruction list cannot be empty")
    return _parts(PromptChain(["unused"], instructions, chainbreakers=chainbreakers).definitions)


def _parts(definitions: Definitions) -> ChainParts:
    """Return the agent `chain` of definitions as parts. Chains within it are named by their content, so that names of two never clash."""
    digest = sha256(definitions.model_dump_json(include={"agents", "folder"}).encode()).hexdigest()[:8]
    within = {name: f"{digest}{name.removeprefix(CHAIN)}" for name in definitions.agents if name != CHAIN}
    agents = {name: _renamed(agent, within) for name, agent in definitions.agents.items()}
    chain = agents.pop(CHAIN)
    has_functions = definitions.tools or any(_functions(agent) for agent in (chain, *agents.values()))
    return ChainParts(
        instructions=chain.instructions,
        chainbreakers=chain.chainbreakers,
        agents={within[name]: agent for name, agent in agents.items()},
        tools=definitions.tools,
        folder=definitions.folder if has_functions else None,
    )


def _renamed(agent: Agent, names: Mapping[str, str]) -> Agent:
    def renamed(instruction: Instruction) -> Instruction:
        is_within = isinstance(instruction, NestedStep) and instruction.agent in names
        return NestedStep(agent=names[instruction.agent]) if is_within else instruction  # type: ignore[union-attr,index]  # it is one

    return agent.model_copy(update={"instructions": list(map(renamed, agent.instructions))})


def _functions(agent: Agent) -> bool:
    return bool(agent.chainbreakers) or any(isinstance(instruction, FunctionStep) for instruction in agent.instructions)


# --- lists of tasks -------------------------------------------------------------------------------------------------


_LIST_MARKER = re.compile(r"^\s*(?:\d+\s*[.):-]|[-*•+]|\(\d+\)|\[[ xX]?\])\s+")


def tasks_in(text: str) -> list[str]:
    """Return the tasks in a model's list, in order: the items of a JSON list of texts, else the numbered or bulleted lines, else all lines.

    An indented line continues the task above it.
    """
    return _json_tasks(text) or _marked_tasks(text) or [line.strip() for line in text.splitlines() if line.strip()]


def _json_tasks(text: str) -> list[str]:
    fenced = re.sub(r"^\s*```\w*\n(.*)\n```\s*$", r"\1", text, flags=re.DOTALL)
    try:
        found = json.loads(fenced)
    except ValueError:
        return []
    return (
        [each.strip() for each in found if each.strip()]
        if isinstance(found, list) and all(isinstance(e, str) for e in found)
        else []
    )


def _marked_tasks(text: str) -> list[str]:
    tasks: list[str] = []
    for line in text.splitlines():
        marker = _LIST_MARKER.match(line)
        if marker:
            tasks.append(line[marker.end() :].strip())
        elif tasks and line.strip() and line[0].isspace():
            tasks[-1] = f"{tasks[-1]} {line.strip()}"
    return [task for task in tasks if task]
