"""Prompt arguments and long-term memories as data: access modes of fields, and conversion from and to JSON.

Classes are recognised by their form, a dataclass whose annotations may have a marker, so that those of a real `diskurs` work as ours do.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from cantata.errors import StepError
from cantata.values import JsonValue

Access = Literal["plain", "input", "output", "locked", "per_turn"]
Made = TypeVar("Made")

_MARKERS: tuple[tuple[str, Access], ...] = (
    ("is_locked", "locked"), ("is_input", "input"), ("is_per_turn", "per_turn"), ("is_output", "output"),
)  # fmt: skip
NOT_FILLED: frozenset[Access] = frozenset({"input", "locked"})
"""Fields that no reply changes."""


def hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with their markers. Raises StepError."""
    if not dataclasses.is_dataclass(cls):
        raise StepError(f"{cls.__name__} is not a dataclass; write @dataclass above it", code="bad_class")
    try:
        resolved = get_type_hints(cls, localns=_namespace(cls), include_extras=True)
    except Exception as error:  # annotations are expressions
        raise StepError(
            f"the types of {cls.__name__} cannot be read: {type(error).__name__}: {error}", code="bad_class"
        ) from error
    return {each.name: resolved.get(each.name, Any) for each in dataclasses.fields(cls)}


def _namespace(cls: type) -> dict[str, Any]:
    """Return the globals of the modules of a dataclass and its bases, which cannot be imported outside of the folder's code."""
    known: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        known |= getattr(vars(base).get("__init__"), "__globals__", {})
    return known


def accesses(cls: type) -> dict[str, Access]:
    """Return the access mode of each field."""
    return {name: _access(hint) for name, hint in hints(cls).items()}


def filled_by_replies(cls: type, locked: Collection[str] = ()) -> list[str]:
    """Return the fields that a reply may fill, in their order; `locked` are those that the configuration sets."""
    return [name for name, access in accesses(cls).items() if access not in NOT_FILLED and name not in locked]


def handed_over(cls: type, locked: Collection[str] = ()) -> list[str]:
    """Return the fields that go into the long-term memory: those marked as output if there are any, else all that replies fill."""
    outputs = [name for name, access in accesses(cls).items() if access == "output"]
    return outputs or filled_by_replies(cls, locked)


def taken_from_memory(cls: type) -> list[str]:
    """Return the fields that start with values of the long-term memory: those marked as input if any field is marked, else all."""
    known = accesses(cls)
    is_marked = any(access != "plain" for access in known.values())
    return [name for name, access in known.items() if access == "input" or not is_marked]


def merge(
    known: Mapping[str, JsonValue], given: Mapping[str, JsonValue], names: Iterable[str] | None = None
) -> dict[str, JsonValue]:
    """Return `known` updated with `given` under the same names; null and "" count as no value, but false, 0 and [] as values."""
    wanted = given.keys() if names is None else set(names)
    return {
        **known,
        **{
            name: value for name, value in given.items() if name in known and name in wanted and value not in (None, "")
        },
    }


# --- JSON -----------------------------------------------------------------------------------------------------------


def blank(cls: type, given: Mapping[str, JsonValue] | None = None) -> dict[str, JsonValue]:
    """Return the given values with defaults for the others; a field without a default is empty. Raises StepError."""
    needed = {
        each.name: empty(hints(cls)[each.name])
        for each in dataclasses.fields(cls)
        if each.init and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    return cast("dict[str, JsonValue]", to_json(from_json(cls, {**needed, **(given or {})})))


def merge_nested(cls: type, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the given values with the defaults of a dataclass for the others."""
    return {**blank(cls, given), **given}


def empty(hint: Any) -> Any:
    """Return the empty value of a type."""
    plain = plain_type(hint)
    origin = get_origin(plain) or plain
    makers = {str: "", int: 0, float: 0.0, bool: False}
    if origin in makers:
        return makers[origin]
    return origin() if origin in (list, dict) else None


def to_json(value: Any) -> Any:
    """Return a dataclass and its contents as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(each) for each in value]
    return value


def from_json(cls: type[Made], data: Mapping[str, Any]) -> Made:
    """Return an instance of a dataclass with this data; unknown names are ignored. Raises StepError."""
    known = hints(cls)
    wanted = [each.name for each in dataclasses.fields(cast(Any, cls)) if each.init and each.name in data]
    try:
        return cls(**{name: _valued(known[name], data[name]) for name in wanted})
    except StepError:  # of a nested dataclass
        raise
    except Exception as error:  # whatever its own __post_init__ raises
        raise StepError(f"{cls.__name__} cannot be made: {type(error).__name__}: {error}", code="bad_class") from error


def _valued(hint: Any, value: Any) -> Any:
    plain = plain_type(hint)
    if dataclasses.is_dataclass(plain) and isinstance(value, Mapping):
        return from_json(cast(type, plain), value)
    if isinstance(plain, type) and issubclass(plain, Enum) and value is not None:
        return plain(value)
    if get_origin(plain) is list and isinstance(value, list):
        return [_valued(get_args(plain)[0], each) for each in value]
    return value


# --- types ----------------------------------------------------------------------------------------------------------


def plain_type(hint: Any) -> Any:
    """Return a type without markers; of a union the first type but None."""
    origin = get_origin(hint)
    if origin is Annotated:
        return plain_type(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return next((plain_type(each) for each in get_args(hint) if each is not type(None)), Any)
    return hint


def options(hint: Any) -> list[Any]:
    """Return the types that a value may have, without markers."""
    origin = get_origin(hint)
    if origin is Annotated:
        return options(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [each for part in get_args(hint) if part is not type(None) for each in options(part)]
    return [hint]


def _access(hint: Any) -> Access:
    if get_origin(hint) is not Annotated:
        return "plain"
    for marker in get_args(hint)[1:]:
        for question, access in _MARKERS:
            if callable(is_set := getattr(marker, question, None)) and is_set():
                return access
    return "plain"


def check_nesting(cls: type, importing: tuple[type, ...] = ()) -> None:
    """Raise StepError for a dataclass that contains itself: the form of a reply, which shows nested fields, would be infinite."""
    for name, hint in hints(cls).items():
        item = item_class(plain_type(hint))
        if item in (cls, *importing):
            raise StepError(
                f"{cls.__name__}.{name} makes {item.__name__} contain itself; replies of it have no end",
                code="bad_class",
            )
        if item is not None:
            check_nesting(item, (*importing, cls))


def item_class(plain: Any) -> type | None:
    """Return the dataclass that a type is, or is a list of."""
    if get_origin(plain) is list and get_args(plain):
        plain = plain_type(get_args(plain)[0])
    return plain if isinstance(plain, type) and dataclasses.is_dataclass(plain) else None
