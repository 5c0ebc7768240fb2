"""All commands and routes answer a fixed set of runs as they did when their answers were reviewed.

Whoever changes an answer on purpose writes them anew (`python -m tests.integration.golden.calls`) and reviews the difference.
"""

from __future__ import annotations

from difflib import unified_diff

import pytest

from tests.acceptance.write_help import commands
from tests.integration.golden.calls import HERE, KINDS, LEFT_OUT, record
from tests.integration.golden.recorder import Recorder

pytestmark = pytest.mark.timeout(300)
SHOWN = 400  # lines of a difference


@pytest.fixture(scope="module")
def recorded() -> Recorder:
    """The answers of now."""
    return record()


@pytest.mark.slow("it makes 450 calls of a stack of its own")
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_as_it_was_reviewed(recorded: Recorder, kind: str) -> None:
    reviewed, now = (HERE / f"{kind}.txt").read_text("utf-8"), recorded.text(kind)

    changed = [
        *unified_diff(
            reviewed.splitlines(), now.splitlines(), f"{kind}.txt, as reviewed", "as it is now", lineterm="", n=5
        )
    ]
    if changed:
        rest = [f"... and {len(changed) - SHOWN} lines more"] if len(changed) > SHOWN else []
        again = "if they are right: python -m tests.integration.golden.calls"
        pytest.fail("\n".join([f"{kind} answer otherwise; {again}", *changed[:SHOWN], *rest]), pytrace=False)


def test_every_command_is_recorded_or_left_out_with_a_reason(recorded: Recorder) -> None:
    groups = {name.rpartition(" ")[0] for name in commands()}
    recorded_commands = {name for name in recorded.recorded if name.startswith("submit ")}

    assert {name for name in commands() if name not in groups} == recorded_commands | LEFT_OUT.keys()
    assert not recorded_commands & LEFT_OUT.keys()


def test_every_route_of_the_document_is_recorded(recorded: Recorder) -> None:
    assert {f"{method} {path}" for method, path, _ in recorded.operations()} <= recorded.recorded
