"""Functions that take too much memory or time are stopped, with what they started, and harm no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.flows.definitions import Definitions, Tool
from tests.integration.fleet.conftest import Journal, ask, tool
from tests.waiting import until

LIMIT_MB = 200
TOP = str(Path(__file__).parents[3])
TOOLS = {name: Tool(function=f"tests.integration.fleet.limit_tools:{name}") for name in ("eat", "gulp", "add")}


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedClient]:
    """A stack with one process for functions, whose memory is bounded."""
    hang = Tool(function="tests.integration.fleet.limit_tools:begin_and_hang", timeout_s=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANTATA_TOOL_MEMORY_MB", str(LIMIT_MB))
        definitions = Definitions(folder=TOP, tools={**TOOLS, "hang": hang})
        with Client.embedded(tmp_path_factory.mktemp("bounded"), config=definitions, agents=1, tools=1) as client:
            yield client


@pytest.mark.slow("memory is filled")
@pytest.mark.parametrize(("name", "is_replaced"), [("eat", True), ("gulp", False)])
def test_a_function_that_runs_out_of_memory_fails_and_the_next_call_works(
    bounded: EmbeddedClient, journal: Journal, name: str, is_replaced: bool
) -> None:
    failed = ask(bounded, tool("big", name, journal=str(journal.path)))
    worked = ask(bounded, tool("small", "add", journal=str(journal.path), a=1))

    assert failed.error is not None
    assert failed.error.message.startswith("node 'big' failed: tests.integration.fleet.limit_tools:")
    assert (
        f"{name} ran out of memory; the limit of its process is {LIMIT_MB} MB (CANTATA_TOOL_MEMORY_MB)"
        in failed.error.message
    )
    assert worked.final_output == 2
    assert [line["name"] for line in journal.lines()] == [name, "add"], "nobody did the call again"
    pids = [line["pid"] for line in journal.lines()]
    assert (pids[0] != pids[1]) is is_replaced, "a process that was large is replaced, one that was not goes on"


@pytest.mark.slow("a step runs into its time-out")
def test_what_a_function_started_is_stopped_with_it(bounded: EmbeddedClient, journal: Journal) -> None:
    response = ask(bounded, tool("long", "hang", journal=str(journal.path)))

    assert response.error is not None
    assert "took longer than its 4 s and was stopped" in response.error.message
    (began,) = journal.of("began")
    until(lambda: not any(is_alive(pid) for pid in (began["pid"], *began["name"])), "the end of all three processes")
    assert ask(bounded, tool("small", "add", journal=str(journal.path), a=1)).final_output == 2


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
