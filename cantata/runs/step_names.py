"""Names of steps for people: of the steps that expansions add, whose ids count them."""

from __future__ import annotations

import re

from cantata.models.graph import START
from cantata.planning.chains.step_ids import ADVANCE

_INSTRUCTION = re.compile(r"@(\d+)(!?)")
_ROUND = re.compile(r"r(\d+)")
_CALL = re.compile(r"t\d+")
_COMMAND = re.compile(r"^\d+\.(?=.)")


def is_counted(step_id: str) -> bool:
    """Return whether an id does not tell what the step does: `clerk/t0` is the first call of a tool."""
    above, _, last = step_id.rpartition("/")
    return bool(above) and any(each.fullmatch(last) for each in (_CALL, _ROUND, _INSTRUCTION))


def name_of(step_id: str, work: str) -> str:
    """Return the name of a step for people, from its id and its work, such as `agents:writer`."""
    if step_id == START:
        return "start"
    above, _, last = step_id.rpartition("/")
    worker = work.partition(":")[2]
    if above:
        last = _COMMAND.sub("", last, count=1)
        if last.isdecimal():
            return f"{above.rpartition('/')[2]} [{last}]"
        if worker and (_CALL.fullmatch(last) or last == ADVANCE):
            return worker
        if worker and (match := _ROUND.fullmatch(last)):
            return f"{worker}, round {int(match[1]) + 1}"
        if worker and (match := _INSTRUCTION.fullmatch(last)):
            return f"{worker}, {'check' if match[2] else 'step'} {match[1]}"
    return last.removeprefix("@")
