"""A key for results that depend on the nodes of a chain request and the definitions: programs submit the same nodes again and again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast
from weakref import ref

from cantata.flows.definitions import Definitions
from cantata.flows.wire import ChainRequest
from cantata.values import stored

MAX_KNOWN = 64
"""Results that a process keeps of each kind."""
MAX_KNOWN_CHARS = 100_000
"""Length of the largest text of nodes, with the names of inputs, whose results are kept; a plan takes about five times as much memory."""


class ChainKey:
    """Equal for equal nodes, entry, declared inputs and names of inputs, with the same object of definitions."""

    def __init__(self, request: ChainRequest, definitions: Definitions, inputs: Iterable[str] = ()) -> None:
        try:
            self.text = request.model_dump_json(include={"nodes", "entry_node", "inputs"}, exclude_defaults=True)
        except ValueError:  # half of a surrogate pair
            self.text = ""
        self._definitions = ref(definitions)  # those of a fork are parsed for it alone
        self.inputs = tuple(inputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChainKey) and self._parts == other._parts and self.definitions is other.definitions

    def __hash__(self) -> int:
        return hash(self._parts)

    @property
    def _parts(self) -> tuple[str, tuple[str, ...]]:
        return self.text, self.inputs

    @property
    def definitions(self) -> Definitions:
        """The definitions, for as long as the caller has them."""
        return cast(Definitions, self._definitions())

    @property
    def is_small(self) -> bool:
        """True if its results are kept."""
        return self.text != "" and len(self.text) + sum(map(len, self.inputs)) <= MAX_KNOWN_CHARS

    def request(self) -> ChainRequest:
        """Return a request with these nodes, and null for each input."""
        nodes = json.loads(self.text)  # pydantic's parser refuses deep values
        return stored(ChainRequest, nodes).model_copy(update={"initial_input": dict.fromkeys(self.inputs)})
