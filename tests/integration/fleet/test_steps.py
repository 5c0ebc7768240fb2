"""What tools, commands and time do to a run, in real workers."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.engine.fleet.load import measure
from cantata.errors import ConfigError, UnknownRunError
from cantata.flows.definitions import Tool
from cantata.flows.events import RunClosed
from cantata.flows.wire import ChainResponse
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter
from tests.examples import thorough
from tests.integration.fleet.conftest import Journal, ask, skip_pauses, tool
from tests.waiting import at_best, until


def error_of(response: ChainResponse) -> str:
    assert response.error is not None
    assert response.status == "failed"
    return response.error.message


def test_a_tool_gets_its_input_as_keyword_arguments(client: EmbeddedClient) -> None:
    response = ask(client, tool("sum", "add", a=2, b=3))

    assert (response.success, response.final_output, response.nodes_run) == (True, 5, 1)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (
            tool("n", "add", b=1),
            "missing a required argument: 'a'; the function is add(a: 'float', b: 'float' = 1) -> 'float'",
        ),
        (tool("n", "add", a=1, c=2), "got an unexpected keyword argument 'c'"),
        (tool("n", "fail", message="boom"), "fleet_tools:fail raised RuntimeError: boom"),
        (tool("n", "leave"), "fleet_tools:leave raised SystemExit: 3, which is no Exception, so it is not retried"),
        (
            tool("n", "odd"),
            "fleet_tools:odd returned a value that cannot be recorded: output.odd[0]: a value of type object is not JSON",
        ),
        (tool("n", "large", megabytes=50), "50.0 MB of output; the limit is 16.0 MB (limits.output_bytes)"),
        ({"node_id": "n", "kind": "proc", "name": "refuse"}, "command exited with 1"),
    ],
)
def test_a_bad_tool_fails_its_node_and_says_why(client: EmbeddedClient, node: dict[str, Any], said: str) -> None:
    message = error_of(ask(client, node))

    assert "node 'n' failed" in message
    assert said in message


@pytest.mark.parametrize("node", [tool("n", "cancel_itself", retry=2), tool("n", "interrupt_async", retry=2)])
def test_a_tool_that_raises_what_is_no_exception_is_executed_once_and_ends_no_process(
    client: EmbeddedClient, node: dict[str, Any]
) -> None:
    before = {(worker.name, worker.pid) for worker in measure(client.redis).workers}
    second = tool("m", "slow_async", journal="/dev/null", mark="x", seconds=0)

    run = client.submit_chain({"nodes": [{**node, "on_error": "skip", "next_node": "m"}, second], "entry_node": "n"})

    assert run.result(40).final_output == "x", "the event loop of the process goes on"
    assert [event.type for event in run.log() if event.step == "n" and event.type in ("retry", "lost", "failed")] == [
        "failed"
    ]
    assert {(worker.name, worker.pid) for worker in measure(client.redis).workers} == before


def test_a_tool_that_prints_harms_nobody(client: EmbeddedClient) -> None:
    assert ask(client, tool("n", "chatty", text="hello\nworld")).final_output == "hello\nworld"


def test_an_async_tool_works(client: EmbeddedClient, journal: Journal) -> None:
    assert ask(client, tool("n", "slow_async", journal=str(journal.path), mark="x")).final_output == "x"


def test_an_allowed_command_gives_its_output(client: EmbeddedClient) -> None:
    response = ask(client, {"node_id": "n", "kind": "proc", "name": "say", "input": {"args": ["a", "b c"]}})

    assert response.final_output == {"exit_code": 0, "stdout": "a b c\n", "stderr": ""}


def test_a_tool_that_never_ends_is_killed_at_its_time_out(client: EmbeddedClient, journal: Journal) -> None:
    since = time.monotonic()

    message = error_of(ask(client, tool("n", "hang", journal=str(journal.path), mark="x", seconds=600)))

    assert "took longer than its 1 s and was stopped" in message
    assert time.monotonic() - since < 40
    assert journal.of("finish") == []


def test_what_follows_a_time_out_is_sent_at_once(client: EmbeddedClient, journal: Journal) -> None:
    hung = tool("n", "hang", journal=str(journal.path), mark="x", seconds=600, on_error="skip", next_node="next")

    def took_ms() -> float:
        response = ask(client, hung, tool("next", "add", a=1))
        assert response.outputs["next"] == 2
        return response.duration_ms

    assert at_best(took_ms, 4000) <= 4000, "it did not wait for a sweep"


def test_the_command_of_a_cancelled_run_is_killed(client: EmbeddedClient) -> None:
    run = client.submit_chain(
        {"nodes": [{"node_id": "n", "kind": "proc", "name": "sleep", "input": {"args": ["600.25"]}}], "entry_node": "n"}
    )
    until(lambda: _runs("600.25"), "the command")

    run.cancel()

    until(lambda: not _runs("600.25"), "the end of the command")


def test_retries_come_after_a_pause_and_are_counted(client: EmbeddedClient, journal: Journal) -> None:
    run = client.submit_chain(
        {"nodes": [tool("n", "fail_until", journal=str(journal.path), times=3, retry=2)], "entry_node": "n"}
    )
    skip_pauses(client, run)
    response = run.result(0)

    assert (response.success, response.final_output) == (True, 3)


def test_a_chain_past_its_time_is_stopped_and_keeps_what_it_has(client: EmbeddedClient, journal: Journal) -> None:
    nodes = [
        tool("quick", "add", a=1, next_node="slow"),
        tool("slow", "slow", journal=str(journal.path), mark="x", seconds=600),
    ]

    run = client.submit_chain({"nodes": nodes, "entry_node": "quick", "timeout": 3600})
    until(lambda: journal.of("start"), "the slow step")
    client.skip(3600)
    response = run.result(0)

    assert (response.status, response.success, response.outputs) == ("timed_out", False, {"quick": 2})
    assert response.error is not None
    assert response.error.code == "timeout"
    assert response.error.message == "the run did not end within its 3600 s (timeout of the request)"
    assert ask(client, tool("n", "add", a=1)).success, "the tools worker is free again"


BOMB = " | ".join(["[@,@]"] * 30)


@pytest.mark.slow("it is evaluated until it has made too much")
@pytest.mark.parametrize(
    "nodes",
    [
        [{"node_id": "n", "kind": "tool", "name": "add", "input_map": {"a": BOMB}}],
        [{"node_id": "n", "kind": "branch", "condition": f"to_string({BOMB}) == 'x'", "true_node": "x"}, tool("x", "add", a=1)],
        [{"node_id": "n", "kind": "map", "items_path": BOMB, "map_node": "x"}, tool("x", "add", a=1)],
    ],
    ids=["input_map", "condition", "items_path"],
)  # fmt: skip
def test_an_expression_that_multiplies_its_data_fails_its_node(
    client: EmbeddedClient, nodes: list[dict[str, Any]]
) -> None:
    message = error_of(ask(client, *nodes))

    assert "node 'n' failed" in message
    assert "[@,@] | [@,@]" in message
    assert "it produces more than 64 MB (limits.expression_bytes)" in message


@pytest.mark.parametrize(("on_error", "state"), [("skip", "succeeded_with_failures"), ("abort", "failed")])
def test_a_failed_item_is_told_by_its_number_and_a_run_with_failures_as_one(
    client: EmbeddedClient, on_error: str, state: str
) -> None:
    mapping = {"node_id": "m", "kind": "map", "items_path": "input.items", "map_node": "w", "on_error": on_error}
    each = {"node_id": "w", "kind": "tool", "name": "add", "input_map": {"a": "_item"}}

    run = client.submit_chain({"nodes": [mapping, each], "entry_node": "m", "initial_input": {"items": [1, 2, 3, "x"]}})
    response = run.result(40)

    assert response.failed == (["w[3]"] if on_error == "skip" else ["m", "w[3]"])
    assert (response.state, response.success) == (state, False)
    if on_error == "abort":
        assert response.error is not None
        assert response.error.message.startswith("node 'w[3]' failed: ")
        assert (response.error.node_id, response.error.index) == ("w", 3)
    listed = next(each for each in listing.iterate(client.ledger, RunFilter()) if each.run_id == run.run_id)
    assert listed.state == state
    assert [event.failures for event in run.log() if isinstance(event, RunClosed)] == [listed.failures]


def test_a_chain_is_submitted_by_its_file_with_an_input_of_the_callers(client: EmbeddedClient, tmp_path: Path) -> None:
    file = tmp_path / "sum.yaml"
    file.write_text(
        "entry_node: n\ninputs: {a: number}\nnodes: [{node_id: n, kind: tool, name: add, input_map: {a: a}}]"
    )

    for named in (file, str(file)):
        assert client.submit_chain(named, initial_input={"a": 2}).result(40).raise_for_status().final_output == 3
    with pytest.raises(ConfigError, match=r"initial_input.a: is missing"):
        client.submit_chain(file)
    with pytest.raises(ConfigError, match="not a 'int'"):
        client.submit_chain(5)  # type: ignore[arg-type]  # what programs may do


def test_cancel_stops_the_running_tool(client: EmbeddedClient, journal: Journal) -> None:
    run = client.submit_chain(
        {"nodes": [tool("n", "slow", journal=str(journal.path), mark="x", seconds=600)], "entry_node": "n"}
    )
    pid = until(lambda: journal.of("start"), "the start")[0]["pid"]

    assert run.cancel() == "cancelled"

    until(lambda: not _alive(pid), "the end of the tool's process")
    response = run.result(40)
    assert (response.status, response.error.code if response.error else None) == ("cancelled", "cancelled")
    assert run.cancel() == "cancelled"


def test_a_tenant_gets_no_run_of_another_by_its_idempotency_key(client: EmbeddedClient) -> None:
    request = {"nodes": [tool("sum", "add", a=1, b=2)], "entry_node": "sum"}
    first = client.submit_chain(request, idempotency_key="order-18", labels={"tenant": "acme"})

    for labels in ({"tenant": "evil"}, {}):
        with pytest.raises(
            ConfigError, match="the idempotency key 'order-18' is that of a run of another tenant"
        ) as refused:
            client.submit_chain(request, idempotency_key="order-18", labels=labels)
        assert refused.value.code == "key_taken"
    assert client.submit_chain(request, idempotency_key="order-18", labels={"tenant": "acme"}).run_id == first.run_id
    assert first.result(40).final_output == 3


def test_the_same_idempotency_key_gives_the_same_run(client: EmbeddedClient) -> None:
    request = {"nodes": [tool("n", "add", a=1)], "entry_node": "n"}

    first, second = (client.submit_chain(request, idempotency_key="order-17") for _ in range(2))

    assert first.run_id == second.run_id
    assert second.result(40).final_output == 2


def test_an_unknown_run_is_said_so(client: EmbeddedClient) -> None:
    with pytest.raises(UnknownRunError, match="run 'nope' is not known here"):
        client.run("nope")


def test_a_bad_request_is_refused_before_it_is_accepted(client: EmbeddedClient) -> None:
    before = len(client.runs(most=1000))

    with pytest.raises(ConfigError, match="did you mean 'add'") as caught:
        client.submit_chain({"nodes": [tool("n", "ad", a=1)], "entry_node": "x"})

    assert len(caught.value.faults) == 2, "all faults at once"
    assert len(client.runs(most=1000)) == before


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _runs(argument: str) -> bool:
    """Whether a process with this argument runs."""
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in cmdline.read_bytes().split(b"\0"):
                return True
    return False


def test_a_run_under_way_keeps_the_definitions_it_started_with(client: EmbeddedClient) -> None:
    nodes = [{"node_id": "gate", "kind": "wait", "next_node": "n"}, tool("n", "add", a=1)]
    run = client.submit_chain({"nodes": nodes, "entry_node": "gate"})
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the wait")
    deployed = client.definitions.model_copy(
        update={"tools": {**client.definitions.tools, "add": Tool(function="fleet_tools:echo")}}
    )

    with Client(client.redis_url, config=deployed) as other:
        changed = other.submit_chain({"nodes": [tool("n", "add", a=1)], "entry_node": "n"}).result(20)
    assert run.signal("gate", {"go": True}) == "taken"

    assert changed.final_output == {"a": 1}, "new runs take the new definitions"
    assert run.result(20).final_output == 2


@pytest.mark.slow("it is about many runs")
def test_a_tenant_with_many_runs_does_not_keep_another_waiting(client: EmbeddedClient, journal: Journal) -> None:
    many = thorough(400, plain=100)
    slow = {"nodes": [tool("n", "slow", journal=str(journal.path), mark="crowd", seconds=0.02)], "entry_node": "n"}
    single = {"nodes": [tool("n", "slow", journal=str(journal.path), mark="single", seconds=0.02)], "entry_node": "n"}
    crowd = [client.submit_chain(slow, labels={"tenant": "crowd"}) for _ in range(many)]

    alone = client.submit_chain(single, labels={"tenant": "single"})
    before = len(journal.of("finish"))

    assert alone.result(60).success
    assert all(run.result(60).success for run in crowd)
    order = [line["name"] for line in journal.of("finish")]
    assert len(order) == many + 1
    assert order.index("single") - before < (many - before) / 2 + 20, "it went before most of those that came before it"
