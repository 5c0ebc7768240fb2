"""The kinds of nodes of a chain."""

from __future__ import annotations

import difflib
from typing import Literal, get_args

NodeKind = Literal["tool", "skill", "agent", "chain", "proc", "branch", "map", "wait"]
NODE_KINDS: tuple[str, ...] = get_args(NodeKind)

_LONGEST = 60  # characters of a kind in a message


def fault_of_kind(kind: str) -> str | None:
    """Why a node cannot be of this kind; None if it can."""
    if kind in NODE_KINDS:
        return None
    near = difflib.get_close_matches(kind[:_LONGEST], NODE_KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"expected {', '.join(map(repr, NODE_KINDS[:-1]))} or {NODE_KINDS[-1]!r}, found {kind[:_LONGEST]!r}{hint}"
