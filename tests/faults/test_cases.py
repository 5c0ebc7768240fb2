"""Named cases of workflows in Python; those that take a minute are in `./run test all` and `./run faults`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import cases, history
from tests.faults.stage import Stage, stage

A_MINUTE = ("workflow has many commands",)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stack for all cases."""
    with stage(tmp_path_factory.mktemp("cases")) as world:
        yield world
        assert history.check(world.journal, world.client.redis) == []


@pytest.mark.slow("the first one waits for a stack with two workers of each sort")
@pytest.mark.parametrize("name", [name for name in cases.CASES if name not in A_MINUTE])
@pytest.mark.timeout(300)
def test_a_case(world: Stage, name: str) -> None:
    assert cases.do(world, name) == []


@pytest.mark.parametrize("name", A_MINUTE)
@pytest.mark.slow("10,000 commands")
@pytest.mark.thorough("the cases that take a second stay")
@pytest.mark.timeout(900)
def test_a_case_of_a_minute(world: Stage, name: str) -> None:
    assert cases.do(world, name) == []
