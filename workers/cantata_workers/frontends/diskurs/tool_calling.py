"""Tools of a Diskurs folder: created by their factories, called with the model's arguments and with metadata that no model sees."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from cantata.errors import CodeExitError, ImportFailedError, StepError
from cantata.flows.graph import Outcome
from cantata.values import JsonValue, ToolSchema, Usage
from cantata_frontends.diskurs.conversation_config import CodeReference, ConversationDependency, ConversationTool
from cantata_workers.frontends.diskurs import plans
from cantata_workers.frontends.diskurs.user_code import code_loading
from cantata_workers.frontends.diskurs.user_code.entities import ToolDescription
from cantata_workers.models.dialects.conversation import ModelRound, ToolResult
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.tools import functions, schemas

FACTORY = "create_"
FAILED = "ERROR: Tool '{name}' execution failed: {error}. Please correct your input and try again."


@handles("diskurs.tool")
def diskurs_tool(context: StepContext) -> Outcome:
    """Call a tool for a model or a plan; the error message is for the model."""
    name = context.text_param("tool")
    given = cast("dict[str, JsonValue]", context.params["parameters"])
    needs = cast("dict[str, str]", context.params.get("needs") or {})
    try:
        return Outcome(
            output=call(
                context, name, cast("dict[str, JsonValue]", plans.fill_references(given, _results(context, needs)))
            ),
            usage=_CALLED,
        )
    except (CodeExitError, ImportFailedError):
        raise
    except StepError as error:
        message = str(error.__cause__ or error)
        raise StepError(FAILED.format(name=name, error=message), code="tool_error") from error


_CALLED = Usage(tool_calls=1)


def call(context: StepContext, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
    """Return the result of a tool, sync or async. Raises StepError."""
    function, described = _tool(context, name)
    _check(described, arguments)
    metadata = metadata_of(context)
    hidden = {key: metadata[key] for key in described.invisible if key in metadata}
    found = code_loading.config_of(context).tools[name].function
    with code_loading.code_folder_of(context).importing(found.file):
        return schemas.jsonable(functions.call(context, name, function, {**arguments, **hidden}))


def callables(context: StepContext, names: Iterable[str]) -> dict[str, Callable[..., Awaitable[Any]]]:
    """Return tools as coroutine functions of arguments and further metadata. They run in this process, within the step."""
    return {name: _callable(context, name) for name in names}


def _callable(context: StepContext, name: str) -> Callable[..., Awaitable[Any]]:
    function, described = _tool(context, name)
    known = metadata_of(context)

    async def called(arguments: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> Any:
        given = {**known, **(metadata or {})}
        answer = function(**{**arguments, **{key: given[key] for key in described.invisible if key in given}})
        return await answer if inspect.isawaitable(answer) else answer

    return called


def schema_of(context: StepContext, name: str) -> ToolSchema:
    """Return the schema of a tool for models. Raises StepError."""
    described = _tool(context, name)[1]
    return ToolSchema(name=name, description=described.description, parameters=described.schema)


def metadata_of(context: StepContext) -> Mapping[str, str]:
    """Return the conversation's metadata, which are the labels of the run."""
    return context.process.ledger.runs.request_of(context.begun.run_id)[3]


def rounds_of(context: StepContext) -> tuple[tuple[ModelRound, ...], tuple[tuple[ToolResult, ...], ...]]:
    """Return the rounds of tool calls before this call of a model, and the results of the tool calls. An error is its bare text."""
    base, number = (
        str(context.params.get("base") or context.begun.step_id),
        int(cast(int, context.params.get("round", 0))),
    )
    ids = [base if i == 0 else f"{base}/r{i}" for i in range(number)]
    reader, run_id = context.process.ledger.reader, context.begun.run_id
    texts, infos = (reader.outputs(run_id, ids), reader.infos(run_id, ids)) if ids else ([], [])
    rounds = tuple(ModelRound.read(text, info) for text, info in zip(texts, infos, strict=True))
    answers = []
    for step_id, done in zip(ids, rounds, strict=True):
        results = done.results(answers_of(context, [f"{step_id}/t{i}" for i in range(len(done.calls))]))
        answers.append(tuple(ToolResult(value=result.error or result.value) for _, result in results))
    return tuple(map(_without_faults, rounds)), tuple(answers)


def _without_faults(done: ModelRound) -> ModelRound:
    return done.model_copy(update={"calls": tuple(call.model_copy(update={"fault": ""}) for call in done.calls)})


def answers_of(context: StepContext, step_ids: Sequence[str]) -> list[ToolResult]:
    """Return the results of tool steps. A failure becomes Diskurs's error message for the model."""
    if not step_ids:
        return []
    ledger, run_id = context.process.ledger, context.begun.run_id
    outputs, infos = ledger.reader.outputs(run_id, step_ids), ledger.reader.infos(run_id, step_ids)
    return [_answer(output, info) for output, info in zip(outputs, infos, strict=True)]


def _answer(output: str | None, info: Mapping[str, JsonValue]) -> ToolResult:
    error = cast("dict[str, str] | None", info.get("error"))
    return ToolResult(error=error["message"]) if error else ToolResult(value=json.loads(output) if output else None)


def _results(context: StepContext, needs: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return the results of the steps that a plan's step depends on. Raises StepError if one of them failed."""
    answers = dict(zip(needs, answers_of(context, list(needs.values())), strict=True))
    for name, answer in answers.items():
        if answer.error:
            raise StepError(f"step {name!r}, which it depends on, failed", code="tool_error")
    return {name: answer.value for name, answer in answers.items()}


def _tool(context: StepContext, name: str) -> tuple[Any, ToolDescription]:
    """Return the function, created once in each process if it has a factory, and its description."""
    made = _made_once(context, name, code_loading.config_of(context).tools[name], lambda: _made(context, name))
    return made, ToolDescription.from_function(made)


def _made_once(
    context: StepContext, name: str, declared: ConversationTool | ConversationDependency, make: Callable[[], Any]
) -> Any:
    """Return the object for a declaration, created once. The key has the whole declaration: configurations may differ under one name."""
    config = code_loading.config_of(context)
    uses = declared.dependencies if isinstance(declared, ConversationTool) else []
    key = "\n".join(
        [name, *(each.model_dump_json() for each in (declared, *(config.dependencies[use] for use in uses)))]
    )
    made = code_loading.code_folder_of(context).made
    if key not in made:
        made[key] = make()
    return made[key]


def _made(context: StepContext, name: str) -> Any:
    config, folder = code_loading.config_of(context), code_loading.code_folder_of(context)
    tool = config.tools[name]
    factory = CodeReference(file=tool.function.file, name=f"{FACTORY}{tool.function.name}")
    is_made = bool(tool.configs or tool.dependencies)
    if not is_made and callable(getattr(folder.module(factory.file, config.modules), tool.function.name, None)):
        return folder.load(tool.function, config.modules)
    given = {each: _dependency(context, each) for each in tool.dependencies}
    return code_loading.call(context, factory, dict(tool.configs), **given)


def _dependency(context: StepContext, name: str) -> Any:
    dependency = code_loading.config_of(context).dependencies[name]
    return _made_once(context, name, dependency, lambda: _created(context, name, dependency))


def _created(context: StepContext, name: str, dependency: ConversationDependency) -> Any:
    """Return a new object: by its class's `create`, as in Diskurs, else by the class itself."""
    made_by, folder = dependency.made_by, code_loading.code_folder_of(context)
    made = folder.load(made_by, code_loading.config_of(context).modules)
    create = getattr(made, "create", None)
    called, given = (create, {"name": name}) if callable(create) else (made, {})
    with folder.importing(made_by.file):
        return functions.call(context, f"{made_by.file}:{made_by.name}", called, {**given, **dependency.parameters})


def _check(described: ToolDescription, arguments: Mapping[str, JsonValue]) -> None:
    unknown = sorted(arguments.keys() - described.arguments.keys())
    missing = sorted(described.arguments.keys() - arguments.keys())
    faults = [f"unknown argument {name!r}" for name in unknown] + [f"missing argument {name!r}" for name in missing]
    if faults:
        raise StepError("; ".join(faults), code="bad_arguments")
