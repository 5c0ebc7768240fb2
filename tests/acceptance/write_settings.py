"""`python -m tests.acceptance.write_settings`: writes docs/settings.md from the models, all of whose fields say what they mean."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cantata.flows.definitions import Definitions
from cantata.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
SET_WHEN_READ = {"folder", "extension", "refused"}  # of Definitions: nobody writes them in a file
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path", type(None): "null"}

HEAD = """# Settings

After this page you know every environment variable and every key of a configuration, with its type and default.
`python -m tests.acceptance.write_settings` generates it from the models that validate the settings.

- [Environment](#environment): variables that each process reads when it starts.
- [Configuration](#configuration): the keys of a configuration file, `configs/default.yaml` or the one that `CANTATA_CONFIG` names.
"""

ENVIRONMENT = """## Environment

An empty variable counts as absent. Keys of model providers (`OPENAI_API_KEY` and the like) are LiteLLM's, `FLOWER_*` are
Flower's, `OTEL_*` are OpenTelemetry's.
"""

CONFIGURATION = """## Configuration

Each section has a table of its keys. LangSwarm's files and Diskurs folders are other formats:
[langswarm.md](langswarm.md), [conductor.md](conductor.md).
"""


def written() -> str:
    """The page as the models have it."""
    parts = [HEAD, ENVIRONMENT, _environment(), CONFIGURATION]
    parts += [_section(model) for model in _reachable(Definitions)]
    return "\n".join(parts)


def _environment() -> str:
    rows = [
        (f"`{field.alias}`", _type(field.annotation), _default(field), _meaning(field))
        for field in Settings.model_fields.values()
    ]
    return _table(("variable", "value", "default", "meaning"), rows)


def _section(model: type[BaseModel]) -> str:
    rows = [
        (f"`{field.alias or name}`", _type(field.annotation), _default(field), _meaning(field))
        for name, field in model.model_fields.items()
        if not (model is Definitions and name in SET_WHEN_READ)
    ]
    title = "The file" if model is Definitions else model.__name__
    return f"### {title}\n\n{_first_sentence(model)}\n\n{_table(('key', 'value', 'default', 'meaning'), rows)}"


def _first_sentence(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _meaning(field: FieldInfo) -> str:
    return field.description or ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default_factory_takes_validated_data:
        return ""
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or isinstance(value, BaseModel) or value == [] or value == {}:
        return ""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`" if len(shown) <= 40 else "see below"


def _type(hint: object) -> str:
    """What may stand there, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in args)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(each) for each in args if each is not type(None)))
    if origin in (list, tuple, Sequence):
        return f"list of {_type(args[0])}"
    if origin in (dict, Mapping):
        return f"{_key(args[0])} → {_type(args[1])}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return WORDS.get(hint, "JSON")  # type: ignore[call-overload, no-any-return]  # hints are no one type


def _key(hint: object) -> str:
    return "name" if hint is str else _type(hint)


def _reachable(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and those in its fields, each once, in the order of a file."""
    seen: dict[type[BaseModel], None] = {}
    todo = [model]
    while todo:
        each = todo.pop(0)
        if each in seen:
            continue
        seen[each] = None
        todo += [
            found
            for name, field in each.model_fields.items()
            if not (each is Definitions and name in SET_WHEN_READ)
            for found in _models_in(field.annotation)
        ]
    return iter(seen)


def _models_in(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and not get_args(hint) and issubclass(hint, BaseModel):
        yield hint
    for each in get_args(hint):
        yield from _models_in(each)


def undescribed() -> list[str]:
    """Fields that do not say what they mean."""
    models: list[type[BaseModel]] = [Settings, *_reachable(Definitions)]
    return [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]


def anchors(page: str) -> set[str]:
    """The places of the page that its links name."""
    return {
        re.sub(r"[^a-z0-9]+", "-", line.lstrip("# ").lower()).strip("-")
        for line in page.splitlines()
        if line.startswith("#")
    }


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
