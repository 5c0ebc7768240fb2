"""Inline script functions: read from this worker's own workflow files, by the digest that a run stores."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from cantata.config.texts import lies_in
from cantata.config.user_code.script_digest import scripts_in
from cantata.errors import ConfigError, ImportFailedError, StepError
from cantata.flows.definitions import ScriptReference
from cantata.operation import exits
from cantata_workers.process import sources, user_code
from cantata_workers.process.config_folder import local_folder, own_config_folder
from cantata_workers.process.process import uncounted_import
from cantata_workers.process.step_context import StepContext
from cantata_workers.tools.schemas import Function

QUEUE = "tools"
DIGEST_CHARS = 12  # of a digest in messages

_functions: dict[tuple[str, str], Function] = {}


def refusal(context: StepContext) -> str:
    """Return why this worker cannot call the script of a step; empty if it can, or if the step has none."""
    script = context.tool.script if context.begun.spec.kind == "tool.call" and context.tool else None
    if script is None or _text(script, context.definitions.folder) is not None:
        return ""
    return _missing(script)


def _missing(script: ScriptReference) -> str:
    return (
        f"this worker has no script {script.function!r} with the digest {script.digest[:DIGEST_CHARS]} in {script.file!r}: give it the "
        "configuration that the run was submitted with (CANTATA_CONFIG, or the same folder)"
    )


def load(script: ScriptReference, context: StepContext) -> Function:
    """Return the function of a script. Raises StepError."""
    if context.begun.spec.queue != QUEUE:
        raise StepError(
            f"script {script.function!r} is called by workers of the queue {QUEUE!r} only", code="tool_import"
        )
    known = _functions.get((script.digest, script.function))
    if known is None:
        folder = context.definitions.folder
        user_code.refuse_ending(
            folder, f"{script.file}:{script.function}", script.file, [f"{__name__}:loaded", script.model_dump(), folder]
        )
        known = _functions[script.digest, script.function] = loaded(script, context.definitions.folder)
    return known


def loaded(given: ScriptReference | Mapping[str, str], folder: str | None) -> Function:
    """Return the function of a script, executed anew. Raises StepError."""
    script = ScriptReference.model_validate(given)
    text = _text(script, folder)
    if text is None:
        raise StepError(_missing(script), code="tool_import")
    names: dict[str, Any] = {"__name__": "script"}
    own = f"{script.file} (script)"
    user_code.forget_corrected()
    try:
        with uncounted_import(script.function):
            exec(compile(text, own, "exec"), names)
    except BaseException as error:  # whatever a user's code raises while it is loaded
        if exits.is_of_signal(error):
            raise
        message = f"the script of {script.function!r} cannot be loaded: {type(error).__name__}: {error}"
        if _is_of_import(error, own):  # another worker may have the module; the script itself is the same everywhere
            for module in _failed_modules(error, text):
                user_code.note_failed(folder, module)
            raise ImportFailedError(message, (getattr(error, "name", None) or "").partition(".")[0]) from error
        raise StepError(message, code="tool_import") from error
    if not callable(names.get(script.function)):
        raise StepError(f"the script does not define the function {script.function!r}", code="tool_import")
    return cast(Function, names[script.function])


def _is_of_import(error: BaseException, own: str) -> bool:
    """Return whether an error comes of a module that a script imports, not of its own text, whose file is called `own`."""
    if isinstance(error, ImportError) or (isinstance(error, SyntaxError) and error.filename != own):
        return True
    return any(
        frame.name == "<module>" and frame.filename != own for frame in traceback.extract_tb(error.__traceback__)
    )


def _failed_modules(error: BaseException, text: str) -> Iterator[str]:
    """Yield the top-level modules that a script imports and that failed: they are not loaded, or an import in one of their files failed."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    file = Path(str(error.filename) if isinstance(error, SyntaxError) else frames[-1])
    yield from (
        name
        for name in sources.imported_by(text.encode())
        if name not in sys.modules or name in (*file.parts, file.stem)
    )


def _text(script: ScriptReference, folder: str | None) -> str | None:
    """Return the text of a script from the run's folder if it exists here, else from the worker's own; None if neither has it."""
    for file in _files(script, folder):
        try:
            stat = file.stat()
            found = _scripts_in(file, stat.st_mtime_ns, stat.st_size).get(script.digest)
        except (OSError, UnicodeDecodeError, ConfigError):
            continue
        if found is not None:
            return found
    return None


def _files(script: ScriptReference, folder: str | None) -> Iterator[Path]:
    for each in dict.fromkeys((local_folder(folder), own_config_folder())):
        if each is not None and lies_in(Path(each), Path(each) / script.file):
            yield Path(each) / script.file


@lru_cache(maxsize=16)
def _scripts_in(file: Path, mtime_ns: int, size: int) -> Mapping[str, str]:
    return scripts_in(file)
