"""The documented memory methods of chains and of their builder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from cantata.features.memory.memory_store import DEFAULT, MemoryStore
from cantata.flows.instructions import MemoryStep
from cantata.values import JsonValue
from cantata_frontends.promptchain.argument_values import check_list, validated
from cantata_frontends.promptchain.run_calls import shared_client


class MemoryMethods(ABC):
    """Values by key and namespace, as of a `MemoryBank`: those of the tenant that the runs belong to, so all chains of it share them."""

    _labels: dict[str, str]

    @property
    def _memory(self) -> MemoryStore:
        return shared_client().memory.of(tenant=self._labels.get("tenant", ""))

    def store_memory(self, key: str, value: JsonValue, namespace: str = DEFAULT) -> None:
        """Store a value. Raises ConfigError if it is no JSON or too large."""
        self._memory.store_memory(key, value, namespace)

    def retrieve_memory(self, key: str, namespace: str = DEFAULT, default: JsonValue = None) -> Any:
        """Return the value, or `default` if there is none."""
        return self._memory.retrieve_memory(key, namespace, default)

    def memory_exists(self, key: str, namespace: str = DEFAULT) -> bool:
        """Return whether there is a value."""
        return self._memory.memory_exists(key, namespace)

    def list_memories(self, namespace: str = DEFAULT) -> list[str]:
        """Return the keys of a namespace, sorted."""
        return self._memory.list_memories(namespace)

    def clear_memories(self, namespace: str | None = None) -> int:
        """Delete a namespace, or all memories of the tenant. Returns the number of deleted values."""
        return self._memory.clear_memories(namespace)

    def create_memory_function(self, namespace: str = DEFAULT) -> MemoryStep:
        """Return an instruction that executes the memory commands in its input."""
        return memory_function(namespace)

    def create_memory_chain(
        self, chain_id: str, namespace: str = DEFAULT, instructions: Sequence[Any] | None = None
    ) -> Any:
        """Create a chain whose input first goes through a memory function: of a builder one of its chains, in the group "memory_chains"."""
        check_list(instructions or [], "instructions")
        return self._create_memory_chain(chain_id, namespace, instructions or ())

    @abstractmethod
    def _create_memory_chain(self, chain_id: str, namespace: str, instructions: Sequence[Any]) -> Any:
        """Create it."""


def memory_function(namespace: str = DEFAULT) -> MemoryStep:
    """Return an instruction that executes the memory commands in its input: each line that begins with MEMORY is replaced by its result.

    Raises ValueError if the namespace is not valid.
    """
    return validated(MemoryStep, f"memory_function({namespace!r})", {"memory": namespace})
