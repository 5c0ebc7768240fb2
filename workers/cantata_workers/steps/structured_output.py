"""Validation of an agent's answer against its output schema: a JSON schema, or a pydantic model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

from pydantic import BaseModel, ValidationError

from cantata import bounds
from cantata.errors import StepError
from cantata.flows.definitions import OutputSchema
from cantata.flows.expressions import json_repair
from cantata.flows.json_schemas import schema_faults, value_faults
from cantata.flows.provider_schemas import without_fillers
from cantata.operation import exits
from cantata.values import JsonValue
from cantata_workers.models.dialects.call_parsing import ParsedReply
from cantata_workers.tools import functions

MAX_FAULTS = 5  # in one message to the model
MAX_FAULT_CHARS = 300  # a validator quotes the value that it refuses


@dataclass(frozen=True)
class AnswerValidator:
    """Parses and validates the answer of an agent."""

    output: OutputSchema
    agent: str
    folder: str | None

    @cached_property
    def schema(self) -> dict[str, JsonValue]:
        """The JSON schema of the answer. Raises StepError if the declared one is not valid."""
        declared = self.output.json_schema
        if declared is None:
            return cast("dict[str, JsonValue]", self._model.model_json_schema())
        for fault in schema_faults(declared):
            where = ".".join(filter(None, ("output.schema", fault.place)))
            raise StepError(
                f"{where!r} of agent {self.agent!r} is not a JSON Schema: {fault.message}", code="bad_schema"
            )
        return declared

    def fault_of(self, reply: ParsedReply, text: str) -> str | None:
        """Return what is wrong with an answer, as a message for the model; None if it is valid."""
        try:
            self.parsed(reply, text)
        except ValueError as error:
            return str(error)
        return None

    def parsed(self, reply: ParsedReply, text: str) -> JsonValue:
        """Return the valid JSON of an answer: the whole reply, or its `response`. Raises ValueError if neither is valid."""
        try:
            return self._checked(json_repair.value_in(text))
        except ValueError:
            if reply.response == text:
                raise
            return self._checked(
                json_repair.value_in(reply.response) if isinstance(reply.response, str) else reply.response
            )

    def _checked(self, value: JsonValue) -> JsonValue:
        bounds.check(value, "the reply")
        value = without_fillers(value, self.schema)
        if self.output.json_schema is None:
            try:
                with exits.contained(str(self.output.model_class), code="bad_output_class"):
                    return cast(JsonValue, self._model.model_validate(value).model_dump(mode="json"))
            except ValidationError as error:
                _refuse([(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()])
        faults = value_faults(value, self.schema)
        if faults:
            _refuse([(fault.place, fault.message) for fault in faults])
        return value

    @cached_property
    def _model(self) -> type[BaseModel]:
        name = str(self.output.model_class)
        found: Any = functions.load(name, self.folder)
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise StepError(f"{name} is not a pydantic model", code="bad_output_class")
        return found


def _refuse(faults: Sequence[tuple[str, str]]) -> NoReturn:
    messages = [_truncated(f"{path or 'the reply'}: {message}") for path, message in faults[:MAX_FAULTS]]
    raise ValueError(
        "; ".join([*messages, *([f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else [])])
    )


def _truncated(text: str) -> str:
    return text if len(text) <= MAX_FAULT_CHARS else f"{text[:MAX_FAULT_CHARS]}…"
