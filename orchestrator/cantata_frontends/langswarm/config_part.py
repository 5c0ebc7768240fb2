"""A part of a configuration file: its value, its location, and the faults found in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from cantata.config.documents import Document
from cantata.config.faults import shown
from cantata.config.source_map import KeyPath, value_at
from cantata.errors import Fault
from cantata.text.suggestions import did_you_mean, hint, nearest
from cantata.values import JsonValue

MISTYPED = 0.75
"""The similarity from which an unknown key is a known one mistyped, from 0 (any) to 1 (equal)."""
_NOT_MISTYPED = ("tags", "top_k", "max_input_tokens", "stop_on_error", "final_step")
"""Unknown keys that are meant, although they are similar to known ones."""


@dataclass(frozen=True)
class ConfigPart:
    """A value with its location, and the list that collects its faults."""

    document: Document
    value: JsonValue
    faults: list[Fault] = field(repr=False, compare=False)
    path: KeyPath = ()
    file: str = ""
    """The name of its file, if the configuration has several."""

    def at(self, *keys: str | int) -> ConfigPart:
        """Return the part under these keys; its value is null if there is none."""
        value = self.value
        for key in keys:
            value = value_at(value, key)
        return replace(self, value=value, path=(*self.path, *keys))

    def has(self, key: str) -> bool:
        """Return whether it is a mapping with a value under this key."""
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def first(self, *keys: str) -> ConfigPart | None:
        """Return the part under the first of these keys that has a value."""
        return next((self.at(key) for key in keys if self.has(key)), None)

    def items(self) -> list[ConfigPart]:
        """Return the parts of a list; any other value counts as a list of itself, and null as an empty one."""
        if isinstance(self.value, list):
            return [self.at(i) for i in range(len(self.value))]
        return [] if self.value is None else [self]

    def entries(self) -> Iterator[tuple[str, ConfigPart]]:
        """Yield the parts of a mapping, by key."""
        if isinstance(self.value, dict):
            yield from ((key, self.at(key)) for key in self.value)
        elif self.value is not None:
            self.fault(f"expected a mapping, found {shown(self.value)}")

    def location_from(self, other: ConfigPart) -> str:
        """Return its line, and its file if the other part is in another."""
        line = f"on line {self.document.line(self.path)}"
        return line if self.file == other.file else f"{line} of {self.file}"

    # --- values -------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the text, or the number as text; empty, with a fault, if it is neither."""
        if isinstance(self.value, str):
            return self.value
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            return str(self.value)
        self.fault(f"expected a text, found {shown(self.value)}")
        return ""

    def texts(self) -> list[tuple[ConfigPart, str]]:
        """Return the texts of a list, or the single text."""
        return [(item, text) for item in self.items() if (text := item.text())]

    def boolean(self) -> bool | None:
        """Return the boolean, or null; False, with a fault, if it is neither."""
        if isinstance(self.value, bool | None):
            return self.value
        self.fault(f"expected true or false, found {shown(self.value)}")
        return False

    def number(self, *, least: float, most: float = inf, whole: bool = False) -> float | None:
        """Return the number, also if it is written as a text, or null; None, with a fault, if it is neither or outside the bounds."""
        value = self.value
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value.removesuffix("s"))
            except ValueError:
                value = None
        fits = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and isfinite(value)
            and least <= value <= most
        )
        if not fits or (whole and value != int(value)):  # type: ignore[arg-type]  # it fits
            is_above = isinstance(value, int | float) and most < value < inf
            bound = f"at most {most:.0f}" if is_above else f"at least {least:g}"
            self.fault(f"expected {'a whole number' if whole else 'a number'} of {bound}, found {shown(self.value)}")
            return None
        return value  # type: ignore[return-value]  # it fits

    def count(self, *, least: int = 0) -> int | None:
        """Return the whole number, or null; None, with a fault, if it is neither or below `least`."""
        found = self.number(least=least, whole=True)
        return None if found is None else int(found)

    # --- faults -------------------------------------------------------------------------------------------------------

    def fault(self, message: str) -> None:
        """Record a fault of this part."""
        found = self.document.fault(self.path, message)
        self.faults.append(replace(found, file=self.file))

    def warn(self, message: str) -> None:
        """Record that this part has no effect here, or another one than in LangSwarm; `message` says why."""
        self.fault(message)
        self.faults.append(replace(self.faults.pop(), is_warning=True))

    def is_known(self, name: str, known: Collection[str], what: str) -> bool:
        """Return whether a name is among the known ones; record a fault if it is not."""
        if name not in known:
            self.fault(f"there is no {what} {name!r}{did_you_mean(name, known)}")
        return name in known

    def check_keys(self, known: Collection[str], needless: Collection[str] = (), what: str = "") -> None:
        """Warn of each key of a mapping that is not known, and record a fault if it is a known one mistyped.

        `needless` keys have no effect on `what`. The known keys are listed once.
        """
        if not isinstance(self.value, dict):
            return
        listed = f"; known keys are {', '.join(map(repr, sorted(known)))}"
        for key in [key for key in self.value if key not in known]:
            near = None if key in _NOT_MISTYPED else nearest(key, sorted(known), cutoff=MISTYPED)
            if key in needless:
                self.at(key).warn(f"{key!r} has no effect on {what}")
            elif near:
                self.at(key).fault(f"unknown key {key!r}{hint(near)}")
            else:
                is_listed = any(fault.message.endswith(listed) for fault in self.faults)
                self.at(key).warn(f"no effect: {key!r} has no meaning here{'' if is_listed else listed}")


def either(part: ConfigPart, *keys: str) -> ConfigPart:
    """Return the part under the one of these keys that has a value, or under the first of all; a second one is a fault."""
    first, *others = [key for key in keys if part.has(key)] or keys[:1]
    for other in others:
        part.at(other).fault(f"{other!r} means the same as {first!r}; write one of them")
    return part.at(first)
