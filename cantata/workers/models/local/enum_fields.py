"""JSON schemas that consist of one enum, whose answers are a choice among labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue


@dataclass(frozen=True)
class EnumField:
    """A schema of one enum: the answer is one of `labels`, as the only property `name`, or bare if there is no name."""

    labels: tuple[str, ...]
    name: str | None = None

    @classmethod
    def of(cls, schema: Mapping[str, JsonValue]) -> EnumField | None:
        """Return the field that a JSON schema consists of; None if it is any other schema."""
        if _is_enum(schema):
            return cls(_labels(schema))
        match schema:
            case {"type": "object", "properties": dict(properties)} if len(properties) == 1:
                ((name, inner),) = properties.items()
                enum = _resolve(inner, schema)
                return cls(_labels(enum), name) if _is_enum(enum) and schema.get("required") == [name] else None
        return None

    def to_json(self, label: str) -> str:
        """Return the answer with this label in the form of the schema."""
        return json.dumps(label if self.name is None else {self.name: label}, ensure_ascii=False)

    def read(self, text: str) -> str | None:
        """Return the label in an answer, bare or in the form of the schema; None if there is none."""
        answer: JsonValue = text.strip()
        if answer not in self.labels:
            try:
                answer = json.loads(text)
            except json.JSONDecodeError:
                return None
        if isinstance(answer, dict):
            answer = answer.get(self.name or "")
        return answer if isinstance(answer, str) and answer in self.labels else None


def _is_enum(schema: object) -> bool:
    labels = schema.get("enum") if isinstance(schema, Mapping) else None
    return isinstance(labels, list) and len(labels) > 0 and all(isinstance(label, str) for label in labels)


def _labels(schema: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cast("Mapping[str, list[str]]", schema)["enum"]))


def _resolve(schema: JsonValue, root: Mapping[str, JsonValue]) -> JsonValue:
    """Resolve a `$ref` to a definition of the same schema; pydantic writes one for each Enum."""
    match schema:
        case {"$ref": str(reference)}:
            definitions = root.get("$defs")
            return definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None
    return schema
