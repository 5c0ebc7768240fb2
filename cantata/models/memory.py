"""The interface of the memory bank that tools and functions get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from pydantic import JsonValue


class ToolMemory(Protocol):
    """Values by key and namespace, of one tenant or of one of its sessions: `cantata.MemoryBank`."""

    def of(self, *, tenant: str | None = None, session: str | None = None) -> Self:
        """Return the memories of a tenant, or of one of its sessions."""

    def store_memory(self, key: str, value: JsonValue, namespace: str = ..., ttl_s: float | None = None) -> None:
        """Store a value, with a time to live of `ttl_s` seconds if it is given."""

    def retrieve_memory(self, key: str, namespace: str = ..., default: JsonValue = None) -> JsonValue:
        """Return the value, or `default` if there is none."""

    def memory_exists(self, key: str, namespace: str = ...) -> bool:
        """Return whether there is a value."""

    def list_memories(self, namespace: str = ...) -> list[str]:
        """Return the keys of a namespace, sorted."""

    def clear_memories(self, namespace: str | None = None) -> int:
        """Delete a namespace, or all of them. Returns the number of deleted values."""

    def append(self, key: str, item: JsonValue, namespace: str = ...) -> int:
        """Append an item to a list. Returns its new length."""

    def update(self, key: str, change: Callable[[Any], JsonValue], namespace: str = ...) -> JsonValue:
        """Replace a value by `change(value)`. Returns the new value."""

    def namespaces(self) -> list[str]:
        """Return the namespaces with values, sorted."""
