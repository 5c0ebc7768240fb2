"""Runs in the test's own process: every sort of step, virtual time, signals, failures, and what is separate between two tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cantata import StepError, Workflow, workflow
from cantata.errors import ConfigError
from cantata.flows.definitions import Agent, Definitions, PythonWorkflow, Tool, Webhook
from cantata.flows.wire import ChainResponse, TurnRequest
from cantata.flows.workflows import guard
from cantata.surfaces.cli.main import submit
from cantata.testing import Rule, ScriptedModels, ToolCall, run_inline
from tests.integration.receiver import receiving
from tests.waiting import when_busy

NONE = Definitions()
DAY_S = 86_400.0


def row(count: int) -> dict[str, Any]:
    """A chain of nodes, each of which calls `double` with the output of the one before."""
    ids = [f"n{number}" for number in range(count)]
    nodes = [
        {"node_id": each, "kind": "tool", "name": "double", "input_map": {"value": before}, "next_node": after}
        for each, before, after in zip(ids, ["input.value", *ids], [*ids[1:], None], strict=False)
    ]
    return {"entry_node": "n0", "nodes": nodes}


def double(value: float) -> float:
    return 2 * value


def approval(**options: Any) -> dict[str, Any]:
    """A chain that waits for a person."""
    ask = {"node_id": "ask", "kind": "wait", "next_node": "show", **options}
    show = {"node_id": "show", "kind": "tool", "name": "show", "input_map": {"value": "ask"}}
    return {"entry_node": "ask", "nodes": [ask, show]}


def ask(chain: dict[str, Any], **options: Any) -> ChainResponse:
    return run_inline(chain, tools={"show": lambda value: value}, definitions=NONE, **options)


def test_a_chain_calls_the_functions_of_the_test() -> None:
    result = run_inline(row(3), {"value": 1}, tools={"double": double}, definitions=NONE)

    assert (result.status, result.final_output, result.outputs) == ("succeeded", 8, {"n0": 2, "n1": 4, "n2": 8})


def test_no_webhook_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "secret")
    with receiving() as receiver:
        hook = Webhook(url=receiver.url, allow_private=True, on=["end", "wait"])

        for _ in range(2):
            run_inline(
                approval(), signals={"ask": True}, tools={"show": str}, definitions=Definitions(webhooks={"ops": hook})
            )

    assert receiver.messages == []


def test_a_run_takes_milliseconds() -> None:
    run_inline(row(1), {"value": 1}, tools={"double": double}, definitions=NONE)  # starts the server
    fastest = min(_seconds_of(row(10)) for _ in range(20))

    assert fastest < when_busy(0.05)  # 8 ms on a quiet machine


def _seconds_of(chain: dict[str, Any]) -> float:
    since = time.perf_counter()
    run_inline(chain, {"value": 1}, tools={"double": double}, definitions=NONE)
    return time.perf_counter() - since


def test_a_map_runs_each_item() -> None:
    item = {"node_id": "d", "kind": "tool", "name": "double", "input_map": {"value": "item"}}
    chain = {
        "entry_node": "m",
        "nodes": [{"node_id": "m", "kind": "map", "items_path": "input.items", "map_node": "d"}, item],
    }

    result = run_inline(chain, {"items": [*range(40)]}, tools={"double": double}, definitions=NONE)

    assert result.final_output == [2 * number for number in range(40)]


def test_a_failed_attempt_is_repeated_without_waiting() -> None:
    calls = []

    def flaky() -> int:
        calls.append(time.monotonic())
        if len(calls) < 5:
            raise ValueError("not yet")
        return len(calls)

    node = {"node_id": "a", "kind": "tool", "name": "flaky", "retry": 5}
    result = run_inline({"entry_node": "a", "nodes": [node]}, tools={"flaky": flaky}, definitions=NONE)

    assert result.final_output == 5
    assert calls[-1] - calls[0] < 1.5  # the pauses are at least 0.25 + 0.5 + 1 + 2 s


def sleeps() -> None:
    time.sleep(60)


def spins() -> None:
    while True:
        pass


def waits() -> None:
    lock = threading.Lock()
    while True:
        lock.acquire()


def runs() -> None:
    subprocess.run(["sleep", "60"], check=True)


def bears_all() -> None:
    while True:
        try:
            time.sleep(60)
        except Exception:  # noqa: BLE001  # as users write it
            continue


def goes_on() -> str:
    for _ in range(2):
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001  # as users write it
            continue
    return "done all the same"


async def awaits() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("function", [sleeps, spins, waits, runs, bears_all, goes_on, awaits])
def test_a_function_that_takes_too_long_is_stopped_while_it_runs_with_the_error_of_a_worker(
    function: Callable[[], Any],
) -> None:
    since = time.monotonic()

    result = too_long(function)

    assert result.error is not None
    assert result.error.message == "node 'a' failed: took longer than its 0.2 s and was stopped"
    assert time.monotonic() - since < 30


@pytest.mark.parametrize("function", [spins, awaits])
def test_in_another_thread_what_executes_python_or_awaits_is_stopped(function: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(too_long, function).result(30)

    assert result.error is not None
    assert result.error.message == "node 'a' failed: took longer than its 0.2 s and was stopped"


def too_long(function: Callable[[], Any]) -> ChainResponse:
    """Call a function that takes longer than it may."""
    config = Definitions(tools={"slow": Tool(function=f"{__name__}:double", timeout_s=0.2, retries=0)})
    chain = {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "slow"}]}
    return run_inline(chain, tools={"slow": function}, definitions=config)


def test_a_function_that_was_stopped_is_tried_again_and_the_next_one_is_not_disturbed() -> None:
    calls = []

    def slow_once() -> int:
        calls.append("begun")
        try:
            time.sleep(60 if len(calls) == 1 else 0)
        finally:
            calls.append("left")
        return len(calls)

    config = Definitions(tools={"slow": Tool(function=f"{__name__}:double", timeout_s=0.2, retries=1)})
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "slow", "next_node": "b"},
        {"node_id": "b", "kind": "tool", "name": "rests"},
    ]
    result = run_inline(
        {"entry_node": "a", "nodes": nodes},
        tools={"slow": slow_once, "rests": lambda: time.sleep(0.5)},
        definitions=config,
    )

    assert (result.status, result.outputs["a"], calls) == ("succeeded", 4, ["begun", "left"] * 2)
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_the_time_of_an_import_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "imported_slowly.py").write_text(
        "import time\ntime.sleep(0.6)\ndef quick(): return 1\ndef slow(): time.sleep(60)\n"
    )
    names = ("quick", "slow")
    tools = {name: Tool(function=f"imported_slowly:{name}", timeout_s=0.2, retries=0) for name in names}
    nodes = [
        {"node_id": "quick", "kind": "tool", "name": "quick", "next_node": "slow"},
        {"node_id": "slow", "kind": "tool", "name": "slow"},
    ]

    result = run_inline(
        {"entry_node": "quick", "nodes": nodes}, definitions=Definitions(tools=tools, folder=str(tmp_path))
    )

    assert result.outputs["quick"] == 1
    assert result.error is not None
    assert result.error.message == "node 'slow' failed: took longer than its 0.2 s and was stopped"


@workflow
async def hurried(wf: Workflow) -> list[str]:
    """Call a function that takes too long."""
    try:
        await wf.options(timeout_s=0.2).call(sleeps)
    except StepError as error:
        return [error.code, str(error)]
    return []


@workflow
async def endless(wf: Workflow) -> None:
    """Never come to an await."""
    spins()


def test_the_code_of_a_workflow_gets_the_error_of_a_worker_and_is_stopped_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "MAX_CPU_S", 0.2)
    config = Definitions(
        workflows={name: PythonWorkflow(function=f"{__name__}:{name}") for name in ("hurried", "endless")}
    )

    assert run_inline(hurried, definitions=config).final_output == [
        "timeout",
        "took longer than its 0.2 s and was stopped",
    ]
    assert "used 0.2 s of processor time without an await" in str(run_inline(endless, definitions=config).error)


def test_a_failure_is_the_result_of_its_run() -> None:
    def boom(value: int) -> None:
        raise KeyError(value)

    result = run_inline(row(2), {"value": 7}, tools={"double": boom}, definitions=NONE)

    assert (result.status, result.failed) == ("failed", ["n0"])
    assert result.error is not None
    assert result.error.message == "node 'n0' failed: inline:double raised KeyError: 7"


def test_a_wait_ends_by_its_signal_else_by_its_time_out() -> None:
    chain = approval(timeout=30 * DAY_S - 1, default="late")

    assert ask(chain, signals={"ask": {"ok": True}}).final_output == {"ok": True}
    assert ask(chain).final_output == "late"


def test_a_wait_without_signal_and_time_out_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the run waits for a signal to 'ask': give its value in `signals`"):
        ask(approval())


def test_slow_items_among_pure_ones_do_not_keep_what_follows_them() -> None:
    def uneven(value: int) -> int:
        time.sleep(0.07 * (value % 2))
        return value

    config = Definitions(tools={"uneven": Tool(function=f"{__name__}:double", cheap=True, pure=True)})
    item = {"node_id": "item", "kind": "tool", "name": "uneven", "input_map": {"value": "_item"}}
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "item", "max_concurrency": 4},
        item,
    ]
    chain = {"entry_node": "all", "nodes": nodes, "initial_input": {"items": list(range(12))}}

    assert run_inline(chain, tools={"uneven": uneven}, definitions=config).outputs["all"] == list(range(12))


def test_a_misspelt_signal_is_no_time_out() -> None:
    chain = approval(timeout=60, default="late")
    message = (
        r"signals=\{'askk': ...\} is for no step of the run, whose step 'ask' waited in vain; did you mean 'ask'\?"
    )

    with pytest.raises(ConfigError, match=message):
        ask(chain, signals={"askk": True})
    assert ask(chain, signals={"another": 1}).final_output == "late", "signals may be shared by tests"
    assert run_inline(row(1), {"value": 1}, tools={"double": double}, definitions=NONE, signals={"any": 1}).success


def test_a_misspelt_tool_is_not_called_in_silence() -> None:
    called: list[int] = []
    config = Definitions(tools={"double": Tool(function=f"{__name__}:double"), "pay": Tool(function=f"{__name__}:pay")})

    with pytest.raises(
        ConfigError,
        match=r"tools=\{'pya': ...\}: the run called nothing of this name, and no tool has it; did you mean 'pay'\?",
    ):
        run_inline(row(1), {"value": 1}, tools={"pya": called.append}, definitions=config)
    with pytest.raises(ConfigError, match=r"tools=\{'pya': ...\}"):
        run_inline(expense, {"amount": 3}, tools={"pya": paid}, definitions=EXPENSE, signals={"approve": True})
    assert run_inline(row(1), {"value": 1}, tools={"double": double, "pay": called.append}, definitions=config).success
    assert run_inline(expense, {"amount": 3}, tools={"pay": paid}, definitions=EXPENSE).final_output == "refused", (
        "it was not called"
    )


def test_a_run_that_ended_in_an_error_leaves_no_step_for_the_next() -> None:
    with pytest.raises(ConfigError, match="waits for a signal"):
        ask(approval())

    assert run_inline(row(1), {"value": 1}, tools={"double": double}, definitions=NONE).final_output == 2


def test_a_function_stands_for_a_tool_of_the_configuration_with_its_settings() -> None:
    calls = []

    def charge(amount: int, currency: str) -> str:
        calls.append(amount)
        if len(calls) == 1:
            raise ValueError("once")
        return f"{amount} {currency}"

    tools = {"charge": Tool(task="shop.charge", retries=1, values={"currency": "EUR"})}
    node = {"node_id": "pay", "kind": "tool", "name": "charge", "input": {"amount": 3}}
    chain = {"entry_node": "pay", "nodes": [node]}

    assert run_inline(chain, tools={"charge": charge}, definitions=Definitions(tools=tools)).final_output == "3 EUR"
    failed = run_inline(chain, definitions=Definitions(tools=tools)).error
    assert failed is not None
    assert "this process calls no tasks of your Celery application" in failed.message


def test_a_tool_of_the_configuration_is_loaded_again_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inline_shop.py").write_text("def double(value):\n    return 2 * value\n")
    definitions = Definitions(folder=str(tmp_path), tools={"double": Tool(function="inline_shop:double")})

    first = run_inline(row(1), {"value": 3}, definitions=definitions)
    monkeypatch.setattr(sys.modules["inline_shop"], "double", lambda value: 10 * value)
    second = run_inline(row(1), {"value": 3}, definitions=definitions)

    assert (first.final_output, second.final_output) == (6, 30)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModels]:
    with ScriptedModels() as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-scripted")
        yield server


def test_an_agent_asks_its_model_and_calls_functions(models: ScriptedModels) -> None:
    models.script([
        Rule(after_tools=0, tool_calls=(ToolCall(name="price", arguments={"item": "tea"}),)),
        Rule(after_tools=1, reply="tea costs 4"),
    ])  # fmt: skip
    asked = []

    def price(item: str) -> int:
        """Return the price of an item."""
        asked.append(item)
        return 4

    definitions = Definitions(
        agents={"clerk": Agent(model="openai/scripted", tools=["price"])}, tools={"price": Tool(function="shop:price")}
    )
    result = run_inline(
        TurnRequest(text="How much is tea?", agent="clerk"), tools={"price": price}, definitions=definitions
    )

    assert (result.output, asked, len(models.journal())) == ("tea costs 4", ["tea"], 2)


def test_a_model_that_calls_a_tool_of_an_agent_without_tools_is_named(models: ScriptedModels) -> None:
    models.script([Rule(tool_calls=(ToolCall(name="stock", arguments={}),))])
    definitions = Definitions(agents={"writer": Agent(model="openai/scripted")})

    error = run_inline(TurnRequest(text="Write", agent="writer"), definitions=definitions).error

    assert error is not None
    assert (error.code, error.message) == ("model_empty", "the model called 'stock', and agent 'writer' has no tools")


def test_another_model_stands_for_the_default_one(models: ScriptedModels) -> None:
    definitions = Definitions(agents={"a": Agent()})

    assert (
        run_inline(TurnRequest(text="Hi", agent="a"), definitions=definitions, model="openai/other").output
        == "echo: Hi"
    )
    assert models.requests[0]["model"] == "other"


def test_submit_doctor_tells_keys_that_are_missing_and_answers_that_come(
    models: ScriptedModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.script([Rule(model="good", reply="OK"), Rule(status=401, reply="wrong key")])
    (tmp_path / "own.yaml").write_text("agents: {a: {model: openai/good}, b: {model: openai/bad}}\n")
    monkeypatch.setenv("CANTATA_HOME", str(tmp_path / "home"))

    def checks(*words: str) -> tuple[list[str], str]:
        result = CliRunner().invoke(
            submit, ["doctor", "--config", str(tmp_path / "own.yaml"), *words], env={"REDIS_URL": None}
        )
        return [line.split()[0] for line in result.stdout.splitlines() if " model openai/" in line], result.output

    assert checks()[0] == ["ok", "ok"]
    statuses, output = checks("--models")
    assert statuses == ["ok", "failing"], output
    assert "sk-scripted" not in output
    monkeypatch.delenv("OPENAI_API_KEY")
    assert checks()[0] == ["failing", "failing"]
    assert "not set: OPENAI_API_KEY" in checks()[1]


def test_the_turns_of_a_session_follow_each_other(models: ScriptedModels) -> None:
    definitions = Definitions(agents={"clerk": Agent(model="openai/scripted")})
    for text in ("one", "two"):
        run_inline(TurnRequest(text=text, agent="clerk", session="s"), definitions=definitions)

    second: Any = models.journal()[1]["body"]
    assert [message["content"] for message in second["messages"]] == ["one", "echo: one", "two"]


def test_each_test_begins_with_an_empty_ledger(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
from cantata.flows.definitions import Definitions, Tool
from cantata.testing import inline, run_inline

def runs():
    chain = {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "f"}]}
    run_inline(chain, tools={"f": lambda: 1}, definitions=Definitions())
    return len(inline._runner().client.runs())

def test_one():
    assert [runs(), runs()] == [1, 2]

def test_two():
    assert runs() == 1
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def pay(amount: float) -> str:
    """Pay for real."""
    raise AssertionError("a test paid")


@workflow
async def expense(wf: Workflow, amount: int, currency: str = "EUR") -> str:
    """Ask a person, convert the amount and pay it."""
    if not await wf.wait("approve", {"amount": amount}, timeout_s=2 * DAY_S, default=False):
        return "refused"
    total = await wf.call(double, amount) if currency == "USD" else amount
    return str(await wf.options(at_most_once=True).call(pay, total))


def paid(amount: int) -> str:
    return f"paid {amount}"


EXPENSE = Definitions(workflows={"cost": PythonWorkflow(function=f"{__name__}:expense")})


@pytest.mark.parametrize("flow", [expense, "cost"])
@pytest.mark.parametrize("name", ["pay", f"{__name__}:pay"])
def test_a_workflow_by_its_function_or_its_name_calls_the_functions_of_the_test(flow: Any, name: str) -> None:
    result = run_inline(
        flow, {"amount": 3, "currency": "USD"}, tools={name: paid}, definitions=EXPENSE, signals={"approve": True}
    )

    assert (result.status, result.final_output) == ("succeeded", "paid 6")


def test_without_a_configuration_a_function_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert run_inline(expense, {"amount": 3}).final_output == "refused"  # two days later
    assert run_inline(expense, {"amount": 3}, tools={"pay": paid}, signals={"approve": True}).final_output == "paid 3"
    with pytest.raises(ConfigError, match="<lambda>' cannot be imported by a worker"):
        run_inline(lambda wf: wf)


def test_a_configuration_without_the_function_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"the configuration has no workflow with the function '.*:expense'; add it under 'workflows'"
    ):
        run_inline(expense, {"amount": 3}, definitions=NONE)


def test_a_function_of_the_run_before_is_not_kept() -> None:
    run_inline(expense, {"amount": 3}, tools={"pay": paid}, definitions=EXPENSE, signals={"approve": True})
    result = run_inline(expense, {"amount": 3}, definitions=EXPENSE, signals={"approve": True})

    assert result.error is not None
    assert "a test paid" in result.error.message


def test_a_module_and_name_stand_for_the_function_of_a_tool() -> None:
    definitions = Definitions(tools={"double": Tool(function="shop:twice", values={"times": 2})})

    def twice(value: int, times: int) -> int:
        return value * times

    assert run_inline(row(1), {"value": 4}, tools={"shop:twice": twice}, definitions=definitions).final_output == 8


@pytest.mark.parametrize(
    ("number", "handler", "expected"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, lambda *_: sys.exit(7), SystemExit),
    ],
)
@pytest.mark.parametrize("is_converted", [False, True])
def test_a_signal_ends_the_run_and_not_its_step(
    number: signal.Signals, handler: Any, expected: type[BaseException], is_converted: bool
) -> None:
    def signalled() -> None:
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(30)
        except BaseException:
            if is_converted:
                sys.exit(9)  # as code does that cleans up and ends
            raise

    before = signal.signal(number, handler)
    try:
        with pytest.raises(SystemExit if is_converted else expected):
            run_inline(row(1), {"value": 1}, tools={"double": lambda value: signalled()}, definitions=NONE)
        assert signal.getsignal(number) is handler, "as it was"
    finally:
        signal.signal(number, before)

    assert run_inline(row(1), {"value": 1}, tools={"double": double}, definitions=NONE).final_output == 2


def test_a_signal_ends_the_run_while_a_coroutine_is_awaited() -> None:
    async def signalled(value: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_inline(row(1), {"value": 1}, tools={"double": signalled}, definitions=NONE)
    finally:
        signal.signal(signal.SIGINT, before)
