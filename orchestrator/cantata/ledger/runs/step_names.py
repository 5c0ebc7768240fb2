"""Names of steps for people: of the steps that expansions add, whose ids count them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cantata.flows.chains.step_ids import ADVANCE
from cantata.flows.graph import START
from cantata.ledger.ledger import Ledger

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


def step_names(ledger: Ledger, run_id: str, step_ids: Sequence[str]) -> dict[str, str]:
    """Return step → its name for people: the tool, agent or node that it is."""
    specs = ledger.reader.parts(run_id, step_ids).specs
    return {step_id: name_of(step_id, str(specs.get(step_id, {}).get("work", ""))) for step_id in step_ids}


class KnownNames:
    """The names of a run's steps, each read once."""

    def __init__(self, ledger: Ledger, run_id: str) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._names: dict[str, str] = {}

    def with_step(self, step_id: str | None) -> Mapping[str, str]:
        """Return the names that were read so far, with that of this step if its id does not tell what it does."""
        if step_id and step_id not in self._names and is_counted(step_id):
            self._names |= step_names(self._ledger, self._run_id, [step_id])
        return self._names
