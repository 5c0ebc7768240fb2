"""Exceptions that are no `Exception`, out of every sort of users' code: they fail the step once, by name, unless a signal raised them."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from cantata import StepError, Workflow, workflow
from cantata.flows.definitions import Agent, Definitions, PythonWorkflow, Team, TeamRule, Tool
from cantata.flows.instructions import FunctionStep
from cantata.flows.wire import TurnRequest
from cantata.testing import Rule, ScriptedModels, ToolCall, run_inline

EXITS = [asyncio.CancelledError("why"), GeneratorExit("why"), KeyboardInterrupt("why"), SystemExit("why")]
pytestmark = pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)

calls: list[str] = []
raised: BaseException = EXITS[0]


def leave(*_: Any) -> str:
    calls.append("call")
    raise raised


async def leave_async(*_: Any) -> str:
    calls.append("call")
    await asyncio.sleep(0)
    raise raised


def leave_in_loop() -> None:
    asyncio.run(leave_async())


class Answer(BaseModel):
    """An answer whose validator leaves."""

    price: int

    @field_validator("price")
    @classmethod
    def check(cls, value: int) -> int:
        """Leave."""
        leave()
        return value


@workflow
async def leaving(wf: Workflow) -> None:
    """Leave in its own code."""
    leave()


@workflow
async def leaving_task(wf: Workflow) -> None:
    """Leave in a task of it."""
    await asyncio.create_task(leave_async())


@workflow
async def calling(wf: Workflow) -> str:
    """Go on after a function that left."""
    try:
        await wf.call(leave)
    except StepError as failed:
        return str(failed)
    return "nothing"


WORKFLOWS = Definitions(
    workflows={
        each.__name__: PythonWorkflow(function=f"{__name__}:{each.__name__}")
        for each in (leaving, leaving_task, calling)
    }
)


@pytest.fixture(autouse=True)
def raising(error: BaseException) -> Iterator[None]:
    """Have the functions of this module raise it."""
    global raised
    raised = error
    calls.clear()
    yield
    error.__traceback__ = None


def says(error: BaseException, message: str) -> bool:
    """Whether a message names the exception, and that it is final."""
    return f"raised {type(error).__name__}: why, which is no Exception, so it is not retried" in message


def chain(**node: Any) -> dict[str, Any]:
    """A chain of one node that may be retried."""
    return {"entry_node": "n", "nodes": [{"node_id": "n", "kind": "tool", "name": "leave", "retry": 3, **node}]}


@pytest.mark.parametrize("function", [leave, leave_async, leave_in_loop])
def test_a_tool_fails_once_by_name(error: BaseException, function: Callable[..., Any]) -> None:
    result = run_inline(chain(), tools={"leave": function}, definitions=Definitions())

    assert result.error
    assert calls == ["call"]
    assert f"raised {type(error).__name__}" in result.error.message
    assert "not retried" in result.error.message


def test_a_tool_that_leaves_is_skipped_where_the_node_says_so(error: BaseException) -> None:
    result = run_inline(chain(on_error="skip"), tools={"leave": leave}, definitions=Definitions())

    assert (result.status, result.final_output, calls) == ("succeeded", None, ["call"])


def test_the_event_loop_goes_on_with_the_coroutines_of_others(error: BaseException) -> None:
    nodes = [
        {"node_id": "n", "kind": "tool", "name": "leave", "on_error": "skip", "next_node": "m"},
        {"node_id": "m", "kind": "tool", "name": "go"},
    ]

    async def go() -> str:
        await asyncio.sleep(0)
        return "went"

    result = run_inline(
        {"entry_node": "n", "nodes": nodes}, tools={"leave": leave_async, "go": go}, definitions=Definitions()
    )

    assert result.final_output == "went"


@pytest.mark.parametrize("code", [leaving, leaving_task])
def test_a_workflow_fails_by_name(error: BaseException, code: Callable[..., Any]) -> None:
    result = run_inline(code, definitions=WORKFLOWS)

    assert calls == ["call"]
    assert result.error
    assert type(error).__name__ in result.error.message


def test_a_function_that_a_workflow_calls_fails_once(error: BaseException) -> None:
    result = run_inline(calling, definitions=WORKFLOWS)

    assert calls == ["call"]
    assert says(error, str(result.final_output))


def test_a_module_that_leaves_while_it_is_imported_fails_the_step_by_name(error: BaseException, tmp_path: Any) -> None:
    (tmp_path / "leaving_module.py").write_text(
        f"import asyncio\nraise {'asyncio.' * isinstance(error, asyncio.CancelledError)}{error!r}\n"
    )
    definitions = Definitions(folder=str(tmp_path), tools={"leave": Tool(function="leaving_module:leave")})

    result = run_inline(chain(), definitions=definitions)

    assert result.error
    assert f"module 'leaving_module' cannot be imported: {type(error).__name__}: why" in result.error.message


def here(name: str) -> str:
    """The reference to a function of this module, as a module that any folder can import."""
    module = sys.modules.setdefault("exits_of_tests", types.ModuleType("exits_of_tests"))
    setattr(module, name, globals()[name])
    return f"exits_of_tests:{name}"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModels]:
    """A model that calls the tool `leave` and then answers."""
    rules = [
        Rule(match="order", after_tools=0, tool_calls=(ToolCall(name="leave", arguments={}),)), Rule(match="order", reply="It left."),
        Rule(match="", reply='{"price": 1}'),
    ]  # fmt: skip
    with ScriptedModels(rules) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield server


def turn(text: str, **fields: Any) -> Any:
    """The result of a turn with an agent."""
    agents = {"ann": Agent(model="openai/gpt-4o-mini", retries=2, **fields)}
    definitions = Definitions(agents=agents, tools={"leave": Tool(function=here("leave"))})
    return run_inline(TurnRequest(text=text, agent="ann"), definitions=definitions)


def test_a_model_is_told_what_its_tool_raised(error: BaseException, model: ScriptedModels) -> None:
    assert turn("order", tools=["leave"]).output == "It left."

    assert calls == ["call"]
    assert says(error, str(model.requests[-1]["messages"]))


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": ["{input}"], "chainbreakers": [FunctionStep(function="exits_of_tests:leave")]},
        {"instructions": [FunctionStep(function="exits_of_tests:leave")]},
        {"output": {"class": "exits_of_tests:Answer"}},
    ],
    ids=["chainbreaker", "instruction", "validator"],
)
def test_code_of_an_agent_fails_its_step_once(
    error: BaseException, model: ScriptedModels, fields: dict[str, Any]
) -> None:
    here("Answer")

    result = turn("x", **fields)

    assert calls == ["call"]
    assert result.error
    assert says(error, result.error.message)


def test_a_rule_of_a_team_fails_its_step_once(error: BaseException, model: ScriptedModels) -> None:
    team = Team(mode="router", agents=["ann"], rules=[TeamRule(function=here("leave"), agent="ann")])
    definitions = Definitions(agents={"ann": Agent(model="openai/gpt-4o-mini")}, teams={"all": team})

    result = run_inline(TurnRequest(text="x", team="all"), definitions=definitions)

    assert calls == ["call"]
    assert result.error
    assert says(error, result.error.message)
