"""The form of the answer that `wf.wait` takes: its options, and the conversion to its type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from cantata.errors import StepError
from cantata.models.values import JsonValue
from cantata.models.waits import WaitOptions
from cantata.workflows.conversion import describe_fault

MAX_MESSAGE = 300  # characters


class AnswerForm:
    """The form of one wait's answer. Raises StepError for options that are not valid."""

    def __init__(self, name: str, answer_type: Any, options: Mapping[str, Any]) -> None:
        self._name = name
        self._adapter = None if answer_type is None else _adapter(answer_type)
        schema = {"answer_schema": _schema(answer_type)} if self._adapter else {}
        try:
            checked = WaitOptions.model_validate({**options, **schema})
            self.params, self._schema = checked.params(), checked.answer_schema
        except ValidationError as error:
            raise StepError(f"wf.wait({name!r}): {describe_fault(error, 'the options')}", code="bad_arguments") from None

    def convert(self, value: JsonValue) -> Any:
        """Return an answer, converted to the type. One that came before the wait was not checked: StepError if it does not fit."""
        try:
            return self._adapter.validate_python(value) if self._adapter else self._checked(value)
        except ValueError as error:  # pydantic's is one too
            fault = describe_fault(error, "the value") if isinstance(error, ValidationError) else error
            raise StepError(f"the signal {self._name!r} does not fit its answer_schema: {fault}", code="bad_answer") from None

    def _checked(self, value: JsonValue) -> JsonValue:
        if self._schema:
            from jsonschema import Draft202012Validator  # noqa: PLC0415  # takes 0.15 s, and few waits have a schema

            for error in Draft202012Validator(self._schema).iter_errors(value):
                raise ValueError(error.message[:MAX_MESSAGE])
        return value


@lru_cache(maxsize=256)
def _adapter(answer_type: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(answer_type)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise StepError(f"wf.wait: answer_type={answer_type!r} has no JSON schema: {error}", code="bad_arguments") from None


@lru_cache(maxsize=256)
def _schema(answer_type: Any) -> Mapping[str, JsonValue]:
    return cast("Mapping[str, JsonValue]", _adapter(answer_type).json_schema())
