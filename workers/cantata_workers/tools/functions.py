"""Steps that call Python functions: loading, checking arguments, calling."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Any, cast

import structlog

from cantata.config.user_code.modules import load_function
from cantata.engine.dispatch import user_app
from cantata.errors import ImportFailedError, StepError
from cantata.flows.definitions import Tool
from cantata.flows.graph import Outcome
from cantata.operation import exits, fault_points
from cantata.operation.packages import OURS
from cantata.values import JsonValue, Usage
from cantata_workers.process import resource_limits, sources, user_code
from cantata_workers.process.process import uncounted_import
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.tools import inline_scripts, schemas
from cantata_workers.tools.memory_access import WorkerToolContext
from cantata_workers.tools.schemas import CONTEXT as CONTEXT
from cantata_workers.tools.schemas import Function

AGAIN_S = (
    10.0  # many steps may wait for a module; one that starts a thread and then fails would start one with each of them
)

log = structlog.get_logger(__name__)

_importing = threading.RLock()
_functions: dict[tuple[str, str | None], Function] = {}
_failed: dict[tuple[str | None, str], tuple[str, float]] = {}
"""Folders and functions that could not be imported → the error, and when they are tried again although no file has changed."""
_imported_from: str | None = None  # the configuration's folder that modules are imported from now
_others: frozenset[str] = frozenset()  # modules that were loaded before the first was imported from it


@handles("tool.call")
def tool_call(context: StepContext) -> Outcome:
    """Call a tool or skill with the node's input, or with a model's arguments, as keyword arguments."""
    tool = context.tool
    assert tool is not None
    function, label = _function(tool, context)
    by_model = context.begun.spec.is_asked_by_model
    given = context.node_input
    given = (
        schemas.bind(function, tool, given)
        if by_model
        else schemas.with_defaults(function, given, context.mapped_names)
    )
    arguments = _with_values(tool, given)
    if schemas.wants_context(function):
        arguments = {**arguments, CONTEXT: WorkerToolContext.of(context)}
    _check_arguments(label, function, arguments)
    fault_points.at("tool-started")
    output = call(context, label, function, arguments)
    fault_points.at("tool-finished")
    return Outcome(output=schemas.jsonable(output) if by_model else output, usage=Usage(tool_calls=1))


def _function(tool: Tool, context: StepContext) -> tuple[Function, str]:
    """Return the function of a tool, and its name in messages."""
    if tool.script is not None:
        return inline_scripts.load(tool.script, context), f"script:{tool.script.function}"
    assert tool.function is not None  # else it is an MCP server, which has steps of its own
    return load(tool.function, context.folder), tool.function


def load(name: str, folder: str | None) -> Function:
    """Return the function `module:name`, from the configuration's folder or an installed package. Raises StepError.

    The user's Celery application, if there is one, is the current one: the function may call tasks, and Django is set up.
    """
    user_app.activate()
    known, module = _functions.get((name, folder)), name.partition(":")[0].partition(".")[0]
    has_changed = True
    if known is None:
        with _importing:
            has_changed = (folder, module) not in user_code.forget_corrected()
    user_code.use(folder, module)
    if not has_changed and (failed := _failed.get((folder, name))) and time.monotonic() < failed[1]:
        raise ImportFailedError(failed[0], module)
    if known is None:
        known = _functions[name, folder] = _load(name, folder)
    return known


def replace_loaded(functions: Mapping[str, Function], folder: str | None) -> None:
    """Forget all loaded functions, and return these from `load` by their names, which no module needs to have. For runs inside a test."""
    _functions.clear()
    _functions.update({(name, folder): function for name, function in functions.items()})


def load_called(name: str, folder: str | None) -> Function:
    """Return a function that a workflow calls; inside a test the one in its place, which may have its name without the module."""
    return _functions.get((name.partition(":")[2], folder)) or load(name, folder)


def load_for(name: str, context: StepContext) -> Function:
    """Return a function that is no tool; if its parameter `context` has the type ToolContext, it is given that of the step."""
    function = load(name, context.folder)
    wants_context = schemas.wants_context(function, by_type=True)
    return _with_context(function, WorkerToolContext.of(context)) if wants_context else function


def _with_context(function: Function, value: WorkerToolContext) -> Function:
    """Return a function without its parameter `context`, which is given the value at its own position."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    place = list(signature.parameters).index(CONTEXT)
    if parameters[place].kind is Parameter.KEYWORD_ONLY:
        return partial(function, **{CONTEXT: value})

    def called(*given: Any, **named: Any) -> Any:
        if len(given) < place:
            return function(*given, **named, **{CONTEXT: value})
        return function(*given[:place], value, *given[place:], **named)

    called.__signature__ = signature.replace(parameters=[*parameters[:place], *parameters[place + 1 :]])  # type: ignore[attr-defined]
    return called


def _load(name: str, folder: str | None) -> Function:
    module = name.partition(":")[0].partition(".")[0]
    with uncounted_import(name), _importing:
        try:
            user_code.refuse_ending(folder, name, module)
            function = load_function(name, folder, partial(_import, folder=folder))
        except ImportFailedError as error:
            if error.__cause__ is not None:
                user_code.note_import(module, error.__cause__)
            user_code.note_failed(folder, module)
            _failed[folder, name] = str(error), time.monotonic() + AGAIN_S
            raise
        user_code.note_import(module, None)
        user_code.note_imported(folder, module)
        _failed.pop((folder, name), None)
        return function


def _import(module_name: str, folder: str | None) -> Any:
    """Import a module, from the folder if it is there. Modules of another folder are unloaded first: they may have the same names."""
    global _imported_from, _others
    if folder is None or sources.folder_of(module_name.partition(".")[0], [folder]) is None:
        return importlib.import_module(module_name)
    if _imported_from != folder:
        unload_folder(folder)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        _imported_from, _others = folder, frozenset(sys.modules)
    return importlib.import_module(module_name)


def unload_folder(following: str | None = None) -> None:
    """Unload the modules of the current configuration's folder that were imported by name. Loaded functions still work.

    Modules that the program around us had imported itself stay, unless the folder that follows has one of the same name.
    """
    global _imported_from
    with _importing:
        if _imported_from is None:
            return
        with suppress(ValueError):  # code of the folder may have changed the path
            sys.path.remove(_imported_from)
        folder, _imported_from = Path(_imported_from), None
        named = {
            name: module
            for name, module in sys.modules.copy().items()
            if name.partition(".")[0] not in OURS and "/" not in name
        }
        own = [name for name, module in named.items() if lies_in(module, folder) and _is_to_go(name, following)]
        for name in own:  # only now: the path of a package without a file is computed from that of its parent package
            del sys.modules[name]


def _is_to_go(name: str, following: str | None) -> bool:
    if name not in _others:
        return True
    return following is not None and sources.folder_of(name.partition(".")[0], [following]) is not None


def lies_in(module: object, folder: Path) -> bool:
    """Return whether a module is in a folder: its file, or the folder of a package without one. Installed modules are not."""
    file = getattr(module, "__file__", None)
    paths = [Path(path) for path in ([file] if file else getattr(module, "__path__", ()))]
    return any(
        path.is_relative_to(folder) and not sources.INSTALLED & set(path.relative_to(folder).parts) for path in paths
    )


def _with_values(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    fixed = sorted(tool.values.keys() & arguments.keys())
    if fixed:
        raise StepError(
            f"argument {fixed[0]!r} is given by the configuration's 'values'; leave it out", code="bad_arguments"
        )
    return {**arguments, **tool.values}


def _check_arguments(name: str, function: Function, arguments: Mapping[str, Any]) -> None:
    signature = schemas.signature_of(function)
    if signature is None:
        return  # the call itself will raise
    try:
        signature.bind(**arguments)
    except TypeError as error:
        declared = f"{name.partition(':')[2]}{signature}"
        given = sorted(set(arguments) - {CONTEXT})
        raise StepError(f"{error}; the function is {declared}, its input was {given}", code="bad_arguments") from error


def call(
    context: StepContext,
    name: str,
    function: Function,
    arguments: Mapping[str, Any],
    *,
    is_failure: Callable[[Exception], bool] = lambda error: True,
) -> JsonValue:
    """Return the output of the function called `name`. Raises StepError with the code tool_error for whatever it raises.

    It is retryable, save CodeExitError for what is no `Exception`.
    An exception that is no failure, but an answer of the function, is not logged.
    """
    try:
        return cast(JsonValue, result_of(context, function(**arguments)))
    except MemoryError as error:
        traceback.clear_frames(error.__traceback__)  # frees memory, which reporting the error needs
        raise StepError(
            f"{name} ran out of memory{resource_limits.limit_note()}", code="tool_error", retryable=True
        ) from None
    except Exception as error:  # whatever a user's function raises is its outcome
        if is_failure(error):
            log.info("tool_failed", tool=name, error=f"{type(error).__name__}: {error}", exc_info=error)
        raise StepError(f"{name} raised {type(error).__name__}: {error}", code="tool_error", retryable=True) from error
    except BaseException as error:
        failure = exits.failure_of(name, error)
        log.info("tool_failed", tool=name, error=str(failure), exc_info=error)
        raise failure from error


def result_of(context: StepContext, value: Any) -> Any:
    """Return the result of a coroutine, from the event loop of this process; any other value as it is."""
    if not inspect.iscoroutine(value):
        return value
    future = asyncio.run_coroutine_threadsafe(value, context.process.loop())
    try:
        return exits.result_of(future)
    except CancelledError:
        if (
            future.cancelled()
        ):  # nobody but the code has cancelled it: a function that is to stop is killed with its process
            raise asyncio.CancelledError from None
        raise
