"""The chains of a builder and their dependencies. Each change returns a new plan, or raises ValueError; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from pydantic import Field

from cantata.flows.definitions import Agent, Model, Tool
from cantata.flows.expressions import templates
from cantata.flows.graphs import postorder, reach
from cantata.flows.instructions import Chainbreaker, Instruction, NestedStep
from cantata.flows.turns.agent_steps import template
from cantata.text.suggestions import did_you_mean
from cantata.values import Value

Mode = Literal["serial", "parallel", "independent"]
Technique = Literal["normal", "head-tail"]

MERGED = "merged"
"""The default group of merged chains."""

RESERVED = frozenset({"input", "text", "instruction", "output", "index", "item"})
"""Names that no chain may have, since they have another meaning in texts and expressions."""

MAX_ID_LENGTH = 100  # characters; ids of steps contain it


class BuilderBase(Value):
    """The settings that all chains of a builder share."""

    model: str | Model = Field(description="asked for each text")
    instruction: str = Field(description="the template around each text: `{instruction}` is the text")
    technique: Technique = Field(
        default="normal", description="whether a chain is always a list, or may be one text whose answer lists tasks"
    )
    step_timeout_s: float = Field(default=60.0, gt=0, description="seconds one model call or function may take")


class ChainParts(Value):
    """Instructions, and the definitions that they refer to."""

    instructions: list[Instruction]
    chainbreakers: list[Chainbreaker] = Field(default_factory=list, description="functions that may end the chain")
    agents: dict[str, Agent] = Field(default_factory=dict, description="chains within the chain")
    tools: dict[str, Tool] = Field(default_factory=dict, description="what its models may call")
    folder: str | None = Field(default=None, description="where its functions are imported from; none if it has none")


class BuilderChain(Value):
    """A chain of a builder."""

    instructions: list[Instruction] = Field(min_length=1)
    chainbreakers: list[Chainbreaker] = Field(default_factory=list, description="functions that may end the chain")
    execution_mode: Mode = "serial"
    group: str = "default"
    dependencies: list[str] = Field(default_factory=list, description="chains that must be completed before it starts")


class BuilderPlan(Value):
    """A builder's chains, in the order they were created."""

    base: BuilderBase
    chains: dict[str, BuilderChain] = Field(default_factory=dict)
    agents: dict[str, Agent] = Field(default_factory=dict)
    tools: dict[str, Tool] = Field(default_factory=dict)
    folder: str | None = None
    tasks: dict[str, str] = Field(
        default_factory=dict, description="placeholder → the task that a model listed, whose braces are its own"
    )

    def member(self, chain_id: str) -> BuilderChain:
        """Return a chain. Raises ValueError if there is none of this id."""
        if not isinstance(chain_id, str):
            raise ValueError(f"a chain's id is a text, not {chain_id!r}")
        if chain_id not in self.chains:
            raise ValueError(f"Chain {chain_id!r} not found{did_you_mean(chain_id, self.chains)}")
        return self.chains[chain_id]

    def group(self, group: str) -> list[str]:
        """Return the chains of a group. Raises ValueError if it has none."""
        if not isinstance(group, str):
            raise ValueError(f"a group's name is a text, not {group!r}")
        found = [chain_id for chain_id, member in self.chains.items() if member.group == group]
        if not found:
            groups = dict.fromkeys(member.group for member in self.chains.values())
            raise ValueError(f"Group {group!r} not found{did_you_mean(group, groups)}")
        return found

    def ordered(self, chain_ids: Iterable[str]) -> list[str]:
        """Return the chains in topological order of their dependencies, otherwise in the order of their creation."""
        wanted = set(chain_ids)
        behind = postorder(self.chains, {chain_id: member.dependencies for chain_id, member in self.chains.items()})
        return [chain_id for chain_id in behind if chain_id in wanted]

    def depends_on(self, chain_id: str, other: str) -> bool:
        """Return whether a chain depends on another, directly or indirectly."""
        needs = {each: member.dependencies for each, member in self.chains.items()}
        return chain_id != other and other in reach([chain_id], needs)


# --- changes ----------------------------------------------------------------------------------------------------------


def create(
    plan: BuilderPlan, chain_id: str, parts: ChainParts, *, mode: Mode, group: str, dependencies: Sequence[str]
) -> BuilderPlan:
    """Return the plan with one more chain."""
    _check_id(chain_id)
    if chain_id in plan.chains:
        raise ValueError(f"Chain {chain_id!r} already exists")
    if mode not in get_args(Mode):
        raise ValueError(
            f"execution_mode is {', '.join(map(repr, get_args(Mode)))}, not {mode!r}{did_you_mean(mode, get_args(Mode))}"
        )
    if not isinstance(group, str) or not group.strip():
        raise ValueError(f"a group is a text that names it, not {group!r}")
    if isinstance(dependencies, str) or not isinstance(dependencies, Sequence):
        raise ValueError(f"dependencies is a list of chains, such as {[str(dependencies)]}; not {dependencies!r}")
    for dependency in dependencies:
        plan.member(dependency)
    needed = list(dict.fromkeys(dependencies))
    member = BuilderChain(
        instructions=parts.instructions,
        chainbreakers=parts.chainbreakers,
        execution_mode=mode,
        group=group,
        dependencies=needed,
    )
    return _with_chain(_with_parts(plan, parts), chain_id, member)


def replace(
    plan: BuilderPlan, chain_id: str, parts: ChainParts, *, mode: Mode, group: str, dependencies: Sequence[str]
) -> BuilderPlan:
    """Return the plan with one more chain, in place of one with its id. Raises ValueError if it would depend on itself."""
    if isinstance(dependencies, list | tuple) and chain_id in dependencies:
        raise ValueError(f"chain {chain_id!r} cannot depend on itself: leave it out of its dependencies")
    others = {each: member for each, member in plan.chains.items() if each != chain_id}
    rest = _without_unused(plan.model_copy(update={"chains": others}))
    made = create(rest, chain_id, parts, mode=mode, group=group, dependencies=dependencies)
    if chain_id in plan.chains and plan.chains[chain_id].group == group:  # it keeps its position
        made = made.model_copy(update={"chains": {each: made.chains[each] for each in plan.chains}})
    for dependency in made.chains[chain_id].dependencies:
        if made.depends_on(dependency, chain_id):
            raise ValueError(
                f"chain {dependency!r} depends on {chain_id!r}, so {chain_id!r} cannot depend on it: they would form a cycle"
            )
    return made


def create_task(plan: BuilderPlan, chain_id: str, task: str, head: str, *, mode: Mode, group: str) -> BuilderPlan:
    """Return the plan with a chain for a task that another chain, its head, listed."""
    placeholder = f"task {chain_id}"  # which is no chain's id
    text = f"{{{placeholder}}}" if "{input}" in plan.base.instruction else f"{{{placeholder}}}\n\n{{input}}"
    with_task = plan.model_copy(update={"tasks": {**plan.tasks, placeholder: task}})
    return create(with_task, chain_id, ChainParts(instructions=[text]), mode=mode, group=group, dependencies=[head])


def insert(plan: BuilderPlan, target: str, parts: ChainParts, position: int) -> BuilderPlan:
    """Return the plan with more instructions in a chain: before the one at `position` (from 0), or at the end if it is negative."""
    member = plan.member(target)
    return _with_chain(_with_parts(plan, parts), target, _with_inserted(member, parts.instructions, position))


def inject(plan: BuilderPlan, target: str, source: str, position: int) -> BuilderPlan:
    """Return the plan with a copy of one chain's instructions in another, which then also has the dependencies of the source."""
    member, injected = plan.member(target), plan.member(source)
    if not can_inject(plan, target, source):
        raise ValueError(
            f"chain {source!r} depends on {target!r}, so it cannot be injected into it: the dependencies would form a cycle"
        )
    needed = [*member.dependencies, *(each for each in injected.dependencies if each != target)]
    spliced = _with_inserted(member, injected.instructions, position)
    return _with_chain(plan, target, spliced.model_copy(update={"dependencies": list(dict.fromkeys(needed))}))


def can_inject(plan: BuilderPlan, target: str, source: str, position: int = -1) -> bool:
    """Return whether an injection has a position in the target and leaves the dependencies without a cycle."""
    plan.member(source)
    if not isinstance(position, int):
        raise ValueError(f"position is a whole number, not {position!r}")
    return position <= len(plan.member(target).instructions) and not plan.depends_on(source, target)


def merge(plan: BuilderPlan, chain_ids: Sequence[str], new_id: str, *, mode: Mode, group: str | None) -> BuilderPlan:
    """Return the plan with a chain of the instructions of others, in their order. A serial one runs after those others."""
    if isinstance(chain_ids, str) or not isinstance(chain_ids, Sequence) or not chain_ids:
        raise ValueError(f"merge_chains takes the list of the chains to merge, not {chain_ids!r}")
    merged = [plan.member(chain_id) for chain_id in chain_ids]
    instructions = [instruction for member in merged for instruction in member.instructions]
    needed = [dependency for member in merged for dependency in member.dependencies]
    sources = list(chain_ids) if mode == "serial" else []
    return create(
        plan,
        new_id,
        ChainParts(instructions=instructions),
        mode=mode,
        group=group or MERGED,
        dependencies=[*sources, *needed],
    )


def reorder(plan: BuilderPlan, chain_id: str, order: Sequence[int] | None) -> BuilderPlan:
    """Return the plan with a chain's steps in another order, given by indexes from 0; by default those that need other chains go last."""
    member = plan.member(chain_id)
    steps = range(len(member.instructions))
    if order is None:
        needs = needs_of_steps(plan, chain_id)
        order = sorted(steps, key=lambda step: bool(needs[step]))
    if not isinstance(order, Sequence) or not all(type(step) is int for step in order) or sorted(order) != list(steps):
        raise ValueError(
            f"the new order of {chain_id!r} names each of its steps once: {', '.join(map(str, steps))}; not {order!r}"
        )
    return _with_chain(
        plan, chain_id, member.model_copy(update={"instructions": [member.instructions[step] for step in order]})
    )


def needs_of_steps(plan: BuilderPlan, chain_id: str) -> dict[int, list[str]]:
    """Return for each step of a chain, from 0, the chains whose outputs its text refers to."""
    member = plan.member(chain_id)
    named = [templates.names(template(instruction)) for instruction in member.instructions]
    return {step: [each for each in member.dependencies if each in names] for step, names in enumerate(named)}


# ----------------------------------------------------------------------------------------------------------------------


def _check_id(chain_id: object) -> None:
    if not isinstance(chain_id, str) or not re.fullmatch(r"[\w.-]+", chain_id):
        raise ValueError(f"a chain's id is made of letters, digits, '_', '-' and '.', not {chain_id!r}")
    if len(chain_id) > MAX_ID_LENGTH:
        raise ValueError(f"the chain's id has {len(chain_id)} characters; at most {MAX_ID_LENGTH} are allowed")
    if chain_id in RESERVED or chain_id.startswith("memory."):
        raise ValueError(f"a chain's id cannot be {chain_id!r}: {{{chain_id}}} in a text has another meaning")


def _with_chain(plan: BuilderPlan, chain_id: str, member: BuilderChain) -> BuilderPlan:
    return plan.model_copy(update={"chains": {**plan.chains, chain_id: member}})


def _with_parts(plan: BuilderPlan, parts: ChainParts) -> BuilderPlan:
    """Return the plan with the definitions that more instructions refer to."""
    if plan.folder and parts.folder and plan.folder != parts.folder:
        raise ValueError(
            f"the chains use functions from two folders, {plan.folder} and {parts.folder}; workers import from one only"
        )
    for name, tool in parts.tools.items():
        if plan.tools.get(name, tool) != tool:
            raise ValueError(f"tool {name!r} is a different tool in another chain of this builder; rename one")
    return plan.model_copy(
        update={
            "agents": {**plan.agents, **parts.agents},
            "tools": {**plan.tools, **parts.tools},
            "folder": plan.folder or parts.folder,
        }
    )


def _without_unused(plan: BuilderPlan) -> BuilderPlan:
    """Return the plan without the agents and tools that none of its chains uses."""
    parts: dict[str, Agent | BuilderChain] = {
        **plan.agents,
        **{f"chain {chain_id}": member for chain_id, member in plan.chains.items()},
    }
    nested = {
        name: [each.agent for each in part.instructions if isinstance(each, NestedStep) and each.agent]
        for name, part in parts.items()
    }
    reached = reach(parts.keys() - plan.agents.keys(), nested)
    used = {name: part for name, part in parts.items() if name in reached}
    names = {name for part in used.values() for name in getattr(part, "tools", ())}
    names |= {
        name for part in used.values() for each in part.instructions for name in getattr(each, "tools", None) or ()
    }
    agents = {name: agent for name, agent in plan.agents.items() if name in used}
    tools = {
        name: tool for name, tool in plan.tools.items() if any(f"{each}.".startswith(f"{name}.") for each in names)
    }
    return plan.model_copy(update={"agents": agents, "tools": tools})


def _with_inserted(member: BuilderChain, more: Sequence[Instruction], position: int) -> BuilderChain:
    count = len(member.instructions)
    if not isinstance(position, int) or position > count:
        raise ValueError(f"position is the step to insert before, 0 to {count}, or -1 for the end; not {position!r}")
    insert_at = count if position < 0 else position
    return member.model_copy(
        update={"instructions": [*member.instructions[:insert_at], *more, *member.instructions[insert_at:]]}
    )
