"""A PromptChain is what a configuration would say, and what does not fit together is told when it is built."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cantata import AgentChain, AgenticStepProcessor, ChainBuilder, ConfigError, PromptChain, create_memory_chain
from cantata.config.user_code.function_names import IN_WORKER
from cantata.flows.definitions import Agent, Model
from cantata.flows.instructions import AgenticStep, FunctionStep, NestedStep, PromptStep

GPT = "openai/gpt-4o-mini"
NAME = f"{__name__}:"


def clean(text: str) -> str:
    return text.strip()


def look_up(word: str) -> str:
    return word


def shorten(length: Any, text: str = "", **more: Any) -> str:
    return text[:length]


def stop(step: int, output: str) -> tuple[bool, str, str | None]:
    return False, "", None


def agent_of(chain: PromptChain) -> Agent:
    return chain.definitions.agents["chain"]


def test_a_chain_is_an_agent_with_its_functions_named() -> None:
    chain = PromptChain(
        models=[GPT, {"name": "openai/gpt-4o", "params": {"max_tokens": 1000}}],
        instructions=["Extract: {input}", clean, "Summarize: {input}", AgenticStepProcessor(objective="Check it")],
        full_history=True,
        store_steps=True,
        chainbreakers=[stop],
        step_timeout_s=90,
    )

    assert agent_of(chain) == Agent(
        models=[GPT, Model(model="openai/gpt-4o", params={"max_tokens": 1000})],
        instructions=[
            "Extract: {input}",
            FunctionStep(function=f"{NAME}clean"),
            "Summarize: {input}",
            AgenticStep(objective="Check it"),
        ],
        chainbreakers=[FunctionStep(function=f"{NAME}stop")],
        full_history=True,
        store_steps=True,
        timeout_s=90,
        stream=False,
    )
    assert chain.definitions.folder == str(Path(__file__).parents[4])


def test_the_instructions_of_a_chain_with_memory_are_a_list_too() -> None:
    with pytest.raises(ValueError, match="instructions is a list, not 'go'"):
        create_memory_chain("c", instructions="go", models=[GPT])
    with pytest.raises(ValueError, match="instructions is a list, not 'go'"):
        PromptChain(GPT, ["a"]).create_memory_chain("c", instructions="go")


def test_equal_models_are_one() -> None:
    assert agent_of(PromptChain([GPT] * 3, ["a", clean, "b"])).models == [GPT]


def test_the_same_chain_has_the_same_definitions() -> None:
    def made() -> PromptChain:
        return PromptChain(GPT, [PromptChain(GPT, ["{input}"]), clean])

    assert made().definitions == made().definitions


def test_chains_within_chains_are_agents_with_their_own_tools() -> None:
    innermost = PromptChain([GPT], ["deep"])
    inner = PromptChain([GPT], ["{input}", innermost])
    inner.register_tool_function(look_up)

    definitions = PromptChain([GPT], ["{input}", inner, inner]).definitions

    assert list(definitions.agents) == ["chain", "chain.2", "chain.2.2", "chain.3", "chain.3.2"]
    assert definitions.agents["chain"].instructions == [
        "{input}",
        NestedStep(agent="chain.2"),
        NestedStep(agent="chain.3"),
    ]
    assert definitions.agents["chain"].tools == []
    assert definitions.agents["chain.2"].tools == ["look_up"]


def test_a_tool_that_is_another_within_is_refused() -> None:
    inner, outer = PromptChain([GPT], ["{input}"]), PromptChain([GPT], ["{input}"])
    inner.register_tool_function(look_up)
    chain = PromptChain([GPT], ["{input}", inner, outer])
    chain.add_tools([{"name": "look_up", "description": "another"}])
    chain.register_tool_function(look_up)

    with pytest.raises(ConfigError, match="tool 'look_up' is one function in a chain and another in a chain within it"):
        _ = chain.definitions


def test_a_partial_is_a_function_with_its_arguments() -> None:
    chain = PromptChain(GPT, ["{input}", partial(partial(shorten), 5)], chainbreakers=[partial(stop, output="x")])

    assert agent_of(chain).instructions[1] == FunctionStep(function=f"{NAME}shorten", args=[5])
    assert agent_of(chain).chainbreakers == [FunctionStep(function=f"{NAME}stop", kwargs={"output": "x"})]
    assert chain.definitions.folder == str(Path(__file__).parents[4])


def test_a_tool_that_is_a_partial_is_refused_as_no_step() -> None:
    with pytest.raises(ConfigError, match=r"only steps and chainbreakers may be a functools\.partial"):
        PromptChain(GPT, [("{input}", [partial(look_up, "x")])])
    with pytest.raises(ConfigError, match=r"only steps and chainbreakers may be a functools\.partial"):
        PromptChain(GPT, ["{input}"]).register_tool_function(partial(look_up, "x"))


def test_a_lambda_is_refused_as_step_and_as_breaker() -> None:
    with pytest.raises(ConfigError, match="a lambda has no name"):
        PromptChain([], [lambda text: text])
    with pytest.raises(ConfigError, match="a lambda has no name"):
        PromptChain(GPT, ["a"], chainbreakers=[lambda step, output: (False, "", None)])


@pytest.mark.parametrize("objective", ["", "  ", None, 3])
def test_an_agentic_step_needs_an_objective(objective: Any) -> None:
    with pytest.raises(ValueError, match="an agentic step needs an objective, which is a text"):
        AgenticStepProcessor(objective)


def test_what_is_wrong_with_an_agentic_step_is_told_in_a_line() -> None:
    with pytest.raises(
        ValueError,
        match=r"^the agentic step 'go': max_internal_steps: Input should be .*; history_mode: Input should be ",
    ):
        AgenticStepProcessor("go", max_internal_steps=0, history_mode="some")
    with pytest.raises(ValueError, match=r"^the agentic step 'go': max_tool_rounds: Input should be a valid integer"):
        AgenticStepProcessor("go", max_tool_rounds=None)  # type: ignore[arg-type]  # as from a caller without types


# Texts in files


def test_a_text_that_names_a_file_is_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "ask.md").write_text("Ask: {input}")
    (tmp_path / "plain").write_text("Plain: {input}")

    chain = PromptChain(
        GPT, ["ask.md", "file: plain", "other.md", ("ask.md", [])], additional_prompt_dirs=[str(tmp_path)]
    )

    assert agent_of(chain).instructions == [
        "Ask: {input}",
        "Plain: {input}",
        "other.md",
        PromptStep(prompt="Ask: {input}", tools=[]),
    ]


def test_the_folders_given_come_before_that_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.touch()
    (tmp_path / "ask.md").write_text("beside")
    (tmp_path / "prompts").mkdir()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)

    assert agent_of(PromptChain(GPT, ["ask.md"])).instructions == ["beside"]
    (tmp_path / "prompts" / "ask.md").write_text("given")
    assert agent_of(PromptChain(GPT, ["ask.md"], additional_prompt_dirs=[str(tmp_path / "prompts")])).instructions == [
        "given"
    ]


# Tools of an instruction


def test_an_instruction_may_have_tools_of_its_own() -> None:
    servers = [{"id": "notes", "command": "notes"}]
    chain = PromptChain(
        GPT,
        [
            ("{input}", [look_up]),
            ("{input}", []),
            ("{input}", ["mcp_notes_length"]),
            AgenticStepProcessor("Find", tools=["look_up"]),
        ],
        mcp_servers=servers,
    )

    assert agent_of(chain).tools == ["look_up", "notes"]
    assert [each.tools for each in agent_of(chain).instructions if isinstance(each, PromptStep | AgenticStep)] == [
        ["look_up"],
        [],
        ["notes.length"],
        ["look_up"],
    ]


def test_an_agentic_step_may_stand_with_its_tools_as_a_text_may() -> None:
    step = AgenticStepProcessor("Find", max_tool_rounds=0, tools=["other"])
    chain = PromptChain(GPT, [(step, [look_up]), "{input}"])

    assert agent_of(chain).instructions[0] == AgenticStep(objective="Find", max_tool_rounds=1, tools=["look_up"])


def test_a_word_is_the_id_of_a_prompt_in_the_folders_given(tmp_path: Path) -> None:
    (tmp_path / "summarize_v1.md").write_text("Sum up: {input}")

    chain = PromptChain(GPT, ["summarize_v1", "extract", "Plain summarize_v1"], additional_prompt_dirs=[str(tmp_path)])

    assert agent_of(chain).instructions == ["Sum up: {input}", "extract", "Plain summarize_v1"]
    with pytest.raises(ValueError, match="the prompt 'summarize_v1:cot': strategies are not available"):
        PromptChain(GPT, ["summarize_v1:cot"], additional_prompt_dirs=[str(tmp_path)])


def test_a_parameter_that_is_not_known_is_a_warning_unless_it_may_be_misspelt(caplog: pytest.LogCaptureFixture) -> None:
    step = AgenticStepProcessor("Find", model_name=GPT, enable_cove=True)
    PromptChain([], [step], enable_mcp_hijacker=True)

    assert [record.getMessage() for record in caplog.records] == [
        "AgenticStepProcessor: the parameter 'enable_cove' is not known, and has no effect",
        "PromptChain: the parameter 'enable_mcp_hijacker' is not known, and has no effect",
    ]
    with pytest.raises(
        TypeError, match="AgenticStepProcessor has no parameter 'max_internal_step'; did you mean 'max_internal_steps'"
    ):
        AgenticStepProcessor("Find", max_internal_step=3)
    with pytest.raises(TypeError, match="PromptChain has no parameter 'chainbreaker'; did you mean 'chainbreakers'"):
        PromptChain([], [step], chainbreaker=[])
    with pytest.raises(TypeError, match="a PromptChain has no circular runs: call process_prompt in a loop"):
        PromptChain([], [step], circular=True)


def test_what_it_was_given_can_be_read() -> None:
    schema = {
        "type": "function",
        "function": {"name": "look_up", "description": "Finds a word.", "parameters": {"type": "object"}},
    }
    chain = PromptChain(GPT, ["Say {input}", clean])
    chain.add_tools([schema])

    assert (chain.models, chain.instructions, chain.tools) == ([GPT], ["Say {input}", clean], [schema])


def test_an_unknown_tool_is_refused_before_anything_runs() -> None:
    chain = PromptChain(GPT, [("{input}", ["lookup"])])
    chain.register_tool_function(look_up)

    with pytest.raises(ConfigError, match=r"there is no tool 'lookup'; did you mean 'look_up'\?"):
        chain.process_prompt("go")


# Running


def test_a_worker_runs_no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IN_WORKER, "1")
    chain = PromptChain([], [clean])

    with pytest.raises(ConfigError, match=r'def main.*\n    \.\.\.  # .*\nif __name__ == "__main__":\n    main'):
        chain.process_prompt("go")
    for client_is_needed, source in (
        (lambda: chain.store_memory("a", 1), "PromptChain"),
        (lambda: ChainBuilder(GPT), "ChainBuilder"),
        (lambda: AgentChain({"a": chain}, {"a": ""}, execution_mode="pipeline").history(), "AgentChain"),
    ):
        with pytest.raises(
            ConfigError, match=rf"^{source}: .* must not run chains or use memory(?s:.)*uses context\.memory"
        ):
            client_is_needed()
    with pytest.raises(ConfigError, match=r"^AgentChain: .* must not run chains"):
        asyncio.run(AgentChain({"a": chain}, {"a": ""}, execution_mode="pipeline").process_input("go"))
    with pytest.raises(ConfigError, match="must not run chains"):
        asyncio.run(chain.process_prompt_async("go"))


def test_the_input_is_a_text() -> None:
    with pytest.raises(ValueError, match="the input of a chain is a text, not 3"):
        PromptChain([], [clean]).process_prompt(3)  # type: ignore[arg-type]


def test_steps_are_there_once_they_are_stored() -> None:
    assert PromptChain([], [clean]).step_outputs == {}
    with pytest.raises(ValueError, match="create the chain with store_steps=True"):
        PromptChain([], [clean]).get_step_output(1)
    with pytest.raises(ValueError, match="there is no step_1: no run has ended with an answer"):
        PromptChain([], [clean], store_steps=True).get_step_output(1)
