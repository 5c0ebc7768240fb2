"""The user code that a worker process serves: one version of it, read once, whenever and wherever it is imported.

    adopt ──▶ files of the module and of what it imports ──▶ kept in memory ──▶ every later import
                      └──▶ reported: the stack's supervisor watches them; the fleet is told their digest

So an edited file changes nothing in a process that has read it, though a function imports it an hour later: no step sees two versions.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog

from cantata.errors import MustWait
from cantata.packages import OURS
from cantata.workers.code import prefork_imports, sources

DIGEST_CHARS = 12
AGAIN_S = 0.5  # until the stack's supervisor has noticed a change
SETTLED_NS = (
    1_000_000_000  # a compiled file that is not this much younger than its source may be of another text with the same size and second
)

log = structlog.get_logger(__name__)

Report = Callable[[str], None]
"""Takes a line: `file`, a path and its digest; or `code`, a process id, a module and its digest; with tabs between."""

_Stat = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A file as this process read it."""

    text: bytes
    stat: _Stat
    digest: str


_lock = threading.RLock()
_files: dict[str, Source] = {}
_digests: dict[tuple[str, str], str] = {}
_places: dict[tuple[str | None, str], str | None] = {}  # by the configuration's folder and the module: the folder it is in
_installed: set[str] = set()  # top-level modules that are none of the user's
_report: Report | None = None
_is_replaced = False  # whether a process whose code has changed is replaced
_used: ContextVar[set[str] | None] = ContextVar("code_used", default=None)


def serve(report: Report, *, is_replaced: bool) -> None:
    """Import user code from what was read first, from now on, and report what is read."""
    global _report, _is_replaced
    _report, _is_replaced = report, is_replaced
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


@contextmanager
def recording() -> Iterator[set[str]]:
    """Collect the modules of user code that are asked for, as `module@digest`."""
    used: set[str] = set()
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)


def use(folder: str | None, module: str) -> None:
    """Adopt a top-level module of a folder, or of where Python finds the user's modules, and note that it is used.

    Raises MustWait if files of it have changed since this process read them, while others of it were not read yet.
    """
    if (folder, module) not in _places:
        place = _folder_of(module, folder)
        if place is None and module not in _installed:
            return  # it may come
        _places[folder, module] = place
    place = _places[folder, module]
    if place is None:
        return
    _unload_library(module)
    digest = adopt(place, module)
    if (used := _used.get()) is not None:
        used.add(f"{module or Path(place).name}@{digest}")


def adopt(folder: str, module: str) -> str:
    """Read a module with all that it imports, unless that is done; return the digest of both."""
    known = _digests.get((folder, module))
    if known is None:
        with _lock:
            known = _digests.get((folder, module)) or _adopt(folder, module)
    return known


def _unload_library(module: str) -> None:
    """Unload a library of this name, so that the user's module is imported, if it came with LiteLLM and this process calls no model."""
    if module not in prefork_imports.litellm_modules:
        return
    for name in [name for name in prefork_imports.litellm_modules if name == module or name.startswith(f"{module}.")]:
        prefork_imports.litellm_modules.discard(name)
        sys.modules.pop(name, None)


def _folder_of(module: str, folder: str | None) -> str | None:
    if not module:
        return folder
    if module in OURS or module in sys.stdlib_module_names:
        _installed.add(module)
        return None
    found = sources.folder_of(module, [*([folder] if folder else []), *sources.folders_of_user()])
    return found or (None if module in _installed else _found_by_python(module))


def _found_by_python(module: str) -> str | None:
    """The folder of a module of the user's that only an import hook finds, as with some editable installs."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin is None or not sources.is_users(Path(spec.origin)):
        _installed.add(module)
        return None
    return _folder_above(spec)


def _folder_above(spec: ModuleSpec) -> str:
    depth = spec.name.count(".") + (1 if spec.submodule_search_locations is not None else 0)
    return str(Path(spec.origin or "").parents[depth])


def _adopt(folder: str, module: str) -> str:
    before = dict(_files)
    while True:
        found = _closure(folder, module)
        if all(_stat(path) == source.stat for path, source in found.values() if path not in before):
            break  # else they were being saved while they were read
    stale = [path for path, _ in found.values() if path in before and _stat(path) != before[path].stat]
    if stale and len(stale) < len(found) and _is_replaced and any(_digest(Path(path)) != before[path].digest for path in stale):
        raise MustWait(AGAIN_S, f"{Path(stale[0]).name} has changed: new processes serve it in a moment")
    _files.update(dict(found.values()))
    whole = hashlib.sha256()
    for name, (_, source) in sorted(found.items()):
        whole.update(f"{name}\0{source.digest}\n".encode())
    digest = _digests[folder, module] = whole.hexdigest()[:DIGEST_CHARS]
    if _report is not None:
        for path, source in found.values():
            if path not in before:
                _report(f"file\t{path}\t{source.digest}")
        _report(f"code\t{os.getpid()}\t{module or Path(folder).name}\t{digest}")
    return digest


def _closure(folder: str, module: str) -> dict[str, tuple[str, Source]]:
    """The files of a module and of what it imports, by their names from the folder that each was found in."""
    places = [folder, *sources.folders_of_user()]
    found: dict[str, tuple[str, Source]] = {}
    todo, seen = deque([(folder, module)]), {module}
    while todo and len(found) < sources.MAX_FILES:
        place, name = todo.popleft()
        for path in sources.files_of(place, name):
            source = _files.get(str(path)) or _read(path)
            if source is None:
                continue
            found[str(path.relative_to(place))] = str(path), source
            for other in sorted(sources.imported_by(source.text) - seen):
                seen.add(other)
                if where := sources.folder_of(other, places):
                    todo.append((where, other))
    return found


def _read(path: Path) -> Source | None:
    for _ in range(3):
        stat = _stat(str(path))
        if stat is None:
            return None
        with suppress(OSError):
            text = path.read_bytes()
            if _stat(str(path)) == stat:
                return Source(text, stat, hashlib.sha256(text).hexdigest())
    return None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _stat(path: str) -> _Stat | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Loader(SourceFileLoader):
    """Loads a module from what was read first, and from its compiled file only if that is certainly of the same text."""

    def get_data(self, path: str) -> bytes:
        known = _files.get(path)
        return known.text if known else super().get_data(path)

    def path_stats(self, path: str) -> Any:
        known = _files.get(path)
        if known is None:
            return super().path_stats(path)
        is_old = time.time_ns() - known.stat[0] > 2 * SETTLED_NS
        if not is_old or _stat(path) != known.stat or not _is_younger(cache_from_source(path), known.stat[0]):
            raise OSError("compiled files do not count here")
        return {"mtime": known.stat[0] / 1e9, "size": known.stat[1]}


def _is_younger(compiled: str, than_ns: int) -> bool:
    found = _stat(compiled)
    return found is None or found[0] > than_ns + SETTLED_NS


class Finder:
    """Finds the user's modules before all other finders, wherever code imports them."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top in _installed or top in OURS or top in sys.stdlib_module_names:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is None or (spec.origin and not sources.is_users(Path(spec.origin))):
            if spec is not None and name == top:
                _installed.add(top)
            return None
        return spec if self._is_served(spec) else None

    def _is_served(self, spec: ModuleSpec) -> bool:
        """Have a module loaded from what was read, and read it now if it was not foreseen."""
        if not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return False
        if spec.origin not in _files:
            with suppress(MustWait):  # the importing code is under way: too late to put its step back
                adopt(_folder_above(spec), spec.name.partition(".")[0])
        spec.loader = Loader(spec.loader.name, spec.loader.path)
        return True
