"""Holds an agent's answer against the shape that was asked for: a JSON schema, or a pydantic model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

from jsonschema import Draft202012Validator, SchemaError
from pydantic import BaseModel, ValidationError

from cantata.config.json_schemas import errors_in
from cantata.errors import StepError
from cantata.models.definitions import OutputSchema
from cantata.models.values import JsonValue
from cantata.planning import json_repair
from cantata.workers.models.dialects.call_parsing import ParsedReply
from cantata.workers.tools import functions

MOST_FAULTS = 5  # that a model is told at once
LONGEST_FAULT = 300  # characters: a validator repeats what it refuses


@dataclass(frozen=True)
class AnswerValidator:
    """What an agent's answer must be."""

    output: OutputSchema
    agent: str
    folder: str | None

    @cached_property
    def schema(self) -> dict[str, JsonValue]:
        """As a JSON schema. Raises StepError if what is declared is none."""
        declared = self.output.json_schema
        if declared is None:
            return cast("dict[str, JsonValue]", self._model.model_json_schema())
        try:
            Draft202012Validator.check_schema(declared)
        except SchemaError as error:
            said = _cut(error.message)
            raise StepError(f"'output.schema' of agent {self.agent!r} is no JSON schema: {said}", code="bad_schema") from error
        return declared

    def fault_of(self, said: ParsedReply, text: str) -> str | None:
        """What is wrong with an answer, for the model; None if it is what was asked for."""
        try:
            self.parsed(said, text)
        except ValueError as error:
            return str(error)
        return None

    def parsed(self, said: ParsedReply, text: str) -> JsonValue:
        """The answer as the JSON that was asked for: the whole reply, or its `response`. Raises ValueError with what is wrong."""
        try:
            return self._checked(_json_in(text))
        except ValueError:
            if said.response == text:
                raise
            return self._checked(_json_in(said.response) if isinstance(said.response, str) else said.response)

    def _checked(self, value: JsonValue) -> JsonValue:
        if self.output.json_schema is None:
            try:
                return cast(JsonValue, self._model.model_validate(value).model_dump(mode="json"))
            except ValidationError as error:
                _refuse([(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()])
        faults = list(errors_in(value, self.schema))
        if faults:
            _refuse([(".".join(map(str, fault.absolute_path)), fault.message) for fault in faults])
        return value

    @cached_property
    def _model(self) -> type[BaseModel]:
        name = str(self.output.model_class)
        found: Any = functions.load(name, self.folder)
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise StepError(f"{name} is no pydantic model", code="bad_output_class")
        return found


def _json_in(text: str) -> JsonValue:
    """The JSON that a reply is, or the one object in it. Raises ValueError."""
    try:
        return cast(JsonValue, json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        found = list(json_repair.objects_in(text))
        if len(found) != 1:
            raise ValueError(f"the reply is not JSON ({error})") from error
        return found[0].value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _refuse(faults: Sequence[tuple[str, str]]) -> NoReturn:
    told = [_cut(f"{place or 'the reply'}: {message}") for place, message in faults[:MOST_FAULTS]]
    raise ValueError("; ".join([*told, *([f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else [])]))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_FAULT else f"{text[:LONGEST_FAULT]}…"
