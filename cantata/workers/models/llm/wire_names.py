"""Names of tools on the wire: providers take letters, digits, `_` and `-`, while ours may have dots (`files.read`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

LONGEST = 64  # OpenAI's limit, the lowest
NAMELESS = "unknown_function"  # what a call without a name is called when the model is told of it


@dataclass(frozen=True)
class ToolNames:
    """Our names of tools and those the provider sees."""

    wires: Mapping[str, str]
    owns: Mapping[str, str]

    @classmethod
    def of(cls, names: Iterable[str]) -> ToolNames:
        """For these tools. A name that needs no change keeps it; of two that would become alike, the later is told apart by a hash."""
        wires: dict[str, str] = {}
        for name in sorted(dict.fromkeys(names), key=lambda name: _wire(name) != name):
            wire = _wire(name)
            wires[name] = wire if wire not in wires.values() else _hashed(wire, name)
        return cls(wires, {wire: name for name, wire in wires.items()})

    def wire(self, name: str) -> str:
        """What the provider is told."""
        return self.wires.get(name) or _wire(name)

    def own(self, wire: str) -> str:
        """What a name of the provider's means here; as it is, if it is none of ours."""
        return self.owns.get(wire, wire)


def _wire(name: str) -> str:
    wire = re.sub(r"[^A-Za-z0-9_-]", "_", name.replace(".", "__")) or NAMELESS
    if not re.match(r"[A-Za-z_]", wire):
        wire = f"_{wire}"  # Gemini wants it so
    return wire if len(wire) <= LONGEST else _hashed(wire, name)


def _hashed(wire: str, name: str) -> str:
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{wire[: LONGEST - len(digest) - 1]}_{digest}"
