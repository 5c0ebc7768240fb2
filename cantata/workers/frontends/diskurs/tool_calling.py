"""Tools of a Diskurs folder: made by their factories, called with what a model gives and with what no model sees."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from cantata.errors import StepError
from cantata.models.conversation_config import CodeReference, ConversationTool, ToolDependency
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue, ToolSchema, Usage
from cantata.workers.frontends.diskurs import plans
from cantata.workers.frontends.diskurs.user_code import code_loading
from cantata.workers.frontends.diskurs.user_code.entities import ToolDescription
from cantata.workers.models.dialects.rounds import ModelRound, ToolResult
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.tools import functions, schemas

FACTORY = "create_"
FAILED = "ERROR: Tool '{name}' execution failed: {error}. Please correct your input and try again."


def diskurs_tool(work: StepContext) -> Outcome:
    """Calls a tool for a model, or for a plan; a failure is what the model is told."""
    name = work.text_param("tool")
    given = cast("dict[str, JsonValue]", work.params["parameters"])
    needs = cast("dict[str, str]", work.params.get("needs") or {})
    try:
        return Outcome(output=call(work, name, cast("dict[str, JsonValue]", plans.filled(given, _results(work, needs)))), usage=_CALLED)
    except StepError as error:
        message = str(error.__cause__ or error)
        raise StepError(FAILED.format(name=name, error=message), code="tool_error") from error


_CALLED = Usage(tool_calls=1)


def call(work: StepContext, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
    """What a tool answers, sync or async. Raises StepError."""
    function, described = _tool(work, name)
    _check(described, arguments)
    metadata = metadata_of(work)
    hidden = {key: metadata[key] for key in described.invisible if key in metadata}
    found = code_loading.forum_of(work).tools[name].function
    with code_loading.room_of(work).inside(found.file):
        return schemas.jsonable(functions.call(work, name, function, {**arguments, **hidden}))


def callables(work: StepContext, names: Iterable[str]) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]]:
    """Tools as code calls them, with the arguments alone. They run in this process, within the step."""
    return {name: _callable(work, name) for name in names}


def _callable(work: StepContext, name: str) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    function, described = _tool(work, name)
    metadata = metadata_of(work)
    hidden = {key: metadata[key] for key in described.invisible if key in metadata}

    async def called(arguments: Mapping[str, Any]) -> Any:
        answer = function(**{**arguments, **hidden})
        return await answer if inspect.isawaitable(answer) else answer

    return called


def schema_of(work: StepContext, name: str) -> ToolSchema:
    """What a model is told of a tool. Raises StepError."""
    described = _tool(work, name)[1]
    return ToolSchema(name=name, description=described.description, parameters=described.schema)


def metadata_of(work: StepContext) -> Mapping[str, str]:
    """The conversation's metadata: the labels of the run."""
    return work.process.ledger.request_of(work.begun.run_id)[3]


def rounds_of(work: StepContext) -> tuple[tuple[ModelRound, ...], tuple[tuple[ToolResult, ...], ...]]:
    """The rounds of tool calls before this question to a model, and what came of the calls."""
    base, number = str(work.params.get("base") or work.begun.step_id), int(cast(int, work.params.get("round", 0)))
    ids = [base if i == 0 else f"{base}/r{i}" for i in range(number)]
    texts = work.process.ledger.outputs(work.begun.run_id, ids) if ids else []
    rounds = tuple(ModelRound.from_json(json.loads(text)) for text in texts if text)
    answers = [
        tuple(answers_of(work, [f"{step_id}/t{i}" for i in range(len(each.calls))])) for step_id, each in zip(ids, rounds, strict=True)
    ]
    return rounds, tuple(answers)


def answers_of(work: StepContext, step_ids: Sequence[str]) -> list[ToolResult]:
    """What came of steps that called tools. A failure is a text to the model, as Diskurs tells it."""
    if not step_ids:
        return []
    ledger, run_id = work.process.ledger, work.begun.run_id
    outputs, infos = ledger.outputs(run_id, step_ids), ledger.infos(run_id, step_ids)
    return [_answer(output, info) for output, info in zip(outputs, infos, strict=True)]


def _answer(output: str | None, info: Mapping[str, JsonValue]) -> ToolResult:
    error = cast("dict[str, str] | None", info.get("error"))
    return ToolResult(error=error["message"]) if error else ToolResult(value=json.loads(output) if output else None)


def _results(work: StepContext, needs: Mapping[str, str]) -> dict[str, JsonValue]:
    """What the steps that a plan's step depends on gave. Raises StepError if one of them failed."""
    answers = dict(zip(needs, answers_of(work, list(needs.values())), strict=True))
    for name, answer in answers.items():
        if answer.error:
            raise StepError(f"step {name!r}, which it depends on, failed", code="tool_error")
    return {name: answer.value for name, answer in answers.items()}


def _tool(work: StepContext, name: str) -> tuple[Any, ToolDescription]:
    """The function, made once in each process where a factory makes it, and what its docstring says."""
    made = _made_once(work, name, code_loading.forum_of(work).tools[name], lambda: _made(work, name))
    return made, ToolDescription.from_function(made)


def _made_once(work: StepContext, name: str, declared: ConversationTool | ToolDependency, make: Callable[[], Any]) -> Any:
    """What is made as a configuration declares it. Another configuration of the folder may declare something else under its name."""
    forum = code_loading.forum_of(work)
    uses = declared.dependencies if isinstance(declared, ConversationTool) else []
    key = "\n".join([name, *(each.model_dump_json() for each in (declared, *(forum.dependencies[use] for use in uses)))])
    made = code_loading.room_of(work).made
    if key not in made:
        made[key] = make()
    return made[key]


def _made(work: StepContext, name: str) -> Any:
    forum, room = code_loading.forum_of(work), code_loading.room_of(work)
    tool = forum.tools[name]
    factory = CodeReference(file=tool.function.file, name=f"{FACTORY}{tool.function.name}")
    is_made = bool(tool.configs or tool.dependencies)
    if not is_made and callable(getattr(room.module(factory.file, forum.modules), tool.function.name, None)):
        return room.load(tool.function, forum.modules)
    given = {each: _dependency(work, each) for each in tool.dependencies}
    return code_loading.call(work, factory, dict(tool.configs), **given)


def _dependency(work: StepContext, name: str) -> Any:
    dependency = code_loading.forum_of(work).dependencies[name]
    return _made_once(work, name, dependency, lambda: _created(work, name, dependency))


def _created(work: StepContext, name: str, dependency: ToolDependency) -> Any:
    """The object: by its class's `create`, as Diskurs makes them, else by the class itself."""
    made_by, room = dependency.made_by, code_loading.room_of(work)
    made = room.load(made_by, code_loading.forum_of(work).modules)
    create = getattr(made, "create", None)
    called, given = (create, {"name": name}) if callable(create) else (made, {})
    with room.inside(made_by.file):
        return functions.call(work, f"{made_by.file}:{made_by.name}", called, {**given, **dependency.parameters})


def _check(described: ToolDescription, arguments: Mapping[str, JsonValue]) -> None:
    unknown = sorted(arguments.keys() - described.arguments.keys())
    missing = sorted(described.arguments.keys() - arguments.keys())
    faults = [f"unknown argument {name!r}" for name in unknown] + [f"missing argument {name!r}" for name in missing]
    if faults:
        raise StepError("; ".join(faults), code="bad_arguments")
