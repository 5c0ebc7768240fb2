"""The form of the answer that `wf.wait` takes: its options, and the conversion to its type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from cantata.errors import StepError
from cantata.flows.json_schemas import schema_faults, value_faults
from cantata.flows.waits import WaitOptions
from cantata.flows.workflows.conversion import describe_fault
from cantata.values import JsonValue


class AnswerForm:
    """The form of one wait's answer. Raises StepError for options that are not valid."""

    def __init__(self, name: str, answer_type: Any, options: Mapping[str, Any]) -> None:
        self._name = name
        self._adapter = None if answer_type is None else _adapter(answer_type)
        schema = {"answer_schema": _schema(answer_type)} if self._adapter else {}
        try:
            checked = WaitOptions.model_validate({**options, **schema})
        except ValidationError as error:
            raise StepError(
                f"wf.wait({name!r}): {describe_fault(error, 'the options')}", code="bad_arguments"
            ) from None
        self.params, self._schema = checked.params(), checked.answer_schema
        for fault in schema_faults(self._schema) if self._schema is not None else ():
            raise StepError(
                f"wf.wait({name!r}): 'answer_schema' is not a valid JSON Schema: {fault}", code="bad_arguments"
            )

    def convert(self, value: JsonValue) -> Any:
        """Return an answer, converted to the type. One that came before the wait was not checked: StepError if it does not fit."""
        try:
            return self._adapter.validate_python(value) if self._adapter else self._checked(value)
        except ValueError as error:  # pydantic's is one too
            fault = describe_fault(error, "the value") if isinstance(error, ValidationError) else error
            raise StepError(
                f"the signal {self._name!r} does not fit its answer_schema: {fault}", code="bad_answer"
            ) from None

    def _checked(self, value: JsonValue) -> JsonValue:
        if self._schema:
            for fault in value_faults(value, self._schema, most=1):
                raise ValueError(fault.message)
        return value


@lru_cache(maxsize=256)
def _adapter(answer_type: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(answer_type)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise StepError(
            f"wf.wait: answer_type={answer_type!r} has no JSON schema: {error}", code="bad_arguments"
        ) from None


@lru_cache(maxsize=256)
def _schema(answer_type: Any) -> Mapping[str, JsonValue]:
    return cast("Mapping[str, JsonValue]", _adapter(answer_type).json_schema())
