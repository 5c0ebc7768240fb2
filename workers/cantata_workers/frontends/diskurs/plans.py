"""Plans of tool calls that a model makes: their validation, and references to the results of other steps."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cantata.flows import graphs
from cantata.values import JsonValue, as_text
from cantata_workers.frontends.diskurs.replies import ReplyError
from cantata_workers.frontends.diskurs.user_code.entities import InputField, JsonSerializable, PromptArgument

SYSTEM = """You solve tasks by plans. A plan is a list of steps, each the call of one function:
- step_id: a short name, of no other step
- description: what the step is for
- function: the name of a function, see below
- parameters: its arguments. "$ID" stands for the result of the step ID
- depends_on: the step_ids of the steps that must be done before
Steps that do not depend on each other are done at the same time. Leave result and status as they are.

The functions:
{% for tool in tools %}
- {{ tool.name }}: {{ tool.description }} parameters: {{ tool.parameters }}
{%- endfor %}"""
USER = """{% if not execution_plan -%}
Make a plan in execution_plan for this task:

{{ user_query }}
{%- else -%}
The plan was carried out for this task:

{{ user_query }}

These are its steps and what came of them:
{% for step in execution_plan %}
- {{ step.step_id }} ({{ step.function }}): {{ step.status }}: {{ step.result }}
{%- endfor %}

If that is enough, write the answer in answer. If not, set replan to true, tell in replan_explanation what is missing, and give a better
plan in execution_plan.
{%- endif %}"""

_REFERENCE = re.compile(r"\$(\w+(?:-\w+)*)")


@dataclass
class PlanStep(JsonSerializable):
    """One step of a plan."""

    step_id: str
    description: str = ""
    function: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    depends_on: list[str] = field(default_factory=list)
    result: Any = None
    status: str = "pending"


@dataclass
class PlanningPromptArgument(PromptArgument):
    """The arguments of a planning agent's prompts, and of its replies."""

    user_query: InputField[str] = ""
    execution_plan: list[PlanStep] = field(default_factory=list)
    answer: str = ""
    replan: bool = False
    replan_explanation: str = ""


Step = dict[str, JsonValue]


def steps_of(arguments: Mapping[str, JsonValue]) -> list[Step]:
    """Return the steps of the plan."""
    return cast("list[Step]", arguments.get("execution_plan") or [])


def is_open(arguments: Mapping[str, JsonValue]) -> bool:
    """Return whether there is a plan that was not carried out."""
    steps = steps_of(arguments)
    return bool(steps) and all(step["status"] == "pending" for step in steps)


def is_final(arguments: Mapping[str, JsonValue]) -> bool:
    """Return whether there is an answer, and no new plan is requested."""
    return bool(arguments.get("answer")) and not arguments.get("replan") and not is_open(arguments)


def check(arguments: Mapping[str, JsonValue], tools: Collection[str]) -> None:
    """Raise ReplyError with every fault if the plan cannot be carried out."""
    if not is_open(arguments):
        return
    steps = steps_of(arguments)
    ids = [str(step["step_id"]) for step in steps]
    faults = [f"step_id {twice!r} stands twice" for twice in sorted({each for each in ids if ids.count(each) > 1})]
    faults += [
        f"a step_id is made of letters, digits, - and _, not {each!r}"
        for each in ids
        if not re.fullmatch(r"[\w-]+", each)
    ]
    for step in steps:
        if step["function"] not in tools:
            faults.append(
                f"step {step['step_id']!r} calls {step['function']!r}, but the functions are {', '.join(tools)}"
            )
        unknown = [name for name in (*_declared(step), *_whole_references(step["parameters"])) if name not in ids]
        faults += [f"step {step['step_id']!r} depends on {name!r}, which is no step" for name in dict.fromkeys(unknown)]
    needs = {str(step["step_id"]): [name for name in needs_of(step, ids) if name in ids] for step in steps}
    faults += [
        f"these steps wait for each other: {', '.join(sorted(cycle))}"
        for cycle in graphs.cycles(dict.fromkeys(ids), needs)
    ]
    if faults:
        raise ReplyError(f"The plan cannot be carried out: {'; '.join(faults)}. Please correct execution_plan.")


def merge_plan(before: Mapping[str, JsonValue], arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the arguments after a reply: a plan that was carried out stays as it is, unless the reply requests a new one."""
    known = steps_of(before)
    was_carried_out = bool(known) and not is_open(before)
    if was_carried_out and (not arguments.get("replan") or steps_of(arguments) == known):
        return {**arguments, "execution_plan": before["execution_plan"]}
    return {
        **arguments,
        "execution_plan": [{**step, "result": None, "status": "pending"} for step in steps_of(arguments)],
    }


def needs_of(step: Mapping[str, JsonValue], ids: Collection[str]) -> list[str]:
    """Return the steps whose results a step needs: those it declares, and those that its parameters refer to."""
    referred = [name for name in _references(step["parameters"]) if name in ids]
    return list(dict.fromkeys([*_declared(step), *referred]))


def fill_references(value: JsonValue, results: Mapping[str, JsonValue]) -> JsonValue:
    """Return a parameter with references replaced by results. A reference that is a whole text keeps the result's type."""
    if isinstance(value, dict):
        return {key: fill_references(each, results) for key, each in value.items()}
    if isinstance(value, list):
        return [fill_references(each, results) for each in value]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole and whole[1] in results:
        return results[whole[1]]
    return _REFERENCE.sub(lambda found: as_text(results[found[1]]) if found[1] in results else found[0], value)


def with_results(steps: Sequence[Step], results: Mapping[str, tuple[JsonValue, str]]) -> list[JsonValue]:
    """Return the plan with the result of each step, or its error."""
    done: list[JsonValue] = []
    for step in steps:
        value, error = results[str(step["step_id"])]
        done.append({**step, "result": error or value, "status": "failed" if error else "completed"})
    return done


def _declared(step: Mapping[str, JsonValue]) -> list[str]:
    return [str(each).removeprefix("$") for each in cast("list[JsonValue]", step.get("depends_on") or [])]


def _references(value: JsonValue) -> list[str]:
    if isinstance(value, str):
        return _REFERENCE.findall(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for part in parts for name in _references(part)]


def _whole_references(value: JsonValue) -> list[str]:
    """Return the references that are a whole text, which can mean nothing else."""
    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        return [whole[1]] if whole else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for part in parts for name in _whole_references(part)]
