"""What can go wrong, told apart by the moment it goes wrong.

CantataError
├── ConfigError        while loading configuration or reading a request  (exit status 2)
├── UnavailableError   a service is not there, or cannot be trusted      (exit status 3)
├── MustWait           a step cannot begin its work yet                   (it is tried again later)
├── UnknownRunError    a run id that no ledger knows                      (exit status 2)
├── RunError           a run that a PromptChain waited for did not succeed
└── StepError          while a step does its work                         (becomes the step's outcome)
    └── ModelError     ... and it was a model call that failed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

MAX_FAULTS = 100
"""Faults that one refusal tells."""
MAX_FAULT_LENGTH = 2000
"""Characters of a fault's message, and of its place. A name that is quoted in it may be as long as a request."""


class CantataError(Exception):
    """Something went wrong in Cantata."""


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a document: what, where, and the line if the document has lines."""

    message: str
    where: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = self.where if self.line is None else f"line {self.line}: {self.where}" if self.where else f"line {self.line}"
        return f"{place}: {self.message}" if place else self.message


def first_of(faults: Iterable[Fault]) -> list[Fault]:
    """The first faults, cut where they are long, and one that says so if there are more: a refusal must not outgrow what it refuses."""
    found = [_cut(fault) for fault in islice(faults, MAX_FAULTS + 1)]
    return found if len(found) <= MAX_FAULTS else [*found[:MAX_FAULTS], Fault(f"there are more faults; these are the first {MAX_FAULTS}")]


def _cut(fault: Fault) -> Fault:
    if len(fault.message) <= MAX_FAULT_LENGTH and len(fault.where) <= MAX_FAULT_LENGTH:
        return fault
    message, where = (text if len(text) <= MAX_FAULT_LENGTH else f"{text[:MAX_FAULT_LENGTH]}..." for text in (fault.message, fault.where))
    return replace(fault, message=message, where=where)


class ConfigError(CantataError):
    """The configuration or request has faults; each is listed. Mend them and submit again."""

    def __init__(self, faults: Sequence[Fault] | str, *, source: str = "", code: str = "bad_request", asked: object = None) -> None:
        """`asked` is the document that is at fault, as plain data, where its sender is to be answered."""
        self.faults = tuple(first_of([Fault(faults)] if isinstance(faults, str) else faults))
        self.source = source
        self.code = code
        self.asked = asked
        head = f"{source}: " if source else ""
        super().__init__("\n".join(f"{head}{fault}" for fault in self.faults))


class UnavailableError(CantataError):
    """A service that is needed cannot be reached or cannot be trusted with runs."""


class UnknownRunError(CantataError):
    """No run has this id; it may have expired. `submit runs list` shows those kept."""

    @classmethod
    def of(cls, run_id: str) -> UnknownRunError:
        """The usual one."""
        return cls(f"no run {run_id!r} is known here; it may have expired: `submit runs list` shows those kept")


class MustWait(CantataError):
    """A step must wait `seconds` before it may do its work: it gives up its slot and is tried again."""

    def __init__(self, seconds: float, reason: str, *, ahead: int = 0) -> None:
        super().__init__(reason)
        self.seconds = seconds
        self.ahead = ahead


class RunError(CantataError):
    """A run ended without an answer; `status` and `code` say how, to programs. `submit runs show` with its `run_id` shows all of it."""

    def __init__(self, message: str, *, run_id: str, status: str, code: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status
        self.code = code


class StepError(CantataError):
    """A step failed: `code` for programs, the message for people, and whether another try may help."""

    def __init__(self, message: str, *, code: str = "step_error", retryable: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class ModelError(StepError):
    """A model call failed."""
