"""Display names of steps: a node, an agent, a tool, an instruction or an item."""

from __future__ import annotations

import re

from cantata.models.graph import START

_INSTRUCTION = re.compile(r"@(\d+)(!?)")
_ROUND = re.compile(r"r(\d+)")
_CALL = re.compile(r"t\d+")


def name_of(step_id: str, work: str) -> str:
    """Return the display name of a step, from its id and its work, such as `agents:writer`."""
    if step_id == START:
        return "start"
    above, _, last = step_id.rpartition("/")
    worker = work.partition(":")[2]
    if above:
        if last.isdecimal():
            return f"{above.rpartition('/')[2]} [{last}]"
        if worker and _CALL.fullmatch(last):
            return worker
        if worker and (match := _ROUND.fullmatch(last)):
            return f"{worker}, round {int(match[1]) + 1}"
        if worker and (match := _INSTRUCTION.fullmatch(last)):
            return f"{worker}, {'check' if match[2] else 'step'} {match[1]}"
    return last.removeprefix("@")
