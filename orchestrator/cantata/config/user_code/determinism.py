"""Finds what a workflow's code must not do: what differs in each replay, I/O, and names that do not exist.

It reads the source, and imports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import TypeGuard

from cantata.config.user_code.function_source import bindings, definition_of, fault_of
from cantata.errors import Fault
from cantata.flows.chains.steps_of_nodes import unknown_name
from cantata.flows.definitions import Definitions
from cantata.text.suggestions import hint, nearest

_BUILT_IN = ("open", "input")
_IO = "do this in a function, and call it with wf.call"
_NOW, _RANDOM, _SLEEP = "use wf.now()", "use wf.random()", "use await wf.sleep(seconds)"
REMEDIES: Mapping[str, str] = {
    "time.sleep": _SLEEP, "time.time": _NOW, "time.time_ns": _NOW, "time.monotonic": _NOW, "time.perf_counter": _NOW,
    "datetime.datetime.now": _NOW, "datetime.datetime.utcnow": _NOW, "datetime.datetime.today": _NOW, "datetime.date.today": _NOW,
    "uuid.uuid1": "use wf.uuid4()", "uuid.uuid4": "use wf.uuid4()", "random": _RANDOM, "secrets": _RANDOM, "os.urandom": _RANDOM,
    "open": _IO, "input": _IO, "socket": _IO, "subprocess": _IO, "urllib.request": _IO, "requests": _IO, "httpx": _IO, "aiohttp": _IO,
    "threading": _IO, "multiprocessing": _IO, "concurrent.futures": _IO, "os.system": _IO, "os.environ": _IO, "os.getenv": _IO,
    "asyncio.to_thread": _IO, "asyncio.open_connection": _IO, "asyncio.create_subprocess_exec": _IO,
}  # fmt: skip
"""A name, or a module whose names all count → the way to do it."""
_WORKFLOW_TYPES = ("cantata.Workflow", "cantata.flows.workflows.api.Workflow")
_NAMED = {
    "agent": ("agent",),
    "tool": ("tool",),
    "chain": ("chain",),
    "workflow": ("workflow",),
    "start": ("workflow", "chain"),
}
"""A method of a workflow → the kinds of what its first argument names."""


def faults_of(function: str, *, folder: Path | None, definitions: Definitions | None = None) -> list[Fault]:
    """Return what is not deterministic in workflow `module:name` and in the functions of its module that it calls itself.

    So are commands that do not exist, and literal names that are not in `definitions`.
    """
    if fault := fault_of(function, folder=folder):
        return [Fault(fault)]
    found = definition_of(function, folder=folder)
    if found is None:
        return []
    functions = {
        name: node for name, node in bindings(found.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    imported = dict(_imports(found.tree))
    if not isinstance(found.node, ast.AsyncFunctionDef) or not any(
        _is_workflow(each, imported) for each in found.node.decorator_list
    ):
        return [
            Fault(f"{function} is not a workflow: decorate an async function with @workflow", line=found.node.lineno)
        ]
    pending, seen, faults = [found.node.name], set[str](), []
    while pending:
        name = pending.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        parameters = [*functions[name].args.posonlyargs, *functions[name].args.args]
        own = {each.arg for each in parameters if _full_name(each.annotation, imported) in _WORKFLOW_TYPES}
        own |= {each.arg for each in parameters[:1] if name == found.node.name}
        for node in ast.walk(functions[name]):
            if message := _unknown_name(node, own, definitions):
                faults.append(Fault(f"{message} (in {name!r})", line=getattr(node, "lineno", None)))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                pending.append(node.func.id)
            if isinstance(node, ast.Name | ast.Attribute) and (remedy := _remedy(node, imported)):
                message = f"{ast.unparse(node)} in {name!r} differs in each replay, or waits: {remedy}"
                faults.append(Fault(message, line=node.lineno))
            if _begins_coroutines(node, imported, functions):
                message = f"asyncio.as_completed in {name!r} begins coroutines in another order in each process: give it tasks"
                faults.append(Fault(f"{message}, such as asyncio.create_task(each)", line=node.lineno))
            iterated = node.value if isinstance(node, ast.Starred) else getattr(node, "iter", None)
            if _is_set(iterated):
                message = (
                    f"{ast.unparse(iterated)} in {name!r} has another order in each process: iterate over sorted(...)"
                )
                faults.append(Fault(message, line=iterated.lineno))
    return sorted(faults, key=lambda fault: fault.line or 0)


def _unknown_name(node: ast.AST, own: Set[str], definitions: Definitions | None) -> str:
    """Return the fault of a command that a workflow's object, whose names are `own`, does not have, or of the name that it is given."""
    match node:
        case ast.Attribute(value=base, attr=name) if _is_own(base, own) and name not in (known := _commands()):
            return f"{ast.unparse(node)}: a workflow has no {name!r}{hint(nearest(name, known))}"
        case ast.Call(func=ast.Attribute(value=base, attr="options"), keywords=keywords) if _is_own(base, own):
            given = {each.arg: each.value.value for each in keywords if isinstance(each.value, ast.Constant)}
            if given.get("at_most_once") and given.get("retries"):
                return "wf.options: 'at_most_once' means one call, so 'retries' has no effect; leave it out"
        case ast.Call(func=ast.Attribute(value=base, attr=method), args=[ast.Constant(value=str(name)), *_]) if _is_own(
            base, own
        ):
            return unknown_name(_NAMED[method], name, definitions) if definitions and method in _NAMED else ""
    return ""


def _is_own(node: ast.expr, own: Set[str]) -> bool:
    """Return whether an expression is a workflow's object, perhaps with options: `wf`, `wf.options(...)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr="options")):
            return _is_own(base, own)
    return isinstance(node, ast.Name) and node.id in own


@cache
def _commands() -> Set[str]:
    """Return the names of a workflow's object, by its source."""
    found = definition_of(_WORKFLOW_TYPES[1].replace(".Workflow", ":Workflow"), folder=None)
    nodes = list(ast.walk(found.node)) if found else []
    methods = {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return methods | {
        each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that the module imports, with what they mean."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    (alias.asname, alias.name)
                    if alias.asname
                    else (alias.name.partition(".")[0], alias.name.partition(".")[0])
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _is_workflow(decorator: ast.expr, imported: Mapping[str, str]) -> bool:
    return _full_name(decorator, imported) in ("cantata.workflow", "cantata.flows.workflows.decorator.workflow")


def _begins_coroutines(
    node: ast.AST, imported: Mapping[str, str], functions: Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef]
) -> TypeGuard[ast.Call]:
    """Return whether a node is a call of asyncio.as_completed with calls of the module's own async functions."""
    match node:
        case ast.Call(func=function, args=[given, *_]) if _full_name(function, imported) == "asyncio.as_completed":
            elements = (
                given.elts if isinstance(given, ast.List | ast.Tuple | ast.Set) else [getattr(given, "elt", None)]
            )
            calls = [each.func for each in elements if isinstance(each, ast.Call)]
            return any(
                isinstance(each, ast.Name) and isinstance(functions.get(each.id), ast.AsyncFunctionDef)
                for each in calls
            )
    return False


def _is_set(node: ast.expr | None) -> TypeGuard[ast.expr]:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return is_call or isinstance(node, ast.Set | ast.SetComp)


def _remedy(node: ast.Name | ast.Attribute, imported: Mapping[str, str]) -> str | None:
    """Return the remedy for a use of a name; None if it may be used. The name of a module alone is no use of it."""
    full = _full_name(node, imported)
    if isinstance(node, ast.Name) and "." not in full and full not in _BUILT_IN:
        return None
    return REMEDIES.get(full) or REMEDIES.get(full.rpartition(".")[0])


def _full_name(node: ast.expr | None, imported: Mapping[str, str]) -> str:
    """Return the full name of `a.b`, if `a` is imported or built in; else an empty text."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id if node.id in _BUILT_IN else "")
    if isinstance(node, ast.Attribute) and (base := _full_name(node.value, imported)):
        return f"{base}.{node.attr}"
    return ""
