"""One bound for values and times, at every door and where outputs are recorded; what cannot be read fails its run with a true reason."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from cantata import Workflow, workflow
from cantata.client.client import Client
from cantata.errors import CantataError, ConfigError, StepError
from cantata.flows.definitions import Definitions, PythonWorkflow, Tool
from cantata.flows.graph import START
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import definitions_key, run_key, shard_of
from cantata.surfaces.cli.main import submit
from cantata.testing import inline, run_inline
from cantata.testing.inline import Runner
from cantata_workers.process.message import Delivery
from tests.examples import thorough
from tests.integration.state.test_streams import url_of

CHAIN = {
    "nodes": [{"node_id": "a", "kind": "tool", "name": "echo", "input_map": {"value": "input.x"}}],
    "entry_node": "a",
}
WAIT = {"nodes": [{"node_id": "ask", "kind": "wait"}], "entry_node": "ask"}
HERE = __name__


def nested(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def echo(value: Any = None) -> Any:
    return value


def nest(levels: int) -> Any:
    return nested(levels)


def odd(kind: str) -> Any:
    return {"nan": math.nan, "digits": 10**400, "surrogate": "\ud800", "object": object(), "keys": {1: 2}}[kind]


@workflow
async def passes(wf: Workflow, levels: int) -> bool:
    value = await wf.call(nest, levels)
    return bool(await wf.call(echo, value) == value)


@workflow
async def calls(wf: Workflow, levels: int) -> str:
    try:
        await wf.call(echo, nested(levels))
    except StepError as error:
        await wf.sleep(1)  # the history then has another command than the one that was refused
        return str(await wf.call(echo, str(error)))
    return "no error"


@workflow
async def sleeps(wf: Workflow, seconds: Any) -> str:
    await wf.sleep(seconds)
    return "awake"


@workflow
async def returns(wf: Workflow, levels: int) -> Any:
    return nested(levels)


DEFINITIONS = Definitions(
    tools={name: Tool(function=f"{HERE}:{name}") for name in ("echo", "nest", "odd")},
    workflows={
        each.__name__: PythonWorkflow(function=f"{HERE}:{each.__name__}") for each in (passes, calls, sleeps, returns)
    },
)


@pytest.fixture
def client(ledger: Ledger) -> Iterator[Client]:
    with Client(url_of(ledger.redis), config=DEFINITIONS) as found:
        yield found


class Point(BaseModel):
    x: int


@dataclass
class Size:
    width: int


circle: list[Any] = []
circle.append(circle)
BAD_VALUES: dict[str, Any] = {
    "65 levels": nested(65), "100,000 levels": nested(100_000), "a circle": circle, "nan": math.nan, "inf": [math.inf],
    "400 digits": 10**400, "5,000 digits": [10**5000], "a surrogate": {"a": "\udcff"}, "a key": {"\ud800": 1}, "an object": object(),
    "bytes": b"x", "a number as key": {1: 2}, "a generator": itertools.count(),
}  # fmt: skip
BAD_TIMES: list[Any] = [-1, math.nan, math.inf, -math.inf, True, "5", [], 10**400, 1e12]

VALUE_DOORS: dict[str, Callable[[Client, Any], Any]] = {
    "submit_chain": lambda client, value: client.submit_chain(CHAIN, initial_input={"x": value}),
    "submit_chain, its nodes": lambda client, value: client.submit_chain(
        {"nodes": [{"node_id": "a", "kind": "tool", "name": "echo", "input": {"value": value}}], "entry_node": "a"}
    ),
    "submit_chain, a default": lambda client, value: client.submit_chain(
        {"nodes": [{"node_id": "a", "kind": "wait", "timeout": 5, "default": [value]}], "entry_node": "a"}
    ),
    "submit_workflow": lambda client, value: client.submit_workflow("passes", {"levels": value}),
    "submit_turn": lambda client, value: client.submit_turn(value),
    "submit_turn, its session": lambda client, value: client.submit_turn("hello", session=value),
    "a key": lambda client, value: client.submit_chain(CHAIN, initial_input={}, idempotency_key=value),
    "labels": lambda client, value: client.submit_chain(CHAIN, initial_input={}, labels={"a": value}),
    "signal": lambda client, value: client.submit_chain(WAIT).signal("ask", value),
    "answer": lambda client, value: client.answer(f"{client.submit_chain(WAIT).run_id}/ask", value),
    "memory": lambda client, value: client.memory.store_memory("key", value),
    "memory, append": lambda client, value: client.memory.append("list", value),
    "memory, update": lambda client, value: client.memory.update("key", lambda _: value),
    "batch": lambda client, value: next(client.batch([{"x": value}], workflow="passes")),
    "batch, a row": lambda client, value: next(client.batch([value], workflow="passes")),
    "schedule": lambda client, value: client.schedules.create(
        "s", {"every": "1d", "workflow": "passes", "input": {"levels": value}}
    ),
    "schedule, a label": lambda client, value: client.schedules.create(
        "s", {"every": "1d", "workflow": "passes", "labels": {"a": value}}
    ),
}


@pytest.mark.parametrize("door", VALUE_DOORS)
def test_each_door_of_the_client_refuses_a_value_beyond_a_bound_with_our_error(client: Client, door: str) -> None:
    for name, value in BAD_VALUES.items():
        if name == "bytes" and door == "schedule, a label":
            continue  # pydantic takes bytes for a text
        with pytest.raises(CantataError) as caught:
            VALUE_DOORS[door](client, value)

        assert len(str(caught.value)) < 3000, name
    assert client.schedules.list() == []


def test_the_error_names_place_and_bound(client: Client) -> None:
    value: Any = {"items": [1, 2, 3, {"x": nested(64)}]}

    with pytest.raises(ConfigError, match=r"initial_input\.items\[3\]\.x\[0\].*: nested deeper than 64 levels"):
        client.submit_chain(CHAIN, initial_input=value)
    with pytest.raises(ConfigError, match=r"input\.levels\.items\[3\]\.x"):
        client.submit_workflow("passes", {"levels": value})
    with pytest.raises(ConfigError, match=r"input\.levels\[0\]: a value of type object is not JSON"):
        client.submit_workflow("passes", {"levels": [object()]})
    with pytest.raises(ConfigError, match=r"nodes\[0\] 'a'\.input\.value\.items\[3\]\.x"):
        client.submit_chain(
            {"nodes": [{"node_id": "a", "kind": "tool", "name": "echo", "input": {"value": value}}], "entry_node": "a"}
        )


def test_the_input_of_a_workflow_is_converted_as_documented(client: Client) -> None:
    given = {"levels": [Point(x=1), Size(2), date(2030, 5, 1), datetime(2030, 5, 1, tzinfo=UTC), (1, 2), {3}]}

    run = client.submit_workflow("passes", given)

    request = json.loads(client.ledger.runs.request_of(run.run_id)[1])
    assert request["nodes"][0]["input"]["levels"] == [
        {"x": 1},
        {"width": 2},
        "2030-05-01",
        "2030-05-01T00:00:00Z",
        [1, 2],
        [3],
    ]


def test_a_value_at_the_bound_passes_all_doors(client: Client) -> None:
    deep = nested(63)

    client.submit_chain(CHAIN, initial_input={"x": deep})
    client.submit_workflow("passes", {"levels": deep})
    client.memory.store_memory("deep", nested(64))
    assert client.memory.retrieve_memory("deep") == nested(64)
    assert client.submit_chain(WAIT).signal("ask", nested(64)) in ("taken", "kept")


def test_a_signal_is_as_large_as_an_output_at_most(client: Client) -> None:
    small = client.with_definitions(Definitions.model_validate({"limits": {"output_bytes": 1000}}))
    run = small.submit_chain(WAIT)

    with pytest.raises(ConfigError, match="the value for step 'ask': 1,002 bytes as JSON, more than 1,000"):
        run.signal("ask", "x" * 1000)
    assert run.signal("ask", "x" * 990) in ("taken", "kept")


TIME_DOORS: dict[str, Callable[[Client, Any], Any]] = {
    "submit_turn": lambda client, time: client.submit_turn("hello", timeout_s=time),
    "submit_chain": lambda client, time: client.submit_chain(CHAIN, initial_input={}, timeout_s=time),
    "submit_workflow": lambda client, time: client.submit_workflow("passes", {"levels": 1}, timeout_s=time),
    "a node": lambda client, time: client.submit_chain(
        {"nodes": [{**CHAIN["nodes"][0], "timeout": time}], "entry_node": "a"}  # type: ignore[dict-item]
    ),
    "a reminder": lambda client, time: client.submit_chain(
        {"nodes": [{**WAIT["nodes"][0], "remind_after_s": time}], "entry_node": "ask"}  # type: ignore[dict-item]
    ),
    "wait": lambda client, time: client.submit_chain(CHAIN, initial_input={}).wait(time),
    "result": lambda client, time: client.submit_chain(CHAIN, initial_input={}).result(time),
    "events": lambda client, time: [*client.submit_chain(CHAIN, initial_input={}).events(timeout_s=time)],
    "memory": lambda client, time: client.memory.store_memory("key", 1, ttl_s=time * 1000 if time == 1e12 else time),
    "keep_for": lambda client, time: client.memory.keep_for("name", time * 1000 if time == 1e12 else time),
    "every": lambda client, time: client.schedules.create("s", {"every": time, "workflow": "passes"}),
    "catch_up": lambda client, time: client.schedules.create(
        "s", {"every": 60, "workflow": "passes", "catch_up": time}
    ),
    "since": lambda client, time: client.of(None).list(since=time),
}


@pytest.mark.parametrize("door", TIME_DOORS)
def test_each_door_of_the_client_refuses_a_time_beyond_a_bound_with_our_error(client: Client, door: str) -> None:
    for time in BAD_TIMES:
        with pytest.raises(CantataError):
            TIME_DOORS[door](client, time)


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00", "1999-12-31T23:59:59+00:00", "2200-01-01T00:00:00+00:00", "9999-12-31T23:59:59"]
)
def test_an_instant_lies_between_2000_and_2200(client: Client, at: str) -> None:
    moment = datetime.fromisoformat(at)
    client.schedules.create(
        "daily", {"every": "1d", "timezone": "America/New_York", "workflow": "passes", "input": {"levels": 1}}
    )

    with pytest.raises(ConfigError, match="between 2000 and 2200"):
        client.schedules.backfill("daily", moment, moment)
    with pytest.raises(ConfigError, match="between 2000 and 2200"):
        client.schedules.create("once", {"at": at, "workflow": "passes"})
    assert client.schedules.get("daily").pending == 0


# --- properties ---------------------------------------------------------------------------------------------------------

ODD = st.sampled_from(
    [
        math.nan,
        -math.inf,
        10**299,
        10**301,
        -(10**4000),
        "\ud800",
        b"x",
        object(),
        {1: 2},
        nested(63),
        nested(66),
        circle,
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.datetimes() | ODD,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3) | st.tuples(inside)
    ),
    max_leaves=8,
)


@given(ANYTHING)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=thorough(500, plain=60)
)
def test_whatever_comes_in_is_stored_as_it_is_or_refused_by_our_error(client: Client, value: Any) -> None:
    try:
        client.memory.store_memory("any", value)
    except CantataError:
        with pytest.raises(CantataError):
            client.submit_chain(WAIT).signal("ask", value)
        return

    assert json.dumps(client.memory.retrieve_memory("any")) == json.dumps(value)
    run = client.submit_chain(WAIT)
    assert run.signal("ask", value) in ("taken", "kept")


@given(ANYTHING)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=thorough(500, plain=60)
)
def test_whatever_input_a_request_has_it_is_accepted_or_refused_by_our_error(client: Client, value: Any) -> None:
    for submit_one in (
        lambda: client.submit_chain(CHAIN, initial_input={"x": value}),
        lambda: client.submit_workflow("passes", {"levels": value}),
        lambda: client.submit_chain(CHAIN, initial_input={}, timeout_s=value),
        lambda: client.schedules.create(
            "any", {"every": value, "at": value, "workflow": "passes", "input": {"levels": value}}
        ),
    ):
        with suppress(CantataError):
            submit_one()


# --- the command line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["[" * 65 + "]" * 65, "[" * 100_000 + "]" * 100_000, "9" * 400, "9" * 5000, '["\\ud800"]', "NaN", "1e999"]
)
def test_the_command_line_refuses_values_beyond_a_bound(
    ledger: Ledger, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", url_of(ledger.redis))
    given = tmp_path / "given.json"
    given.write_text(f'{{"x": {text}}}')
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f'{{"text": "fine"}}\n{{"text": {text}}}\n')
    commands = [
        ["workflow", "passes", "--input", f"@{given}"], ["chain", "c.json", "--input", f"@{given}"],
        ["runs", "signal", "run", "step", f'{{"x": {text}}}'],
        ["memory", "set", "key", f'{{"x": {text}}}'] if text not in ("NaN",) else ["memory", "set", "key", "x", "--ttl", "nan"],
        ["batch", str(rows), "--agent", "a", "--out", str(tmp_path / "out.jsonl")],
    ]  # fmt: skip
    for command in commands:
        result = CliRunner().invoke(submit, command)

        assert result.exit_code == 2, (command[:2], result.output[-300:], result.exception)
        assert len(result.output) < 3000


# --- outputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "given", "fault"),
    [
        ("nest", {"levels": 65}, "output[0][0][0][0][0][0][0][0]...: nested deeper than 64 levels"),
        ("nest", {"levels": 210}, "nested deeper than 64 levels"),
        ("nest", {"levels": 100_000}, "nested deeper than 64 levels"),
        ("odd", {"kind": "nan"}, "output: nan is not JSON"),
        ("odd", {"kind": "digits"}, "more than 300 digits"),
        ("odd", {"kind": "surrogate"}, "half a surrogate pair"),
        ("odd", {"kind": "object"}, "output: a value of type object is not JSON"),
        ("odd", {"kind": "keys"}, "the key 1 of type int"),
    ],
)
def test_an_output_beyond_a_bound_fails_its_step_by_place_and_bound(
    tool: str, given: dict[str, Any], fault: str
) -> None:
    request = {"nodes": [{"node_id": "a", "kind": "tool", "name": tool, "input": given}], "entry_node": "a"}

    response = run_inline(request, definitions=DEFINITIONS)

    assert response.status == "failed"
    assert fault in str(response.error)


def test_an_output_of_64_levels_passes_through_nodes_maps_and_workflows() -> None:
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "nest", "input": {"levels": 64}, "next_node": "m"},
        {"node_id": "m", "kind": "map", "items_path": "a.output", "map_node": "b", "next_node": "c"},
        {"node_id": "b", "kind": "tool", "name": "echo", "input_map": {"value": "item"}},
        {"node_id": "c", "kind": "tool", "name": "echo", "input_map": {"value": "a.output"}},
    ]

    response = run_inline({"nodes": nodes, "entry_node": "a"}, definitions=DEFINITIONS)

    assert response.error is None
    assert response.final_output == nested(64)
    assert run_inline("passes", {"levels": 64}, definitions=DEFINITIONS).final_output is True
    assert run_inline("returns", {"levels": 64}, definitions=DEFINITIONS).final_output == nested(64)


@pytest.mark.parametrize(("name", "code"), [("passes", "bad_output"), ("returns", "bad_output")])
def test_a_workflow_with_a_deep_value_fails_with_the_bound(name: str, code: str) -> None:
    response = run_inline(name, {"levels": 210}, definitions=DEFINITIONS)

    assert response.status == "failed"
    assert "nested deeper than 64 levels" in str(response.error)


def test_a_deep_argument_of_a_call_is_an_error_in_the_code_which_replays_alike() -> None:
    response = run_inline("calls", {"levels": 65}, definitions=DEFINITIONS)

    assert response.error is None
    assert "args[0][0][0][0][0][0][0][0]" in str(response.final_output)
    assert "nested deeper than 64 levels" in str(response.final_output)


@pytest.mark.parametrize("seconds", [4e8, 1e300, 10**299, True, "5"])
def test_no_sleep_is_longer_than_ten_years(seconds: Any) -> None:
    response = run_inline("sleeps", {"seconds": seconds}, definitions=DEFINITIONS)

    assert response.status == "failed"
    assert "wf.sleep" in str(response.error)


# --- what cannot be read ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner() -> Runner:
    return inline._runner()


def _execute(runner: Runner, run_id: str) -> None:
    runner._execute_ready()
    while runner.skip_to_timer(run_id):
        runner._execute_ready()


DEEP = "[" * 300 + "]" * 300


@pytest.mark.parametrize(
    ("field", "text", "fault"),
    [
        ("spec", '{"kind":"tool.call","queue":"tools","params":{"input":' + DEEP + "}}", "nested too deeply"),
        (
            "spec",
            '{"kind":"tool.call","queue":"tools","params":{"input":' + "[" * 900 + "]" * 900 + "}}",
            "nested too deeply",
        ),
        ("given", "[" * 5000 + "]" * 5000, "a value that it gets is nested too deeply"),
        ("given", "{broken", "a value that it gets is not JSON"),
    ],
)
def test_a_step_that_nobody_can_read_fails_its_run_with_the_reason(
    runner: Runner, field: str, text: str, fault: str
) -> None:
    with runner.lock:
        runner._begin_test()
        client = runner.client.with_definitions(DEFINITIONS)
        other, run = client.submit_chain(CHAIN, initial_input={"x": 7}), client.submit_chain(WAIT)
        runner._execute_ready()
        key = run_key(client.redis, run.run_id)
        spec = json.loads(client.redis.hget(f"{key}:steps", "ask") or "")
        if field == "spec":
            client.redis.hset(f"{key}:steps", "ask", text)
        else:
            client.redis.hset(
                f"{key}:steps",
                "ask",
                json.dumps({**spec, "kind": "tool.call", "queue": "tools", "has_given": True, "params": {}}),
            )
            client.redis.hset(f"{key}:given", "ask", text)
        client.redis.hset(f"{key}:state", "ask", "sent 0 0 0 0 0 0 0")
        runner.app.messages.append(inline._Message(run.run_id, ["ask"], Delivery("tool.call", "tools", 0)))
        _execute(runner, run.run_id)

        assert run.status() == "failed"
        result = run.result(timeout_s=5)
        assert result.error is not None
        assert (result.error.code, fault in result.error.message) == ("chain_node_error", True), result.error
        assert other.result(timeout_s=5).final_output == 7
        assert "ask" in run.record().steps


def test_a_request_of_210_levels_that_the_version_before_stored_fails_with_the_reason(runner: Runner) -> None:
    with runner.lock:
        runner._begin_test()
        client = runner.client.with_definitions(DEFINITIONS)
        run = client.submit_chain(CHAIN, initial_input={"x": 1})
        key = run_key(client.redis, run.run_id)
        request = json.loads(client.redis.hget(key, "request") or "")
        client.redis.hset(key, "request", json.dumps({**request, "initial_input": {"x": nested(210)}}))
        _execute(runner, run.run_id)

        result = run.result(timeout_s=5)

    assert result.status == "failed"
    assert result.error is not None
    assert "nested deeper than 128 levels" in result.error.message


def test_definitions_that_nobody_can_read_fail_the_run_with_the_reason(runner: Runner) -> None:
    with runner.lock:
        runner._begin_test()
        client = runner.client.with_definitions(DEFINITIONS)
        run = client.submit_chain(CHAIN, initial_input={"x": 1})
        digest = client.ledger.runs.request_of(run.run_id)[2]
        text = '{"models":{"m":{"model":"x","params":{"a":' + DEEP + "}}}}"
        client.redis.hset(definitions_key(client.redis, shard_of(run.run_id), digest), "text", text)
        runner.process._definitions.clear()
        _execute(runner, run.run_id)

        result = run.result(timeout_s=5)

    assert result.status == "failed"
    assert result.error is not None
    assert "definitions of the run cannot be read: the stored Definitions is nested too deeply" in result.error.message


def test_a_run_with_a_step_that_nobody_can_read_can_be_cancelled(runner: Runner) -> None:
    with runner.lock:
        runner._begin_test()
        client = runner.client.with_definitions(DEFINITIONS)
        run = client.submit_chain(WAIT)
        runner._execute_ready()
        client.redis.hset(
            f"{run_key(client.redis, run.run_id)}:steps", "ask", '{"kind":"wait","params":{"asks":' + DEEP + "}}"
        )

        assert run.cancel() == "cancelled"
        assert run.result(timeout_s=5).status == "cancelled"
        assert START in run.record().steps
