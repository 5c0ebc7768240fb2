"""Loading and calling of a Diskurs folder's code: each file is a module of its own, though several have the same name."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from cantata.config.user_code.modules import import_fault
from cantata.errors import ImportFailedError, StepError
from cantata.operation import exits
from cantata.values import JsonValue
from cantata_frontends.diskurs.conversation_config import CodeReference, ConversationConfig
from cantata_workers.frontends.diskurs.user_code import entities
from cantata_workers.process import user_code
from cantata_workers.process.config_folder import local_folder
from cantata_workers.process.process import uncounted_import
from cantata_workers.process.step_context import StepContext
from cantata_workers.tools import functions

INVALID = "The values of your answer are not valid. Please correct them."
"""The message to the model if code refuses a reply without one."""
LOAD_FILE = f"{__name__}:load_file"
_FOLDER = "diskurs_folder_"
"""The beginning of the names of a folder's modules."""
_IN_MODULE = re.compile(rf"{_FOLDER}\w+/[^']*?\.py\.")
_import_lock = threading.RLock()
_folders: dict[str, CodeFolder] = {}


def code_folder_of(context: StepContext) -> CodeFolder:
    """Return the code of the run's folder; what could not be loaded is read anew if files have changed since. Raises ImportFailedError."""
    folder = local_folder(context.definitions.folder)
    if folder is None:
        message = f"the configuration's folder {context.definitions.folder!r} is not on this worker: give it the folder, or CANTATA_CONFIG"
        raise ImportFailedError(message, "", code="no_folder")
    with _import_lock:
        user_code.forget_corrected()
        if folder in _folders and _folders[folder].failed and user_code.forget_changed(folder, ""):
            del _folders[folder]
        user_code.use(folder, "")
        return _folders.setdefault(folder, CodeFolder(folder))


def imports_of(folder: str, settings: Mapping[str, JsonValue]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the code that the steps of a folder import, and the call that imports it or raises: the entry point `cantata.code_imports`."""
    config, loaded = ConversationConfig.model_validate(settings), CodeFolder(folder)
    for code in dict.fromkeys(config.code()):
        if code.name:
            yield f"{code.file}:{code.name}", partial(loaded.load, code, config.modules)
        else:
            yield code.file, partial(loaded.module, code.file, config.modules)


def load_file(folder: str, file: str, modules: Mapping[str, str]) -> None:
    """Import a file of a folder, in a process that is thrown away. Raises ImportFailedError."""
    CodeFolder(folder).module(file, modules)


def config_of(context: StepContext) -> ConversationConfig:
    """Return the configuration of the run's folder. Raises StepError."""
    if context.definitions.extension is None:
        raise StepError("the run's configuration is not a Diskurs folder", code="internal")
    return ConversationConfig.model_validate(context.definitions.extension.settings)


class CodeFolder:
    """The modules of one folder. Only while its code runs are they importable by their plain names."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._modules: dict[str, ModuleType] = {}
        self._neighbours: dict[Path, dict[str, ModuleType]] = defaultdict(dict)
        """Modules by the folder that they are imported from: that of a file, or the top one."""
        self.failed: set[str] = set()
        """Files that could not be imported, or lack a function or class that is named."""
        self.made: dict[str, Any] = {}
        """Objects that factories and classes created, until this process ends."""

    def load(self, code: CodeReference, modules: Mapping[str, str] | None = None) -> Any:
        """Return a function or class of a file. Raises ImportFailedError."""
        found = getattr(self.module(code.file, modules), code.name, None)
        if not callable(found):
            raise self.lacks(code.file, f"no function or class {code.name!r}")
        return found

    def lacks(self, file: str, what: str) -> ImportFailedError:
        """Return the error that a file has not what is named."""
        self.failed.add(file)
        return ImportFailedError(f"{file} has {what}", self._folder.name, code="bad_code", lacks_name=True)

    def module(self, file: str, modules: Mapping[str, str] | None = None) -> ModuleType:
        """Return the module of a file, and load the modules that it may import by name before it. Raises ImportFailedError."""
        with uncounted_import(file):
            if file not in self._modules:
                self._refuse_ending(
                    file, modules or {}
                )  # without the lock: it may take a minute, in which others go on
            with _import_lock:
                return self._module(file, modules or {})

    def _module(self, file: str, modules: Mapping[str, str]) -> ModuleType:
        for name, other in modules.items():
            if other != file:
                self._neighbours[self._parent_of(file)][name] = self._module(other, {})
        if file not in self._modules:
            self._modules[file] = self._imported(file) or self._load(file)
        return self._modules[file]

    def _refuse_ending(self, file: str, modules: Mapping[str, str]) -> None:
        """Raise ImportFailedError if the import of a file is under suspicion, and would end this process."""
        try:
            user_code.refuse_ending(
                str(self._folder), file, self._folder.name, [LOAD_FILE, str(self._folder), file, dict(modules)]
            )
        except ImportFailedError as error:
            self.failed.add(file)
            user_code.note_import(self._folder.name, error.__cause__)
            raise

    def _imported(self, file: str) -> ModuleType | None:
        """Return the module if a neighbour imported it by its plain name."""
        path = self._folder / file
        found = self._neighbours[path.parent].get(path.stem)
        return found if found and getattr(found, "__file__", None) == str(path) else None

    def _load(self, file: str) -> ModuleType:
        name = f"{_FOLDER}{abs(hash(self._folder)):x}/{file}"
        path = self._folder / file
        spec = importlib.util.spec_from_file_location(name, path, loader=user_code.Loader(name, str(path)))
        if spec is None or spec.loader is None:
            raise ImportFailedError(f"{file} is not a Python file", self._folder.name, code="bad_code")
        module = importlib.util.module_from_spec(spec)
        importlib.invalidate_caches()
        sys.modules[name] = module
        try:
            with self.importing(file):
                sys.modules.setdefault(
                    path.stem, module
                )  # its neighbours import it by its plain name, if that is not taken
                spec.loader.exec_module(module)
        except BaseException as error:  # whatever a module raises while it is imported
            sys.modules.pop(name, None)  # the module itself may have removed it
            if self._neighbours[path.parent].get(path.stem) is module:
                del self._neighbours[path.parent][path.stem]
            if exits.is_of_signal(error):
                raise
            self.failed.add(file)
            user_code.note_import(self._folder.name, error)
            message = f"{file} cannot be imported: {import_fault(error)}"
            raise ImportFailedError(message, self._folder.name, code="bad_code") from error
        self.failed.discard(file)
        if not self.failed:
            user_code.note_import(self._folder.name, None)
        return module

    @contextmanager
    def importing(self, file: str) -> Iterator[None]:
        """Make a file's neighbours and the folder importable inside the block, as Diskurs does."""
        parent = self._parent_of(file)
        path = [str(parent), str(self._folder)]
        with _import_lock, entities.importable():
            functions.unload_folder()
            ours = self._visible_modules(parent)
            hidden = {name: sys.modules[name] for name in ours if name in sys.modules}
            before = set(sys.modules)
            sys.modules.update(ours)
            sys.path[:0] = path
            try:
                yield
            finally:
                for entry in path:
                    with suppress(ValueError):  # the code may have changed the path
                        sys.path.remove(entry)
                seen = [name for name in sys.modules if name not in before or name in ours]
                for name in [name for name in seen if name in ours or self._is_ours(name, sys.modules[name])]:
                    self._neighbours[self._root(parent, name)][name] = sys.modules.pop(name)
                sys.modules.update(hidden)

    def _parent_of(self, file: str) -> Path:
        return (self._folder / file).parent

    def _visible_modules(self, parent: Path) -> dict[str, ModuleType]:
        """Return the modules that code of a subfolder imports by plain names: those of the top folder, and its own."""
        shared = {
            name: each
            for name, each in self._neighbours[self._folder].items()
            if self._root(parent, name) == self._folder
        }
        return {**shared, **self._neighbours[parent]}

    def _root(self, parent: Path, name: str) -> Path:
        """Return the folder that code of a subfolder imports a module from."""
        root = name.partition(".")[0]
        is_beside = name in self._neighbours[parent] or (parent / f"{root}.py").is_file() or (parent / root).is_dir()
        return parent if is_beside else self._folder

    def _is_ours(self, name: str, module: ModuleType) -> bool:
        return "/" not in name and functions.lies_in(module, self._folder)


def call(context: StepContext, code: CodeReference, *arguments: Any, **named: Any) -> Any:
    """Return the result of a function of the folder, sync or async. Raises StepError with the code tool_error; see `refusal_of`."""
    folder = code_folder_of(context)
    function = folder.load(code, config_of(context).modules)
    with folder.importing(code.file):
        called, is_failure = partial(function, *arguments, **named), lambda error: refusal_of(error) is None
        return functions.call(context, f"{code.file}:{code.name}", called, {}, is_failure=is_failure)


def optional(
    context: StepContext, file: str, name: str, *, is_named: bool, beside: Iterable[str]
) -> CodeReference | None:
    """Return a function of a file; None if it is missing, was not named, and all classes `beside` it are there.

    Raises ImportFailedError, also if a class is missing: then it may be the file that is wrong.
    """
    folder, modules = code_folder_of(context), config_of(context).modules
    if callable(getattr(folder.module(file, modules), name, None)):
        return CodeReference(file=file, name=name)
    if is_named:
        raise folder.lacks(file, f"no function {name!r}")
    for each in beside:
        folder.load(CodeReference(file=file, name=each), modules)
    return None


def refusal_of(error: BaseException | None) -> str | None:
    """Return the message of the PromptValidationError that caused an error, if one did: ours or that of an installed Diskurs.

    One without a message gives INVALID.
    """
    while error is not None:
        if any(cls.__name__ == "PromptValidationError" for cls in type(error).__mro__):
            return str(error).strip() or INVALID
        error = error.__cause__
    return None


def without_modules(text: str) -> str:
    """Return a text with the folder's classes by their own names, for models: the names of modules are of this program's making."""
    return _IN_MODULE.sub("", text)
