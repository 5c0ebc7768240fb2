"""Chains with memory: a memory function first, then other instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cantata.frontends.promptchain.argument_values import validated
from cantata.frontends.promptchain.prompt_chain import PromptChain
from cantata.models.instructions import MemoryStep


def memory_function(namespace: str = "default") -> MemoryStep:
    """Return an instruction that executes the memory commands in its input: each line that begins with MEMORY is replaced by its result.

    Raises ValueError if the namespace is not valid.
    """
    return validated(MemoryStep, f"memory_function({namespace!r})", {"memory": namespace})


def create_memory_chain(
    chain_id: str,
    namespace: str = "default",
    instructions: Sequence[Any] | None = None,
    *,
    models: Sequence[str | Mapping[str, Any]] = (),
    labels: Mapping[str, str] | None = None,
    **options: Any,
) -> PromptChain:
    """Return a chain whose input first goes through a memory function of the namespace. Its runs have its id as the label `chain`.

    `models` and `options` are those of `PromptChain`. Raises ValueError for arguments that are not valid together.
    """
    if not isinstance(chain_id, str) or not chain_id.strip():
        raise ValueError(f"chain_id is a text that names the chain, not {chain_id!r}")
    return PromptChain(models, [memory_function(namespace), *(instructions or ())], labels={**(labels or {}), "chain": chain_id}, **options)
