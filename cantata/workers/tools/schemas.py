"""What a model is told of a function, and what the function is given when a model called it."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import Parameter
from typing import Any, cast, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, PydanticSerializationError, to_jsonable_python

from cantata.config.faults import did_you_mean, shown
from cantata.config.source_map import path_text
from cantata.config.user_code.tool_decorator import settings_of
from cantata.errors import StepError
from cantata.models.definitions import Tool
from cantata.models.values import JsonValue, ToolSchema

Function = Callable[..., Any]

CONTEXT = "context"  # the parameter through which a function is told which step it is
ANYTHING = inspect.Signature([Parameter("given", Parameter.VAR_KEYWORD)])
MOST_TOLD = 5  # faults in one message
LONGEST_SCHEMA = 2000  # characters of it in a message, which is recorded with the step


@lru_cache(maxsize=1024)
def signature_of(function: Function) -> inspect.Signature | None:
    """The signature of a function, if it tells."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have none
        return None


def wants_context(function: Function) -> bool:
    """Whether `context` is ours: a parameter of that name without a type, or of our type."""
    signature = signature_of(function)
    parameter = signature.parameters.get(CONTEXT) if signature else None
    return parameter is not None and (parameter.annotation is parameter.empty or "ToolContext" in str(parameter.annotation))


def schema_of(function: Function, tool: Tool, name: str) -> ToolSchema:
    """What a model is told of the tool called `name`: what it does, and its arguments but for the context and what is hidden.

    Raises StepError with the code tool_schema if a type has no JSON schema.
    """
    taken = _taken_by(function, _unseen(function, tool))
    return ToolSchema(name=name, description=tool.description or taken.description, parameters=_schema(taken, tool))


def bind(function: Function, tool: Tool, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
    """What a function is given when a model calls it with these arguments: each of the type it declares.

    Raises StepError with the code bad_arguments; the message is for the model.
    """
    unseen = _unseen(function, tool)
    taken = _taken_by(function, unseen)
    try:
        given = taken.model.model_validate(arguments)
    except ValidationError as error:
        raise _refused((_told(detail, taken) for detail in error.errors(include_url=False)), _schema(taken, tool)) from None
    if unknown := sorted(unseen & arguments.keys()):  # a function that takes anything would be given them
        raise _refused((_unknown(name, taken) for name in unknown), _schema(taken, tool))
    named = {name: getattr(given, field) for field, name in taken.names.items() if field in given.model_fields_set}
    return {**named, **(given.model_extra or {})}


def jsonable(value: JsonValue) -> JsonValue:
    """What a function really returned as JSON: models, dataclasses, dates and the like; what has no JSON is left as it is."""
    try:
        return cast(JsonValue, to_jsonable_python(value))
    except (PydanticSerializationError, ValueError, RecursionError):
        return value


@dataclass(frozen=True)
class _Taken:
    """What a function takes from a model."""

    function: Function
    parameters: Sequence[Parameter]
    model: type[BaseModel]
    description: str

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Field of the model → parameter."""
        return {_field(number): each.name for number, each in enumerate(self.parameters)}

    @cached_property
    def schema(self) -> dict[str, JsonValue]:
        """The JSON schema of its arguments."""
        try:
            schema = self.model.model_json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            raise _without_schema(self.function, error, self.parameters) from error
        del schema["title"]
        return {"properties": {}, **schema}


class _Schema(GenerateJsonSchema):
    """Without titles, which only repeat the names, and without defaults that are no JSON."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No."""
        return False

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON. Raises PydanticSerializationError, upon which it is left out."""
        encoded = super().encode_default(dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from error
        return encoded

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Say nothing: a model need not know the default."""


def _schema(taken: _Taken, tool: Tool) -> dict[str, JsonValue]:
    return taken.schema if tool.parameters is None else tool.parameters


def _unseen(function: Function, tool: Tool) -> frozenset[str]:
    """The parameters that a model does not see. What the code hides, no configuration shows."""
    unseen = tool.unseen.union(cast("list[str]", settings_of(function).get("hidden", [])), [CONTEXT] if wants_context(function) else [])
    shown = tool.parameters and tool.parameters.get("properties")
    return unseen.union((signature_of(function) or ANYTHING).parameters.keys() - shown) if isinstance(shown, dict) else unseen


@lru_cache(maxsize=1024)
def _taken_by(function: Function, unseen: frozenset[str]) -> _Taken:
    seen = [each for name, each in (signature_of(function) or ANYTHING).parameters.items() if name not in unseen]
    named = [each for each in seen if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in seen)
    description, said = _documented(function)
    if bare := [each.name for each in seen if each.kind is each.POSITIONAL_ONLY and each.default is each.empty]:
        raise StepError(f"{bare[0]!r} of {_name(function)} is positional-only, so it cannot be given by name", code="tool_schema")
    try:
        hints = _hints(function, named)
        fields = {_field(number): _declared(each, hints[each.name], said.get(each.name)) for number, each in enumerate(named)}
        config = ConfigDict(extra="allow" if takes_any else "forbid", coerce_numbers_to_str=True)  # a model may write an order's number so
        model: type[BaseModel] = create_model("Arguments", __config__=config, **cast(Any, fields))
    except Exception as error:  # annotations are expressions, and some types only fail when they are looked into
        raise _without_schema(function, error, named) from error
    return _Taken(function, named, model, description)


def _field(number: int) -> str:
    """A field's name, since that of a parameter may be one that no field can have."""
    return f"p{number}"


def _declared(parameter: Parameter, hint: Any, said: str | None) -> tuple[Any, Any]:
    """A parameter as a field. What its own type says of it wins over the docstring."""
    described = FieldInfo.from_annotation(hint).description or said
    if parameter.default is None:
        hint = hint | None if hint is not Any else hint  # many write `count: int = None`
    default = ... if parameter.default is parameter.empty else parameter.default
    return hint, Field(default, alias=parameter.name, description=described)


def _hints(function: Function, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The types of the parameters, whatever the type of the answer is."""

    def holder() -> None: ...

    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    holder.__annotations__ = {each.name: Any if each.annotation is each.empty else each.annotation for each in parameters}
    return get_type_hints(holder, getattr(inner, "__globals__", vars(module) if module else {}), include_extras=True)


def _documented(function: Function) -> tuple[str, Mapping[str, str]]:
    """What the docstring says: of the function, and of each parameter."""
    text = inspect.getdoc(function.func if isinstance(function, functools.partial) else function) or ""
    try:
        doc = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    said = {name.strip(" *"): each.description for each in doc.params if each.description for name in each.arg_name.split(",")}
    return (doc.description or "").strip(), said


def _without_schema(function: Function, error: Exception, parameters: Sequence[Parameter]) -> StepError:
    what = next(filter(None, (_odd(function, each) for each in parameters)), f"{type(error).__name__}: {error}".splitlines()[0])
    remedy = "hide the parameter, give it another type, or write 'parameters' for the tool"
    return StepError(f"{_name(function)} cannot be shown to models: {what}; {remedy}", code="tool_schema")


def _name(function: Function) -> str:
    return str(getattr(function, "__qualname__", function))


def _odd(function: Function, parameter: Parameter) -> str | None:
    kind = parameter.annotation if isinstance(parameter.annotation, str) else inspect.formatannotation(parameter.annotation)
    try:
        TypeAdapter(_hints(function, [parameter])[parameter.name]).json_schema()
    except PydanticUserError:
        return f"{parameter.name!r} is of type {kind}, which has no JSON schema"
    except Exception as error:  # noqa: BLE001  # the annotation is an expression; why it fails is what is asked
        return f"the type {kind} of {parameter.name!r} cannot be read where it is run ({error})"
    return None


def _told(detail: ErrorDetails, taken: _Taken) -> str:
    where, value = detail["loc"], detail["input"]
    if detail["type"] == "missing":
        return f"{path_text(where)!r} is missing"
    if detail["type"] == "extra_forbidden":
        return _unknown(str(where[0]), taken) if len(where) == 1 else f"unknown key {path_text(where)!r}"
    return f"{path_text(where)!r}: {detail['msg'][:1].lower()}{detail['msg'][1:]}, found {shown(value)}"


def _unknown(name: str, taken: _Taken) -> str:
    return f"unknown argument {name!r}{did_you_mean(name, list(taken.names.values()))}"


def _refused(faults: Iterable[str], schema: Mapping[str, JsonValue]) -> StepError:
    told = list(faults)
    more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    text = json.dumps(schema, ensure_ascii=False)
    text = text if len(text) <= LONGEST_SCHEMA else f"{text[:LONGEST_SCHEMA]}…"
    return StepError(f"{'; '.join(told[:MOST_TOLD])}{more}\nThe arguments are {text}", code="bad_arguments")
