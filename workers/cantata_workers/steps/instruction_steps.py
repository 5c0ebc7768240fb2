"""The steps between the prompts of an agent: functions, chainbreakers, and the end of its instructions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter
from typing import Any, cast

from cantata.flows.definitions import Agent
from cantata.flows.graph import Outcome
from cantata.flows.instructions import AgenticStep, FunctionStep, Instruction, MemoryStep, PromptStep
from cantata.flows.turns.agent_steps import STOP
from cantata.operation import exits
from cantata.values import JsonValue, Usage
from cantata_workers.models.dialects.conversation import truncated
from cantata_workers.process.step_context import StepContext, as_compact_text, handles, text_input
from cantata_workers.tools import functions

_MOST_ARGUMENTS = 3  # of a chainbreaker; one that takes any number is given all


@handles("agent.function")
def agent_function(context: StepContext) -> Outcome:
    """Call a function with the text before it, or without arguments if it has no more parameters; its output is text."""
    instruction = _agent(context).instructions[context.int_param("turn")]
    assert isinstance(instruction, FunctionStep)
    function, count = _bound(context, instruction)
    given = [] if count == 0 else [text_input(context)]
    output = functions.call(context, instruction.function, partial(function, *given), {})
    return Outcome(output=output if isinstance(output, str) else str(output), usage=Usage(tool_calls=1))


@handles("agent.break")
def agent_break(context: StepContext) -> Outcome:
    """Call the chainbreakers in order; the first that stops the instructions may replace their output."""
    agent, number = _agent(context), context.int_param("turn")
    output = text_input(context)
    info = _entry(number, agent.instructions[number], context.begun.inputs.get("@input"), output)
    warnings: list[str] = []
    for breaker in agent.chainbreakers:
        stop, reason, replaced = _call_breaker(context, breaker, (number + 1, output, info), warnings) or (
            False,
            "",
            None,
        )
        if stop:
            detail: dict[str, JsonValue] = {
                "breaker": breaker.function,
                "reason": str(reason),
                "original": truncated(output),
            }
            context.process.ledger.runs.append_event(
                context.begun.run_id, "break", step_id=context.begun.step_id, detail=detail
            )
            return Outcome(
                output=output if replaced is None else str(replaced), takes=(STOP,), warnings=tuple(warnings)
            )
    return Outcome(output=output, warnings=tuple(warnings))


@handles("agent.end")
def agent_end(context: StepContext) -> Outcome:
    """End an agent: return the output of the last instruction that ran, or the list of all if the agent has `full_history`."""
    agent = _agent(context)
    ledger, run_id = context.process.ledger, context.begun.run_id
    done, ends = (cast("list[str]", context.params[key]) for key in ("done", "ends"))
    ran = [info for info in ledger.reader.infos(run_id, ledger.reader.answering(run_id, done)) if info]
    texts = [_text(output) for output in ledger.reader.outputs(run_id, ledger.reader.answering(run_id, ends))][
        : len(ran)
    ]
    history = _history(agent, text_input(context), texts)
    detail: dict[str, JsonValue] = {"history": cast(JsonValue, history)} if agent.full_history else {}
    if agent.store_steps:
        kept = ("type", "output", "model_params")
        detail["steps"] = {
            f"step_{number}": {key: entry[key] for key in kept if key in entry} for number, entry in enumerate(history)
        }
    if "agentic" in ran[-1]:
        detail["agentic"] = ran[-1]["agentic"]
    return Outcome(output=cast(JsonValue, history) if agent.full_history else texts[-1], detail=detail)


def _history(agent: Agent, text: str, texts: Sequence[str]) -> list[dict[str, JsonValue]]:
    """Return the input and the output of each instruction; the initial input is step 0."""
    entries: list[dict[str, JsonValue]] = [{"step": 0, "input": text, "output": text, "type": "initial"}]
    models = iter(agent.models * len(texts) if len(agent.models) == 1 else agent.models)
    before = text
    for number, (instruction, output) in enumerate(zip(agent.instructions, texts, strict=False)):
        entry = _entry(number, instruction, before, output)
        if isinstance(instruction, str | PromptStep) and (model := next(models, None)) is not None:
            entry["model_params"] = {} if isinstance(model, str) else model.params
        entries.append(entry)
        before = output
    return entries


def _bound(context: StepContext, step: FunctionStep) -> tuple[Callable[..., Any], int | None]:
    """Return a function with its own arguments, and how many more it takes by position; None if that is unknown."""
    function = partial(functions.load_for(step.function, context), *step.args, **step.kwargs)
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some C functions have none
        return function, None
    kinds = [each.kind for each in parameters.values()]
    count = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    return function, max(count, _MOST_ARGUMENTS) if Parameter.VAR_POSITIONAL in kinds else count


def _call_breaker(
    context: StepContext, step: FunctionStep, arguments: tuple[Any, ...], warnings: list[str]
) -> tuple[Any, Any, Any] | None:
    """Return the triple of a chainbreaker; None, with a warning, if it cannot be called or returns something else.

    Raises StepError if it cannot be imported, or raises what is no `Exception`.
    """
    name = step.function
    breaker, count = _bound(context, step)
    if count not in (None, 2, 3):
        warnings.append(
            f"chainbreaker {name} takes {count} arguments, not (step, output) or (step, output, info); it is ignored"
        )
        return None
    try:
        stop, reason, output = functions.result_of(context, breaker(*arguments[:count]))
    except Exception as error:  # noqa: BLE001  # whatever a user's function raises, or returns in place of a triple
        warnings.append(f"chainbreaker {name} is ignored: {type(error).__name__}: {error}")
        return None
    except BaseException as error:
        raise exits.failure_of(f"chainbreaker {name}", error) from error
    return stop, reason, output


def _agent(context: StepContext) -> Agent:
    return context.definitions.agents[context.text_param("agent")]


def _text(output: str | None) -> str:
    return as_compact_text(json.loads(output) if output else None)


def _entry(number: int, instruction: Instruction, given: JsonValue, output: str) -> dict[str, JsonValue]:
    """Return the record of an instruction that ran; in place of the input of a function it names the function."""
    match instruction:
        case str() | PromptStep():
            kind = "model"
        case FunctionStep():
            kind, given = "function", f"Function: {instruction.function.partition(':')[2]}"
        case MemoryStep():
            kind, given = "function", f"Function: memory of {instruction.memory}"
        case _:
            kind = "agentic_step" if isinstance(instruction, AgenticStep) else "chain"
    return {"step": number + 1, "input": given, "output": output, "type": kind}
