"""Faults of documents from validation errors of pydantic models, with paths and lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import UnionType
from typing import Annotated, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cantata.config.documents import Document
from cantata.config.source_map import KeyPath, value_at
from cantata.errors import ConfigError, Fault
from cantata.text.suggestions import did_you_mean, hint, nearest
from cantata.values import JsonValue

Model = TypeVar("Model", bound=BaseModel)

_MAX_ERRORS = 1000  # that are reported; a request of 16 MB may have a million, each of which takes 1 kB in Python
_SAMPLE = 50  # keys of a mapping, and items of a list, that are validated if there are more errors
_MAX_SHOWN = 60  # characters of a value in a message

_EXPECTED: Mapping[str, str] = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "invalid-json-value": "a JSON value",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a list with at least {min_length} in it",
}


def faults_of(
    error: ValidationError, document: Document, model: type[BaseModel], *, hidden: Collection[str] = ()
) -> list[Fault]:
    """Return a fault for each error of `model` in the document, in the order of lines.

    Fields of the model that are `hidden` are not suggested, since no document may set them.
    """
    if error.error_count() > _MAX_ERRORS:
        return _of_sample(error.error_count(), document, model, hidden)
    details = (
        detail for detail in error.errors(include_url=False) if detail["type"] != "default_factory_not_called"
    )  # follows from others
    found = [(_path(detail, document.data), detail) for detail in details]
    unknown = {
        path: _keys_at(model, path[:-1], hidden) for path, detail in found if detail["type"] == "extra_forbidden"
    }
    meant = {(*path[:-1], nearest(str(path[-1]), keys)) for path, keys in unknown.items()}
    faults = []
    listed: set[str] = set()  # the lists of known keys that a fault has; the others do not repeat them
    for path, detail in found:
        if path in unknown and detail["type"] == "extra_forbidden":
            near = hint(nearest(str(path[-1]), unknown[path]))
            known = near or did_you_mean(str(path[-1]), unknown[path])
            faults.append(document.fault(path, f"unknown key {path[-1]!r}{'' if known in listed else known}"))
            listed |= {known} - {near}
        elif detail["type"] == "missing":
            if path not in meant:  # else it is there, misspelt
                faults.append(document.fault(path[:-1], f"{path[-1]!r} is missing"))
        else:
            field = _field_in(_annotation_at(model, path[:-1]), path[-1]) if path else None
            faults.append(document.fault(path, _message(detail, field)))
    return in_order(faults)


def checked(model: type[Model], data: Mapping[str, object], *, source: str) -> Model:
    """Return the model of plain data from a program. Raises ConfigError with every fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, Document(cast(JsonValue, data)), model), source=source) from error


def unknown_keys(data: JsonValue, model: type[BaseModel]) -> dict[KeyPath, str | None]:
    """Return the paths of the keys that a model does not know, each with the known key that it resembles; of a huge document none."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False) if error.error_count() <= _MAX_ERRORS else []
        paths = [_path(detail, data) for detail in details if detail["type"] == "extra_forbidden"]
        return {path: nearest(str(path[-1]), _keys_at(model, path[:-1], ())) for path in paths}
    return {}


def _of_sample(count: int, document: Document, model: type[BaseModel], hidden: Collection[str]) -> list[Fault]:
    """Return the faults of a document's beginning, if there are too many to report all."""
    sample = Document(_beginning(document.data), document.source)
    found: list[Fault] = []
    try:
        model.model_validate(sample.data)
    except ValidationError as error:
        found = [
            fault
            for fault in faults_of(error, sample, model, hidden=hidden)
            if not fault.message.endswith("is missing")
        ]
    return [Fault(f"there are {count:,} faults; the first of them follow"), *found]


def _beginning(value: JsonValue, limit: int = _SAMPLE) -> JsonValue:
    """Return the first items of a value, fewer at each level, so that it stays small."""
    if isinstance(value, list):
        return [_beginning(each, limit // 2) for each in value[:limit]]
    if isinstance(value, dict):
        return {key: _beginning(each, limit // 2) for key, each in islice(value.items(), limit)}
    return value


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Return faults sorted by line; those without a line come first, in their order."""
    return sorted(faults, key=lambda fault: fault.line or 0)


def shown(value: object) -> str:
    """Return a value for a message, truncated if it is long; for containers, only their type."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    if isinstance(value, (dict, list)):
        return f"{'a' if value else 'an empty'} {'list' if isinstance(value, list) else 'mapping'}"
    return f"a {type(value).__name__}"


def _message(detail: ErrorDetails, field: FieldInfo | None) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "value_error":  # from one of our validators, whose text is the message
        return str(context["error"])
    if kind == "out_of_bounds":  # likewise
        return str(context["fault"])
    if kind == "string_pattern_mismatch" and field and field.description:
        return f"expected {field.description}; found {shown(value)}"
    if not detail["loc"] and value is None:
        return "it is empty"
    if kind not in _EXPECTED:
        return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, found {shown(value)}"
    return f"expected {_EXPECTED[kind].format(**context)}, found {shown(value)}{_hint(detail)}"


def _hint(detail: ErrorDetails) -> str:
    value = detail["input"]
    if detail["type"] == "literal_error" and isinstance(value, str):
        return hint(nearest(value, re.findall(r"'([^']*)'", detail["ctx"]["expected"])))
    if detail["type"] == "string_type" and isinstance(value, dict):
        return "; a text with braces or with ': ' in it needs quotes"
    if detail["type"] == "string_type" and isinstance(value, (bool, int, float)):
        return "; put it in quotes"
    return ""


def _path(detail: ErrorDetails, data: JsonValue) -> KeyPath:
    """Return the path of an error in the document; pydantic's path also contains the types that it tried."""
    path: list[str | int] = []
    for part in detail["loc"]:
        if (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int)):
            path.append(part)
            data = value_at(data, part)
    return (
        (*path, detail["loc"][-1]) if detail["type"] == "missing" else (*path, *detail.get("ctx", {}).get("path", ()))
    )


def _keys_at(model: type[BaseModel], path: KeyPath, hidden: Collection[str]) -> list[str]:
    """Return the keys of the model at this path."""
    keys = [
        field.alias or name
        for inner in _models(_annotation_at(model, path))
        for name, field in inner.model_fields.items()
    ]
    return keys if path else [key for key in keys if key not in hidden]


def _annotation_at(annotation: object, path: KeyPath) -> object:
    for part in path:
        field = _field_in(annotation, part)
        containers = [option for option in _options(annotation) if get_origin(option) in (dict, list, tuple)]
        inner = [each for option in containers[:1] for each in get_args(option) if each is not ...]
        annotation = field.annotation if field else inner[-1] if inner else None
    return annotation


def _field_in(annotation: object, part: str | int) -> FieldInfo | None:
    fields = (item for model in _models(annotation) for item in model.model_fields.items())
    return next((field for name, field in fields if part in (name, field.alias)), None)


def _models(annotation: object) -> list[type[BaseModel]]:
    return [option for option in _options(annotation) if isinstance(option, type) and issubclass(option, BaseModel)]


def _options(annotation: object) -> tuple[object, ...]:
    """Return the types that an annotation allows, without Annotated."""
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(option for inner in get_args(annotation) for option in _options(inner))
    return (annotation,)
