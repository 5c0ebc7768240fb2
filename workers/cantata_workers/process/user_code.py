"""The user code that a worker process serves: one version of it, read once, whenever and wherever it is imported.

    read_module ──▶ files of the module and of its imports ──▶ kept in memory ──▶ every later import
                      └──▶ reported: the stack's supervisor watches them, and the fleet's registry has their digest

So an edited file changes nothing in a process that has read it, even if a function imports it an hour later: no step sees two versions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import re
import sys
import threading
import time
import traceback
import warnings
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

from cantata.config import loading
from cantata.config.user_code.import_trials import tried
from cantata.errors import CantataError, ImportFailedError, MustWait
from cantata.operation.embedded.supervision.code_watch import FileStat, stat_of
from cantata.operation.packages import OURS
from cantata.values import JsonValue
from cantata_workers.process import prefork_imports, sources
from cantata_workers.process.config_folder import local_folder

DIGEST_CHARS = 12
MAX_FAULT_CHARS = 300
RELOAD_WAIT_S = 0.5  # until the stack's supervisor has noticed a change
MTIME_MARGIN_NS = 1_000_000_000
"""A compiled file that is not this much younger than its source may be of another text with the same size and second."""

log = structlog.get_logger(__name__)

Report = Callable[[str], None]
"""Receives a line of tab-separated fields: `file`, a path and its digest; `code`, a process id, a module and its digest;
or `fault`, a process id, a module and why it cannot be imported, empty if it can after all."""

# Functions are named in many fields of definitions. Text that looks like a function, but is not in a user's module, is ignored.
_FUNCTION = re.compile(r'"([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]\w*"')
_NOT_IMPORTED = re.compile(r"module '(\w+)[\w.]*' cannot be imported: (.+)")  # in the error of a configuration


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as this process read it."""

    text: bytes
    stat: FileStat
    digest: str


_lock = threading.RLock()
_files: dict[str, SourceFile] = {}
_digests: dict[tuple[str, str], str] = {}
_faults: dict[str, str] = {}  # why a module cannot be imported
_module_folders: dict[
    tuple[str | None, str], str | None
] = {}  # the folder of a module, by the configuration's folder and its name
_installed: set[str] = set()  # top-level modules that are not the user's
_report: Report | None = None
_is_replaced = False  # whether a process whose code has changed is replaced
_failed: set[tuple[str | None, str]] = set()
"""Folders and top-level modules whose last import failed, or that lack a function."""
_used: ContextVar[set[str] | None] = ContextVar("code_used", default=None)
_is_careful: ContextVar[bool] = ContextVar("is_careful", default=False)
_some_end_processes = False  # of the modules that this worker's configuration names
_ending: set[tuple[str | None, str]] = set()  # folders and imports that end their process


def serve(report: Report, *, is_replaced: bool) -> None:
    """Serve all later imports of user code from the files as they were first read, and report what is read."""
    global _report, _is_replaced
    _report, _is_replaced = report, is_replaced
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


@contextmanager
def recording() -> Iterator[set[str]]:
    """Collect the modules of user code that are used in the block, as `module@digest`."""
    used: set[str] = set()
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)


def used() -> frozenset[str]:
    """Return the modules of user code that were used in the block of `recording` so far, as `module@digest`."""
    return frozenset(_used.get() or ())


def use(folder: str | None, module: str) -> None:
    """Read a top-level module from a folder, or from where Python finds the user's modules, and note that it is used.

    Raises MustWait if some of its files have changed since this process read them, while others were not read yet.
    """
    if (folder, module) not in _module_folders:
        found = _folder_of(module, folder)
        if found is None and module not in _installed:
            return  # it may be created later
        _module_folders[folder, module] = found
    module_folder = _module_folders[folder, module]
    if module_folder is None:
        return
    _unload_library(module)
    digest = read_module(module_folder, module)
    if (used := _used.get()) is not None:
        used.add(f"{module or Path(module_folder).name}@{digest}")


def read_module(folder: str, module: str) -> str:
    """Read a module and its imports, once; return their digest."""
    known = _digests.get((folder, module))
    if known is None:
        with _lock:
            known = _digests.get((folder, module)) or _read_module(folder, module)
    return known


@contextmanager
def careful(is_careful: bool) -> Iterator[None]:
    """Let imports in the block be tried in another process before this one, if a worker died of the step: its import may be the cause."""
    token = _is_careful.set(is_careful)
    try:
        yield
    finally:
        _is_careful.reset(token)


def note_trial(unanswered: str | None) -> None:
    """Note an import of this worker's configuration that ended its process. Processes that are forked later try each import first."""
    global _some_end_processes
    _some_end_processes = unanswered is not None


def refuse_ending(folder: str | None, name: str, module: str, call: Sequence[JsonValue] | None = None) -> None:
    """Raise ImportFailedError if an import is under suspicion and ends a process that is thrown away: it would end this one.

    Args:
        name: A function `module:name`, or the name of what `call` imports, as in `import_trials.tried`.
        module: The top-level module, or the folder, whose fault it is.
    """
    key = (folder, name.partition(":")[0])
    if not (_some_end_processes or _is_careful.get() or key in _ending):
        return
    trial = tried(folder or "", [], {}, calls={name: call}) if call else tried(folder or "", [name], {})
    if trial.unanswered is None:
        _ending.discard(key)
        return
    _ending.add(key)
    why = trial.failures[trial.unanswered]
    raise ImportFailedError(f"{name!r} cannot be imported: {why}", module) from ImportError(why)


def _unload_library(module: str) -> None:
    """Unload a library with the name of a user's module, if it came with LiteLLM and this process calls no model."""
    if prefork_imports.keeps_litellm or module not in prefork_imports.litellm_modules:
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
    found = sources.folder_of(module, [*([folder] if folder else []), *sources.user_folders()])
    return found or (None if module in _installed else _found_by_python(module))


def _found_by_python(module: str) -> str | None:
    """Return the folder of a user's module that only an import hook finds, as with some editable installs."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin is None or not sources.is_user_code(Path(spec.origin)):
        _installed.add(module)
        return None
    return _folder_above(spec)


def _folder_above(spec: ModuleSpec) -> str:
    depth = spec.name.count(".") + (1 if spec.submodule_search_locations is not None else 0)
    return str(Path(spec.origin or "").parents[depth])


def _read_module(folder: str, module: str) -> str:
    before = dict(_files)
    while True:
        found = _closure(folder, module)
        if all(stat_of(path) == source.stat for path, source in found.values() if path not in before):
            break  # otherwise they were saved while they were read
    stale = [path for path, _ in found.values() if path in before and stat_of(path) != before[path].stat]
    if (
        stale
        and len(stale) < len(found)
        and _is_replaced
        and any(_digest(Path(path)) != before[path].digest for path in stale)
    ):
        raise MustWait(RELOAD_WAIT_S, f"{Path(stale[0]).name} has changed: new processes will serve it in a moment")
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
    if main := found.get(f"{module}.py") or found.get(str(Path(module, "__init__.py"))):
        _check_syntax(module, *main)
    return digest


def note_failed(folder: str | None, module: str) -> None:
    """Note a top-level module that could not be imported, or that lacks a function."""
    with _lock:
        _failed.add((folder, module))


def note_imported(folder: str | None, module: str) -> None:
    """Note that a module was imported, with all that it imports: from now on, no step may see another version of them."""
    with _lock:
        _failed.difference_update([each for each in _failed if each == (folder, module) or each[1] in sys.modules])


def forget_corrected() -> set[tuple[str | None, str]]:
    """Forget the files of failed modules that have changed since they were read. Return the failed modules none of whose files has.

    Whatever imports calls this before it does: what it imports may import a module that failed for something else.
    """
    with _lock:
        return {each for each in _failed if not forget_changed(*each)}


def forget_changed(folder: str | None, module: str) -> bool:
    """Forget the files of a module and of its imports that have changed since they were read, so that a failed import can succeed.

    Return whether there are any. No step has used them: without them the module could not be imported. A module that another one shares
    is read anew for both.
    """
    importlib.invalidate_caches()
    with _lock:
        module_folder = _module_folders.pop((folder, module), None) or _folder_of(module, folder)
        if module_folder is None:
            return False
        _digests.pop((module_folder, module), None)
        changed = {
            path
            for path, source in _closure(module_folder, module).values()
            if path in _files and stat_of(path) != source.stat
        }
        for path in changed:
            del _files[path]
        for name, loaded in sys.modules.copy().items():
            if getattr(loaded, "__file__", None) in changed:
                del sys.modules[name]
        return bool(changed)


def _check_syntax(module: str, path: str, source: SourceFile) -> None:
    """Report a syntax error before a step meets it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of other people's code
            ast.parse(source.text, path)
    except (SyntaxError, ValueError) as error:
        note_import(module, error)
    except (RecursionError, MemoryError):  # the import decides
        pass


def note_import(module: str, error: BaseException | None) -> None:
    """Report why a top-level module cannot be imported; None: it can."""
    _note_fault(module, "" if error is None else _describe(error))


def forget_faults() -> None:
    """Report that nothing is known any more that cannot be imported: all can be, or the next step that needs it will say."""
    for module in list(_faults):
        _note_fault(module, "")


def _note_fault(module: str, fault: str) -> None:
    fault = " ".join(fault.split())  # a report is one line, with tabs between its fields
    if _faults.get(module, "") != fault:
        _faults[module] = fault
        if _report is not None:
            _report(f"fault\t{os.getpid()}\t{module}\t{fault}")


def _describe(error: BaseException) -> str:
    """Return an error of an import as a line that begins with the user's file."""
    if isinstance(error, SyntaxError):
        where, message = [(error.filename, error.lineno)], error.msg
    else:
        where = [
            (frame.filename, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename in _files
        ]
        message = f"{type(error).__name__}: {error}"
    place = f"{Path(where[-1][0] or '').name} line {where[-1][1]}: " if where else ""
    return f"{place}{message}"[:MAX_FAULT_CHARS]


def _closure(folder: str, module: str) -> dict[str, tuple[str, SourceFile]]:
    """Return the files of a module and of its imports, by their paths relative to the folder of each module."""
    folders = [folder, *sources.user_folders()]
    found: dict[str, tuple[str, SourceFile]] = {}
    pending, seen = deque([(folder, module)]), {module}
    while pending and len(found) < sources.MAX_FILES:
        module_folder, name = pending.popleft()
        for path in sources.files_of(module_folder, name):
            source = _files.get(str(path)) or _read(path)
            if source is None:
                continue
            found[str(path.relative_to(module_folder))] = str(path), source
            for other in sorted(sources.imported_by(source.text) - seen):
                seen.add(other)
                if other_folder := sources.folder_of(other, folders):
                    pending.append((other_folder, other))
    return found


def _read(path: Path) -> SourceFile | None:
    for _ in range(3):
        stat = stat_of(str(path))
        if stat is None:
            return None
        with suppress(OSError):
            text = path.read_bytes()
            if stat_of(str(path)) == stat:
                return SourceFile(text, stat, hashlib.sha256(text).hexdigest())
    return None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


class Loader(SourceFileLoader):
    """Loads a module from its text as first read, and from its compiled file only if that is certainly of the same text."""

    def get_data(self, path: str) -> bytes:
        known = _files.get(path)
        return known.text if known else super().get_data(path)

    def path_stats(self, path: str) -> Any:
        known = _files.get(path)
        if known is None:
            return super().path_stats(path)
        is_old = time.time_ns() - known.stat[0] > 2 * MTIME_MARGIN_NS
        if not is_old or stat_of(path) != known.stat or not _is_younger(cache_from_source(path), known.stat[0]):
            raise OSError("the compiled file may be of another text")
        return {"mtime": known.stat[0] / 1e9, "size": known.stat[1]}


def _is_younger(compiled: str, than_ns: int) -> bool:
    found = stat_of(compiled)
    return found is None or found[0] > than_ns + MTIME_MARGIN_NS


class Finder:
    """Finds the user's modules, before all other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top in _installed or top in OURS or top in sys.stdlib_module_names:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is None or (spec.origin and not sources.is_user_code(Path(spec.origin))):
            if spec is not None and name == top:
                _installed.add(top)
            return None
        return spec if self._set_loader(spec) else None

    def _set_loader(self, spec: ModuleSpec) -> bool:
        """Have a module loaded from its text as first read, and read it now if it was not; return whether the module is a file."""
        if not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return False
        if spec.origin not in _files:
            with suppress(MustWait):  # the importing step is running: too late to let it wait
                read_module(_folder_above(spec), spec.name.partition(".")[0])
        spec.loader = Loader(spec.loader.name, spec.loader.path)
        return True


def preload() -> None:
    """Read the modules that CANTATA_CONFIG, or ./configs/default.yaml, names, so that all children serve one version of them."""
    try:
        definitions = loading.load(loading.find())
        folder = local_folder(definitions.folder)
        if definitions.extension is not None and folder is not None:
            use(folder, "")
        for module in sorted(set(_FUNCTION.findall(definitions.model_dump_json(exclude_defaults=True)))):
            use(folder, module)
    except (CantataError, OSError, ValueError, RecursionError) as error:
        log.warning("configuration_not_read", error=str(error), note="code is read when a step first needs it")
        for module, fault in _NOT_IMPORTED.findall(str(error)):
            _note_fault(module, fault[:MAX_FAULT_CHARS])
