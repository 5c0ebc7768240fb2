"""The demo: its configuration, its table and what it says at the end."""

from __future__ import annotations

from collections.abc import Mapping

from cantata.flows.definitions import Definitions
from cantata.surfaces.cli.demo import accuracy, next_steps
from cantata.values import JsonValue


def test_the_demo_can_use_any_model() -> None:
    assert Definitions().with_model("openai/x").defaults.model == "openai/x"
    assert Definitions().with_model(None) == Definitions()


def test_the_demo_prints_the_share_of_correct_labels() -> None:
    rows: list[Mapping[str, JsonValue]] = [{"right": True}, {"right": True}, {"right": False}]

    assert accuracy(rows) == "2 of 3 labels are those a person gave (67%)."


def test_the_demo_ends_with_commands_to_try() -> None:
    message = next_steps("r1", "r2", had_redis=True)

    assert len([line for line in message.splitlines() if line.startswith("  env -u REDIS_URL ")]) == 4
    assert "r1" in message
    assert "r2" in message
