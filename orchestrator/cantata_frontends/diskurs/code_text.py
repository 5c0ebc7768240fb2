"""Code of a Diskurs folder read as text: the fields of its classes, and its imports from `diskurs`."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from cantata.config.user_code.function_source import definition_of
from cantata.config.user_code.modules import tree_of
from cantata.text.suggestions import hint, nearest

PACKAGE = "diskurs"
PARTS = ("entities", "errors", "prompt", "protocols", "tools", "immutable_conversation")
"""The modules of `diskurs` that prompts and tools import."""
NAMES = (
    "AccessMode", "CallTool", "ChatMessage", "Conversation", "DiskursInput", "ImmutableConversation", "InputField", "JsonSerializable",
    "LLMClient", "LockedField", "LongtermMemory", "MessageType", "OutputField", "PerTurnField", "PromptArgument", "PromptField",
    "PromptValidationError", "Role", "RoutingRule", "ToolDependency", "ToolDescription", "prompt_field", "tool",
)  # fmt: skip
"""The names that each of these modules has here."""
_FIELDS_OF_BASES: Mapping[str, set[str]] = {
    "PromptArgument": set(),
    "JsonSerializable": set(),
    "LongtermMemory": {"user_query"},
}


@lru_cache(maxsize=1)
def is_installed() -> bool:
    """Return whether Diskurs is installed; then code imports that."""
    found = importlib.util.find_spec(PACKAGE)
    return found is not None and found.has_location  # a folder of this name is no package


def import_faults(file: Path) -> Iterator[tuple[int, str]]:
    """Yield relative imports, and what a file imports from `diskurs` that is not there, with the line.

    Imports in functions, `try` and `if` are not checked.
    """
    try:
        body = [] if is_installed() else tree_of(file, file.stat().st_mtime_ns).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return  # `fault_of` reports it
    for node in body:
        imported: list[tuple[str, list[str]]] = []
        if isinstance(node, ast.Import):
            imported = [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            wanted = ", ".join(alias.name for alias in node.names)
            wanted = f"from {node.module} import {wanted}" if node.module else f"import {wanted}"
            yield node.lineno, f"an import cannot be relative here; write `{wanted}`"
        elif isinstance(node, ast.ImportFrom):
            imported = [(str(node.module), [alias.name for alias in node.names])]
        for module, names in imported:
            package, _, part = module.partition(".")
            if package == PACKAGE:
                yield from ((node.lineno, fault) for fault in _import_faults(part, names))


def _import_faults(part: str, names: Collection[str]) -> Iterator[str]:
    if part and part not in PARTS:
        yield f"there is no module {f'{PACKAGE}.{part}'!r} here{hint(nearest(part, PARTS))}"
        return
    known = (*NAMES, "*") if part else (*NAMES, *PARTS, "*")
    yield from (
        f"there is no {name!r} in 'diskurs' here{hint(nearest(name, known))}" for name in names if name not in known
    )


def fields_of(file: Path, name: str, inheriting: Collection[str] = ()) -> set[str] | None:
    """Return the fields of a dataclass and of its bases; None if they cannot be read from the text."""
    found = definition_of(f"{file.stem}:{name}", folder=file.parent)
    if found is None or not isinstance(found.node, ast.ClassDef) or name in inheriting:
        return None
    fields = {
        each.target.id
        for each in found.node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for base in found.node.bases:
        base_name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        own = fields_of(found.file, base_name, {*inheriting, name}) if isinstance(base, ast.Name) else None
        inherited = own if own is not None else _FIELDS_OF_BASES.get(base_name)
        if inherited is None:
            return None
        fields.update(inherited)
    return fields
