"""Replays each part of a workflow's history.

`python -m tests.integration.workflows.replayer < HISTORIES` does it as another process, and prints for each history what each part gave.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from pydantic import JsonValue, TypeAdapter

from cantata.errors import StepError
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.conversion import arguments_of
from cantata.flows.workflows.history import Activation, CommandOutcome
from cantata.flows.workflows.replay import Advance, Replay
from cantata.values import Value
from cantata_workers.tools import functions
from tests.integration.workflows import conftest, plans


class History(Value):
    """What is recorded of a workflow that is over."""

    run_id: str
    name: str
    given: dict[str, JsonValue]
    activations: tuple[Activation, ...]
    outcomes: dict[int, CommandOutcome]
    ended_at: float
    """When it received the last outcomes."""
    last: tuple[int, ...]
    """The commands whose outcomes it received then."""


class Replayed(Value):
    """What came of the replays of each part, from the first activation on."""

    activations: tuple[Activation, ...]
    output: JsonValue = None
    fault: str = ""


HISTORIES = TypeAdapter(list[History])
REPLAYED = TypeAdapter(list[Replayed])


def replay_each_part(history: History) -> Replayed:
    """Replay the first activations of a history, for each number of them; the last replay ends the workflow."""
    known = history.activations
    again = [
        _advance(history, number, each.at, each.received, each.input).activation for number, each in enumerate(known)
    ]
    try:
        output, fault = _advance(history, len(known), history.ended_at, history.last, history.given).output, ""
    except StepError as error:
        output, fault = None, str(error)
    return Replayed(activations=tuple(again), output=output, fault=fault)


def _advance(
    history: History, number: int, at: float, received: Sequence[int], given: Mapping[str, JsonValue]
) -> Advance:
    """Replay `number` activations and execute one more, which knows the outcomes that were received until then."""
    earlier = history.activations[:number]
    indexes = {index for activation in earlier for index in activation.received}.union(received)
    outcomes = {index: history.outcomes[index] for index in indexes}
    definitions = plans.definitions()
    function = functions.load(definitions.workflows[history.name].function, str(conftest.HERE))
    replay = Replay(history.run_id, definitions, earlier, history.name)
    arguments = arguments_of(function, earlier[0].input if earlier else given)
    try:
        return replay.run(
            lambda: function(Workflow(replay), **arguments), at=at, outcomes=outcomes, received=received, given=given
        )
    finally:
        replay.discard()


def main() -> None:
    """Replay the histories of standard input."""
    replayed = [replay_each_part(each) for each in HISTORIES.validate_json(sys.stdin.buffer.read())]
    sys.stdout.buffer.write(REPLAYED.dump_json(replayed))


if __name__ == "__main__":
    main()
