"""Tool schemas of Python functions, and the arguments that a model's call binds to their parameters."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

from cantata.config.faults import shown
from cantata.config.source_map import path_text
from cantata.config.user_code.built_ins import place_of
from cantata.config.user_code.tool_decorator import settings_of
from cantata.errors import StepError
from cantata.flows.definitions import Tool
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue, ToolSchema

Function = Callable[..., Any]

CONTEXT = "context"  # the parameter that receives the ToolContext of the step
ANYTHING = inspect.Signature([Parameter("given", Parameter.VAR_KEYWORD)])
MAX_FAULTS = 5  # in one message
MAX_SCHEMA_CHARS = 2000  # in a message, which is recorded with the step


@lru_cache(maxsize=1024)
def signature_of(function: Function) -> inspect.Signature | None:
    """Return the signature of a function; None if it has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have none
        return None


def wants_context(function: Function, *, by_type: bool = False) -> bool:
    """Return whether the function has a parameter `context` for a ToolContext: of that type, or without a type unless `by_type`."""
    signature = signature_of(function)
    parameter = signature.parameters.get(CONTEXT) if signature else None
    if parameter is None:
        return False
    return "ToolContext" in str(parameter.annotation) or (parameter.annotation is parameter.empty and not by_type)


def schema_of(function: Function, tool: Tool, name: str) -> ToolSchema:
    """Return the schema of the tool called `name`: its description, and its parameters without the context and hidden ones.

    Raises StepError with the code tool_schema if a type has no JSON schema.
    """
    visible = _parameters_of(function, _unseen(function, tool))
    return ToolSchema(name=name, description=tool.description or visible.description, parameters=_schema(visible, tool))


def described(name: str, tool: str) -> tuple[JsonValue, str | None]:
    """Return the schema of a tool, which is given as JSON, and why it has none; neither if its function cannot be imported."""
    read = Tool.model_validate_json(tool)
    module, _, attribute = place_of(str(read.function)).partition(":")
    function = getattr(sys.modules.get(module), attribute, None)
    if not callable(function):
        return None, None
    try:
        return schema_of(function, read, name).model_dump(mode="json"), None
    except StepError as error:
        return None, str(error)


def bind(function: Function, tool: Tool, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Return the keyword arguments for a model's call, converted to the types that the function declares.

    Raises StepError with the code bad_arguments; the message is for the model.
    """
    unseen = _unseen(function, tool)
    visible = _parameters_of(function, unseen)
    try:
        given = visible.model.model_validate(arguments)
    except ValidationError as error:
        faults = (_fault_text(detail, visible) for detail in error.errors(include_url=False))
        raise _bad_arguments(faults, _schema(visible, tool)) from None
    if unknown := sorted(unseen & arguments.keys()):  # a function with **kwargs would receive them
        raise _bad_arguments((_unknown(name, visible) for name in unknown), _schema(visible, tool))
    named = {name: getattr(given, field) for field, name in visible.names.items() if field in given.model_fields_set}
    return {**named, **(given.model_extra or {})}


def with_defaults(
    function: Function, arguments: Mapping[str, JsonValue], mapped: Collection[str]
) -> dict[str, JsonValue]:
    """Return arguments without those of `mapped` that are null, as of a missing input, where the function has a default."""
    if not any(arguments.get(name, ...) is None for name in mapped):
        return dict(arguments)
    parameters = inspect.signature(function).parameters
    optional = {name for name in mapped if name in parameters and parameters[name].default is not Parameter.empty}
    return {name: value for name, value in arguments.items() if value is not None or name not in optional}


def jsonable(value: JsonValue) -> JsonValue:
    """Return a function's output as JSON values: models, dataclasses, dates and the like are converted, other objects left unchanged."""
    try:
        return cast(JsonValue, to_jsonable_python(value))
    except (PydanticSerializationError, ValueError, RecursionError):
        return value


@dataclass(frozen=True)
class _VisibleParameters:
    """The parameters of a function that a model sees, as a pydantic model."""

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
            raise _no_schema(self.function, error, self.parameters) from error
        del schema["title"]
        return {"properties": {}, **schema}


class _Schema(GenerateJsonSchema):
    """JSON schemas without titles, which only repeat the names, and without defaults that are not JSON."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON. Raises PydanticSerializationError for others, upon which pydantic leaves them out."""
        encoded = super().encode_default(dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from error
        return encoded

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Emit no warning: a model need not know the default."""


def _schema(visible: _VisibleParameters, tool: Tool) -> dict[str, JsonValue]:
    return visible.schema if tool.parameters is None else tool.parameters


def _unseen(function: Function, tool: Tool) -> frozenset[str]:
    """Return the parameters that a model does not see. Those that the decorator hides stay hidden in any configuration."""
    unseen = tool.unseen.union(
        cast("list[str]", settings_of(function).get("hidden", [])), [CONTEXT] if wants_context(function) else []
    )
    shown = tool.parameters and tool.parameters.get("properties")
    return (
        unseen.union((signature_of(function) or ANYTHING).parameters.keys() - shown)
        if isinstance(shown, dict)
        else unseen
    )


@lru_cache(maxsize=1024)
def _parameters_of(function: Function, unseen: frozenset[str]) -> _VisibleParameters:
    seen = [each for name, each in (signature_of(function) or ANYTHING).parameters.items() if name not in unseen]
    named = [each for each in seen if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in seen)
    description, documented = _parse_docstring(function)
    if bare := [each.name for each in seen if each.kind is each.POSITIONAL_ONLY and each.default is each.empty]:
        raise StepError(
            f"{bare[0]!r} of {_name(function)} is positional-only, so it cannot be given by name", code="tool_schema"
        )
    try:
        hints = _hints(function, named)
        fields = {
            _field(number): _declared(each, hints[each.name], documented.get(each.name))
            for number, each in enumerate(named)
        }
        config = ConfigDict(
            extra="allow" if takes_any else "forbid", coerce_numbers_to_str=True
        )  # a model may write an order's number so
        model: type[BaseModel] = create_model("Arguments", __config__=config, **cast(Any, fields))
    except Exception as error:  # annotations are expressions, and some types fail only when they are inspected
        raise _no_schema(function, error, named) from error
    return _VisibleParameters(function, named, model, description)


def _field(number: int) -> str:
    """Return the name of a field: a parameter's own name may be invalid for a field."""
    return f"p{number}"


def _declared(parameter: Parameter, hint: Any, documented: str | None) -> tuple[Any, Any]:
    """Return a parameter as a field. The description of its type wins over that of the docstring."""
    description = FieldInfo.from_annotation(hint).description or documented
    if parameter.default is None:
        hint = hint | None if hint is not Any else hint  # many write `count: int = None`
    default = ... if parameter.default is parameter.empty else parameter.default
    return hint, Field(default, alias=parameter.name, description=description)


def _hints(function: Function, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the types of the parameters; the return type is not evaluated."""

    def holder() -> None: ...

    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    holder.__annotations__ = {
        each.name: Any if each.annotation is each.empty else each.annotation for each in parameters
    }
    return get_type_hints(holder, getattr(inner, "__globals__", vars(module) if module else {}), include_extras=True)


def _parse_docstring(function: Function) -> tuple[str, Mapping[str, str]]:
    """Return the descriptions of the function and of each parameter from its docstring."""
    text = inspect.getdoc(function.func if isinstance(function, functools.partial) else function) or ""
    try:
        doc = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    parameters = {
        name.strip(" *"): each.description
        for each in doc.params
        if each.description
        for name in each.arg_name.split(",")
    }
    return (doc.description or "").strip(), parameters


def _no_schema(function: Function, error: Exception, parameters: Sequence[Parameter]) -> StepError:
    faults = (_schema_fault(function, each) for each in parameters)
    fault = next(filter(None, faults), f"{type(error).__name__}: {error}".splitlines()[0])
    action = "hide the parameter, give it another type, or write 'parameters' for the tool"
    return StepError(f"{_name(function)} has no tool schema: {fault}; {action}", code="tool_schema")


def _name(function: Function) -> str:
    return str(getattr(function, "__qualname__", function))


def _schema_fault(function: Function, parameter: Parameter) -> str | None:
    """Return why a parameter has no JSON schema; None if it has one."""
    kind = (
        parameter.annotation
        if isinstance(parameter.annotation, str)
        else inspect.formatannotation(parameter.annotation)
    )
    try:
        TypeAdapter(_hints(function, [parameter])[parameter.name]).json_schema()
    except PydanticUserError:
        return f"{parameter.name!r} is of type {kind}, which has no JSON schema"
    except Exception as error:  # noqa: BLE001  # the annotation is an expression; its error is the answer
        return f"the type {kind} of {parameter.name!r} cannot be evaluated on the worker ({error})"
    return None


def _fault_text(detail: ErrorDetails, visible: _VisibleParameters) -> str:
    location, value = detail["loc"], detail["input"]
    if detail["type"] == "missing":
        return f"{path_text(location)!r} is missing"
    if detail["type"] == "extra_forbidden":
        return _unknown(str(location[0]), visible) if len(location) == 1 else f"unknown key {path_text(location)!r}"
    return f"{path_text(location)!r}: {detail['msg'][:1].lower()}{detail['msg'][1:]}, found {shown(value)}"


def _unknown(name: str, visible: _VisibleParameters) -> str:
    return f"unknown argument {name!r}{did_you_mean(name, list(visible.names.values()))}"


def _bad_arguments(faults: Iterable[str], schema: Mapping[str, JsonValue]) -> StepError:
    found = list(faults)
    more = f"; and {len(found) - MAX_FAULTS} more" if len(found) > MAX_FAULTS else ""
    text = json.dumps(schema, ensure_ascii=False)
    text = text if len(text) <= MAX_SCHEMA_CHARS else f"{text[:MAX_SCHEMA_CHARS]}…"
    return StepError(f"{'; '.join(found[:MAX_FAULTS])}{more}\nThe arguments are {text}", code="bad_arguments")
