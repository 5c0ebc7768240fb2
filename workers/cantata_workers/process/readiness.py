"""The readiness of a worker of a fleet: it can read its configuration, and import what that names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import cast

import structlog

from cantata.config import loading
from cantata.config.documents import Document
from cantata.config.native import functions_in
from cantata.config.source_map import KeyPath
from cantata.config.user_code.import_trials import tried
from cantata.engine.publisher import COORDINATOR, TASKS
from cantata.errors import CantataError, ConfigError
from cantata.flows import webhooks
from cantata.flows.definitions import Definitions, Tool
from cantata.flows.turns.agent_steps import tools_of
from cantata_workers.process import user_code
from cantata_workers.process.config_folder import local_folder

CONFIGURATION = "its configuration"
RETRY_S = 5.0  # while it is not ready: a corrected file, or a package that is installed, makes it so

log = structlog.get_logger(__name__)


class CodeReadiness:
    """The faults that keep a worker from being ready. A process that is thrown away looks for them, never one that is forked later."""

    def __init__(self, queues: Collection[str], corrected: Callable[[], object] = lambda: None) -> None:
        """Create the check of a worker that serves these queues: only what their steps import counts. `corrected` is called when it is."""
        self._corrected = corrected
        self._queues = {*queues} - {COORDINATOR, TASKS, webhooks.QUEUE}  # whose steps import nothing of users
        self.faults: dict[str, str] = {}
        """Top-level modules, files of scripts, a further format's folder, or CONFIGURATION → why this worker cannot import or read it."""

    def check(self) -> None:
        """Find the faults anew, and log them when they change."""
        faults = _faults(self._queues) if self._queues else {}
        if faults and faults != self.faults:
            note = "this worker is not ready, and steps that need it go to others; correct it, or start the worker with --lenient"
            log.error("imports_failed", faults=faults, note=note)
        if self.faults and not faults:
            log.info("imports_succeed_again", corrected=sorted(self.faults))
            user_code.forget_faults()
            self._corrected()
        self.faults = faults

    def check_until_ready(self, stopping: threading.Event) -> None:
        """Check in a thread until there are no faults."""

        def keep_checking() -> None:
            while self.faults and not stopping.wait(RETRY_S):
                try:
                    self.check()
                except (
                    Exception
                ):  # the edge of a thread: whatever it is, such as no room for a process, the next check may succeed
                    log.exception("imports_not_checked")

        if self.faults:
            threading.Thread(target=keep_checking, name="readiness", daemon=True).start()


def _faults(queues: Collection[str]) -> dict[str, str]:
    try:
        definitions = _definitions()
    except (CantataError, OSError, ValueError, RecursionError) as error:
        return {CONFIGURATION: " ".join(str(error).split())}
    folder, named = local_folder(definitions.folder) or "", functions_for(definitions, queues)
    trial = tried(
        folder, sorted(named), {}, definitions if "tools" in queues else None
    )  # whose steps import code of further formats
    user_code.note_trial(trial.unanswered)
    failures = trial.failures

    def owner(name: str) -> str:
        if name in named:
            return name.partition(":")[0].partition(".")[0]
        return name.partition(":")[0] if definitions.extension is None else Path(folder).name

    return {
        owner(name): f"{name}: {failures[name]}" for name in reversed([*failures]) if failures[name]
    }  # the first of a module stays


def _definitions() -> Definitions:
    """Return the worker's configuration, also if functions that it names are not here: steps of other queues may import these."""
    path = loading.find()
    try:
        return loading.load(path)
    except ConfigError as error:
        document = loading.opened(path) if path is not None and path.is_file() else None
        if not isinstance(document, Document):
            raise
        places = {document.fault(place, "").where for place, _ in functions_in(document)}
        if {fault.where for fault in error.faults} - places:
            raise
        return Definitions.model_validate(document.data).model_copy(
            update={"folder": str(cast(Path, path).resolve().parent)}
        )


def functions_for(definitions: Definitions, queues: Collection[str]) -> set[str]:
    """Return the functions and classes, `module:name`, that steps of these queues import."""
    document = Document(definitions.model_dump(mode="json", exclude_defaults=True, by_alias=True))
    found = {name for path, name in functions_in(document) if _queue_of(path, definitions) in queues}
    for agent in definitions.agents.values():
        if agent.queue in queues:  # its model is told their parameters
            named = {
                *agent.tools,
                *(each for instruction in agent.instructions for each in tools_of(agent, instruction)),
            }
            called = [
                section[name]
                for section in (definitions.tools, definitions.workflows)
                for name in named
                if name in section
            ]
            found |= {each.function for each in called if each.function}
    return found


def _queue_of(path: KeyPath, definitions: Definitions) -> str:
    """Return the queue whose steps import what stands at a path of a configuration."""
    match path:
        case ("tools" | "skills" as section, str(name), *_):
            return cast("Mapping[str, Tool]", getattr(definitions, section))[name].step_queue
        case ("workflows", str(name), *_):
            return definitions.workflows[name].queue
        case ("agents", str(name), "output", *_):
            return definitions.agents[name].queue
    return "tools"
