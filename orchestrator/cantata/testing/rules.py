"""Rules of a scripted model server: the requests that they match, and the answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence

from pydantic import Field, JsonValue, TypeAdapter, ValidationError, field_validator

from cantata.config.documents import Document
from cantata.config.faults import faults_of
from cantata.config.source_map import SourceNode
from cantata.errors import ConfigError
from cantata.values import Value


class ToolCall(Value):
    """A tool call in a model's answer."""

    name: str | None = Field(description="null: the call has no name")
    id: str | None = Field(
        default="", description="empty: `call_<n>`, counted through the conversation; null: none is sent"
    )
    arguments: dict[str, JsonValue] | str = Field(
        default_factory=dict, description="an object, or text that is sent as it is, well formed or not"
    )


class Rule(Value):
    """A rule: conditions on requests, and the answer. Without fields it answers every request with the echo."""

    match: str = Field(default="", description="regular expression, searched in the last user message")
    model: str = Field(default="", description="regular expression, searched in the model's name")
    after_tools: int | None = Field(
        default=None, ge=0, description="matches if the messages have exactly this many tool results"
    )
    times: int | None = Field(default=None, ge=1, description="how often the rule answers; unlimited if absent")

    reply: JsonValue = Field(default=None, description="text; other JSON is sent as text; absent or null: the echo")
    tool_calls: tuple[ToolCall, ...] = Field(default=(), description="tools the model asks for")
    finish_reason: str | None = Field(
        default=None, description="why the model stopped; absent: stop or tool_calls; empty: null"
    )
    status: int = Field(
        default=200, ge=200, le=599, description="HTTP status; from 400 on, the reply is the error's message"
    )
    headers: dict[str, str] = Field(default_factory=dict, description="more HTTP headers, such as Retry-After")

    delay_s: float = Field(default=0.0, ge=0, description="seconds before anything is sent")
    chunk_delay_s: float = Field(default=0.0, ge=0, description="seconds before each further piece of a stream")
    truncate: int | None = Field(
        default=None, ge=0, description="bytes of the body that are sent before the connection is closed"
    )
    expires: bool = Field(default=False, description="of a row in a batch: it gets no answer, and the batch expires")
    disconnect: bool = Field(default=False, description="close the connection instead of answering")

    @field_validator("match", "model")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return pattern

    def fits(self, model: str, text: str, tool_results: int) -> bool:
        """Return whether this rule matches a request to this model with this last user message and number of tool results."""
        return self.after_tools in (None, tool_results) and bool(
            re.search(self.model, model) and re.search(self.match, text)
        )


Rules = TypeAdapter(tuple[Rule, ...])

ECHO = Rule()


class RuleFile(Value):
    """The rules of a file."""

    rules: tuple[Rule, ...]


def read_rules(document: Document) -> tuple[Rule, ...]:
    """Return the rules of a document, a list. Raises ConfigError with every fault, by the number of its rule and its line."""
    data: JsonValue = {"rules": document.data or []}
    try:
        return RuleFile.model_validate(data).rules
    except ValidationError as error:
        lines = document.source_map
        numbered = Document(data, document.source, lines and (lambda: SourceNode(data, 1, {}, {"rules": lines()})))
        raise ConfigError(faults_of(error, numbered, RuleFile), source=document.source) from error


class RuleScript:
    """Rules, and how often each may still answer."""

    def __init__(self, rules: Sequence[Rule | Mapping[str, object]]) -> None:
        self._rules = Rules.validate_python(tuple(rules))
        self._left = [rule.times for rule in self._rules]
        self._lock = threading.Lock()

    def take(self, model: str, text: str, tool_results: int = 0) -> tuple[int | None, Rule]:
        """Return the number of the rule that answers this request, and the rule, and count the use; None and the echo if none matches."""
        with self._lock:
            for number, rule in enumerate(self._rules):
                left = self._left[number]
                if left != 0 and rule.fits(model, text, tool_results):
                    self._left[number] = None if left is None else left - 1
                    return number, rule
        return None, ECHO
