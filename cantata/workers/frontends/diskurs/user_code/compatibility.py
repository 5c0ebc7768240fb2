"""The module `diskurs` that code of a Diskurs folder imports, if no real `diskurs` is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType

from cantata.workers.frontends.diskurs.user_code import entities

NAME = "diskurs"
PARTS = ("entities", "errors", "prompt", "protocols", "tools", "immutable_conversation")
_ALIASES = {"ImmutableConversation": entities.Conversation}


@contextmanager
def importable() -> Iterator[None]:
    """Make `import diskurs`, and those of its modules that prompts and tools import, return our names inside the block."""
    added = {} if _is_installed() else {name: module for name, module in _modules().items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


@lru_cache(maxsize=1)
def _modules() -> dict[str, ModuleType]:
    names = {name: getattr(entities, name) for name in entities.__all__} | _ALIASES
    package = ModuleType(NAME, entities.__doc__)
    package.__path__ = []
    found = {NAME: package}
    for part in PARTS:
        module = found[f"{NAME}.{part}"] = ModuleType(f"{NAME}.{part}", entities.__doc__)
        setattr(package, part, module)
    for module in found.values():
        vars(module).update(names)
    return found


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    found = importlib.util.find_spec(NAME)
    return found is not None and found.has_location  # a folder of this name is no package
