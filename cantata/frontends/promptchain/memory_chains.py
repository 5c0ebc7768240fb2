"""Chains that remember: a memory function first, then other instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cantata.frontends.promptchain.argument_values import validated
from cantata.frontends.promptchain.prompt_chain import PromptChain
from cantata.models.instructions import MemoryStep


def memory_function(namespace: str = "default") -> MemoryStep:
    """An instruction that does the memory commands in the text before it: lines that begin with MEMORY, each answered in its place.

    Raises ValueError if the namespace cannot be one.
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
    """A chain whose input first goes through a memory function of the namespace. Its runs have the label `chain`, which is its id.

    `models` and `options` are those of `PromptChain`. Raises ValueError for what does not fit together.
    """
    if not isinstance(chain_id, str) or not chain_id.strip():
        raise ValueError(f"chain_id is a text that names the chain, not {chain_id!r}")
    return PromptChain(models, [memory_function(namespace), *(instructions or ())], labels={**(labels or {}), "chain": chain_id}, **options)
