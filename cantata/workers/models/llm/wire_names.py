"""Names of tools on the wire: providers accept letters, digits, `_` and `-`, while ours may have dots (`files.read`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

MAX_NAME_CHARS = 64  # OpenAI's limit, the lowest
NAMELESS = "unknown_function"  # the name, in messages to the model, of a call without a name


@dataclass(frozen=True)
class ToolNames:
    """The mapping between our names of tools and those on the wire."""

    wires: Mapping[str, str]
    owns: Mapping[str, str]

    @classmethod
    def of(cls, names: Iterable[str]) -> ToolNames:
        """Return the names for these tools. Of two with one wire name, a name that needs no change keeps it; the other gets a hash."""
        wires: dict[str, str] = {}
        for name in sorted(dict.fromkeys(names), key=lambda name: _wire(name) != name):
            wire = _wire(name)
            wires[name] = wire if wire not in wires.values() else _hashed(wire, name)
        return cls(wires, {wire: name for name, wire in wires.items()})

    def wire(self, name: str) -> str:
        """Return the wire name of a tool."""
        return self.wires.get(name) or _wire(name)

    def own(self, wire: str) -> str:
        """Return our name for a wire name; an unknown one unchanged."""
        return self.owns.get(wire, wire)


def _wire(name: str) -> str:
    wire = re.sub(r"[^A-Za-z0-9_-]", "_", name.replace(".", "__")) or NAMELESS
    if not re.match(r"[A-Za-z_]", wire):
        wire = f"_{wire}"  # Gemini requires it
    return wire if len(wire) <= MAX_NAME_CHARS else _hashed(wire, name)


def _hashed(wire: str, name: str) -> str:
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{wire[: MAX_NAME_CHARS - len(digest) - 1]}_{digest}"
