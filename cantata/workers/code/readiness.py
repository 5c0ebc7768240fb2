"""The readiness of a worker of a fleet: it can read its configuration, and import what that names."""

from __future__ import annotations

import threading

import structlog

from cantata.config import loading
from cantata.config.documents import Document
from cantata.config.native import functions_in
from cantata.config.user_code.import_trials import failures_of
from cantata.errors import CantataError
from cantata.workers.code import user_code
from cantata.workers.code.config_folder import local_folder

CONFIGURATION = "the configuration"
RETRY_S = 5.0  # while it is not ready: a corrected file, or a package that is installed, makes it so

log = structlog.get_logger(__name__)


class CodeReadiness:
    """The faults that keep a worker from being ready. A process that is thrown away looks for them, never one that is forked later."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        """Top-level modules, or CONFIGURATION → why this worker cannot import or read it."""

    def check(self) -> None:
        """Find the faults anew, and log them when they change."""
        faults = _faults()
        if faults and faults != self.faults:
            note = "roll-outs wait, and steps that need it go to other workers; correct it, or start the worker with --lenient"
            log.error("worker_not_ready", faults=faults, note=note)
        if self.faults and not faults:
            log.info("worker_ready_again", corrected=sorted(self.faults))
            user_code.forget_faults()
        self.faults = faults

    def check_until_ready(self, stopping: threading.Event) -> None:
        """Check in a thread until there are no faults."""

        def keep_checking() -> None:
            while self.faults and not stopping.wait(RETRY_S):
                self.check()

        if self.faults:
            threading.Thread(target=keep_checking, name="readiness", daemon=True).start()


def _faults() -> dict[str, str]:
    try:
        definitions = loading.load(loading.find())
    except (CantataError, OSError, ValueError, RecursionError) as error:
        return {CONFIGURATION: " ".join(str(error).split())}
    data = definitions.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    names = sorted({name for _, name in functions_in(Document(data))})
    failures = failures_of(local_folder(definitions.folder) or "", names)
    return {name.partition(":")[0].partition(".")[0]: f"{name}: {why}" for name, why in failures.items() if why}
