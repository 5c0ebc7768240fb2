"""Validation of callers' arguments, with errors of one line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cantata.config.source_map import path_text
from cantata.text.suggestions import did_you_mean, nearest

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], what: str, fields: Mapping[str, object]) -> Model:
    """Return the fields as a value. Raises ValueError with one line; pydantic's own error has five."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False)
        faults = [
            f"{path_text(detail['loc'])}: {_message(detail)}".lstrip(": ").replace("Value error, ", "")
            for detail in details
        ]
        raise ValueError(f"{what}: {'; '.join(faults)}") from None


def _message(detail: ErrorDetails) -> str:
    return "a tuple is no JSON; write a list" if isinstance(detail["input"], tuple) else detail["msg"]


def check_keys(given: Mapping[str, object], known: Collection[str], what: str) -> None:
    """Raise ValueError for a key that is not known."""
    for key in given:
        if key not in known:
            raise ValueError(f"{what}: unknown key {key!r}{did_you_mean(key, known)}")


def check_list(given: object, what: str) -> None:
    """Raise ValueError for a value that is no list, such as a text, whose letters would be its items."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"{what} is a list, not {given!r}")


def check_parameters(given: Collection[str], known: Collection[str], what: str) -> list[str]:
    """Return a warning for each parameter that is not known. Raises TypeError for one that may be a misspelt one."""
    for name in given:
        if nearest(name, known):
            raise TypeError(f"{what} has no parameter {name!r}{did_you_mean(name, known)}")
    return [f"{what}: the parameter {name!r} is not known, and has no effect" for name in given]
