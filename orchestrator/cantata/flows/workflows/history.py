"""The recorded history of a workflow: its activations, the commands of each, and the outcomes of commands."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cantata.errors import StepError
from cantata.values import ErrorInfo, JsonValue, Value

STOPPED = "stopped"  # code of the outcome of a step that was stopped


class Recorded(Value):
    """A command as the history keeps it."""

    step: str = Field(description="the end of its step's id, behind that of the workflow")
    kind: str = Field(description="agent, tool, chain, workflow, start, call, wait or sleep")
    target: str = Field(description="the name of what it calls")
    digest: str = Field(description="of its arguments")
    line: str = Field(description="file:line of the workflow's code that gave it")

    def __str__(self) -> str:
        return f"{self.kind} {self.target!r} at {self.line}" if self.target else f"{self.kind} at {self.line}"

    def same_as(self, other: Recorded) -> bool:
        """Return whether both are the same command, wherever in the code."""
        return (self.kind, self.target, self.digest) == (other.kind, other.target, other.digest)


class Activation(Value):
    """One execution of the workflow's code, from the outcomes that it received until it waits again."""

    at: float = Field(description="Redis's clock, seconds since 1970")
    received: tuple[int, ...] = Field((), description="indexes of the commands whose outcomes it received, in order")
    commands: tuple[Recorded, ...] = Field((), description="the commands that it gave")
    patches: tuple[str, ...] = Field((), description="ids of patches that it took")
    input: dict[str, JsonValue] = Field(
        default_factory=dict, description="the workflow's input; of the first activation"
    )
    cancelled: bool = Field(False, description="whether its code got CancelledError, since the run was cancelled")
    run_id: str = Field("", description="the run in which the workflow began; of the first activation")


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of a command that is over."""

    output: JsonValue = None
    error: ErrorInfo | None = None
    timed_out: bool = False
    """Of a wait or sleep: its time passed without a signal."""

    def result(self) -> JsonValue:
        """Return a copy of the output: what the code does with it must not change what the next replay gets. Raises StepError."""
        if self.error is not None:
            raise StepError(self.error.message, code=self.error.code)
        return copy.deepcopy(self.output)


@dataclass(frozen=True, slots=True)
class WorkflowCommand:
    """A command that is not a step of the run yet."""

    recorded: Recorded
    arguments: Mapping[str, JsonValue]
    options: Mapping[str, JsonValue]
    """timeout_s, retries, at_most_once, queue"""


def outcome_of(state: str, output: str | None, info: Mapping[str, Any]) -> CommandOutcome:
    """Return the outcome of a command from the state, the output as JSON text and the info of its step."""
    if state == "skipped" or "passed_on" in info:
        return CommandOutcome(error=ErrorInfo(code=STOPPED, message="the step was stopped"))
    if state == "failed":
        return CommandOutcome(error=ErrorInfo.model_validate(info["error"]))
    return CommandOutcome(json.loads(output or "null"), timed_out="timed_out" in info or "sleeps_until_ms" in info)


def digest_of(arguments: Mapping[str, JsonValue]) -> str:
    """Return a digest of JSON arguments. Raises TypeError or ValueError for what is not JSON."""
    text = json.dumps(arguments, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
