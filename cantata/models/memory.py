"""What a memory bank promises to those who are handed one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from pydantic import JsonValue


class ToolMemory(Protocol):
    """Values by key and namespace, of one tenant or of one of its sessions: `cantata.MemoryBank`."""

    def of(self, *, tenant: str | None = None, session: str | None = None) -> Self:
        """The memories of a tenant, or of one of its sessions."""

    def store_memory(self, key: str, value: JsonValue, namespace: str = ..., ttl_s: float | None = None) -> None:
        """Keep a value, for `ttl_s` seconds if they are given."""

    def retrieve_memory(self, key: str, namespace: str = ..., default: JsonValue = None) -> JsonValue:
        """The value, or `default` if there is none."""

    def memory_exists(self, key: str, namespace: str = ...) -> bool:
        """Whether there is a value."""

    def list_memories(self, namespace: str = ...) -> list[str]:
        """The keys of a namespace, sorted."""

    def clear_memories(self, namespace: str | None = None) -> int:
        """Forget a namespace, or all; answers how many values that were."""

    def append(self, key: str, item: JsonValue, namespace: str = ...) -> int:
        """Put an item behind a list; answers how many it has."""

    def update(self, key: str, change: Callable[[Any], JsonValue], namespace: str = ...) -> JsonValue:
        """Put `change(value)` in place of a value; answers the new one."""

    def namespaces(self) -> list[str]:
        """The namespaces that hold something, sorted."""
