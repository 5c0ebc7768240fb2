"""Exceptions, by the moment at which they occur.

CantataError
├── ConfigError        while a configuration or request is read          (exit status 2)
├── UnavailableError   a service is not reachable, or cannot be trusted  (exit status 3)
├── MustWait           a step cannot begin yet                           (it is tried again later)
│   └── MustPause      the provider of its model asked for a pause
├── StoredDataError    stored data cannot be read by any version         (that step or run fails)
├── UnknownRunError    a run id that the ledger does not know            (exit status 2)
├── RunError           a run that a caller waited for did not succeed
└── StepError          while a step is executed                          (becomes the step's outcome)
    └── ModelError     ... in a model call
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

MAX_FAULTS = 100
"""Faults that one error reports."""
MAX_FAULT_LENGTH = 2000
"""Characters of a fault's message, and of its location. A quoted name may be as long as a request."""

MAX_UNREADABLE = 300
"""Characters of the reason why a record cannot be read."""


class CantataError(Exception):
    """The base class of Cantata's exceptions."""


@dataclass(frozen=True)
class Fault:
    """A fault in a document: a message, a location, and a line if the document has lines."""

    message: str
    where: str = ""
    line: int | None = None
    is_warning: bool = False
    """The document is valid: what is meant has no effect here, or another one than elsewhere."""
    file: str = ""
    """The file, if the document has several."""

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        return ": ".join(filter(None, (line, f"{self.file} {self.where}".strip(), self._message)))

    def in_file(self, file: str) -> str:
        """Return the fault as compilers report theirs, so that editors find it: `file:line: where: message`."""
        return ": ".join(
            filter(None, (file if self.line is None else f"{file}:{self.line}", self.where, self._message))
        )

    @property
    def _message(self) -> str:
        return f"warning: {self.message}" if self.is_warning else self.message


def without_warnings(faults: Iterable[Fault]) -> list[Fault]:
    """Return the faults for which a document is refused."""
    return [fault for fault in faults if not fault.is_warning]


def first_of(faults: Iterable[Fault]) -> list[Fault]:
    """Return the first faults, truncated, and one more that says so if there are others: an error must not be larger than its request."""
    found = [_truncated(fault) for fault in islice(faults, MAX_FAULTS + 1)]
    return (
        found
        if len(found) <= MAX_FAULTS
        else [*found[:MAX_FAULTS], Fault(f"there are more faults; these are the first {MAX_FAULTS}")]
    )


def _truncated(fault: Fault) -> Fault:
    if len(fault.message) <= MAX_FAULT_LENGTH and len(fault.where) <= MAX_FAULT_LENGTH:
        return fault
    message, where = (
        text if len(text) <= MAX_FAULT_LENGTH else f"{text[:MAX_FAULT_LENGTH]}..."
        for text in (fault.message, fault.where)
    )
    return replace(fault, message=message, where=where)


class ConfigError(CantataError):
    """The configuration or request has faults. Correct them and submit again; nothing was run.

    `faults` lists them, each with `message`, `where` and `line`. `code` is for programs, such as bad_request or quota_exceeded.
    """

    def __init__(
        self, faults: Sequence[Fault] | str, *, source: str = "", code: str = "bad_request", asked: object = None
    ) -> None:
        """Set the faults. `asked` is the faulty document as plain data, from which the reply to its sender is made."""
        self.faults = tuple(first_of([Fault(faults)] if isinstance(faults, str) else faults))
        self.source = source
        self.code = code
        self.asked = asked
        head = f"{source}: " if source else ""
        super().__init__("\n".join(f"{head}{fault}" for fault in self.faults))


class UnavailableError(CantataError):
    """A required service cannot be reached, or cannot be trusted with runs."""


class StoredDataError(CantataError, ValueError):
    """Stored data can be read by no version: they are damaged, or nested too deeply."""


def unreadable(error: Exception) -> str:
    """Return why a stored record cannot be read, in a line."""
    text = str(error) if isinstance(error, CantataError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:MAX_UNREADABLE]


class UnknownRunError(CantataError):
    """No run has this id; it may have expired. `submit runs list` lists the runs."""

    @classmethod
    def of(cls, run_id: str) -> UnknownRunError:
        """Return the error for a run id."""
        return cls(f"run {run_id!r} is not known here; it may have expired: `submit runs list` lists the runs")


class MustWait(CantataError):
    """A step must wait `seconds` before it can begin: it releases its slot and is tried again."""

    def __init__(self, seconds: float, reason: str, *, ahead: int = 0, is_queued: bool = False) -> None:
        """Create the wait. A timer ends it after these seconds; if it `is_queued`, the limits of models do, as soon as they have room."""
        super().__init__(reason)
        self.seconds = seconds
        self.ahead = ahead
        self.is_queued = is_queued


class MustPause(MustWait):
    """The provider of a model asked for a pause. `message` has its words."""

    def __init__(self, seconds: float, message: str, *, ahead: int = 0, is_queued: bool = False) -> None:
        reason = f"the model's provider asked for a pause{f': {message}' if message else ''}"
        super().__init__(seconds, reason, ahead=ahead, is_queued=is_queued)
        self.message = message


class RunError(CantataError):
    """A run ended without an answer. `submit runs show` with its `run_id` shows the details.

    `status` is that of the run, such as failed, cancelled, timed_out or exhausted. `code` is the error's, such as tool_error.
    """

    def __init__(self, message: str, *, run_id: str, status: str, code: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status
        self.code = code


class StepError(CantataError):
    """A step failed. The message is for people, `code` for programs, such as tool_error, timeout, bad_arguments or stopped.

    `retryable` says whether another attempt may help, `retry_after_s` after how many seconds.
    """

    def __init__(
        self, message: str, *, code: str = "step_error", retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class CodeExitError(StepError):
    """The user's code raised an exception that is no `Exception`, such as CancelledError or SystemExit.

    The step fails, at once and once: the code wanted to end, so neither a retry nor a place that ignores errors of the code goes on.
    """


class ImportFailedError(StepError):
    """This process cannot import a module, or the module has no such name. Another worker may have other files.

    `module` is a top-level module, or a folder of code, as workers announce it. `lacks_name` says that it was imported and lacks the name,
    as in every worker with the same version of it. Raised for what a step names, never for what a function imports while it runs.
    """

    def __init__(self, message: str, module: str, *, code: str = "tool_import", lacks_name: bool = False) -> None:
        super().__init__(message, code=code)
        self.module, self.lacks_name = module, lacks_name


MISMATCH = "does not follow the run's history"
"""A part of the message of each CodeMismatchError: it says that the code was changed under an open run."""


class CodeMismatchError(CantataError):
    """The code of this worker cannot continue a run; that of another worker may."""


class ModelError(StepError):
    """A model call failed."""
