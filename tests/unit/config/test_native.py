"""Our own configuration files: what they give, and each fault they may have."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.config.documents import Document, parse
from cantata.config.native import load_definitions
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions
from cantata.values import JsonValue

WHOLE = """\
version: 1
models:
  small: {model: openai/gpt-4o-mini, params: {temperature: 0}}
tools:
  word_count: {function: "text_tools:word_count", cheap: yes}
skills:
  json-parser: {function: "json:loads"}
commands:
  list: {command: [ls, -l]}
agents:
  analyst:
    description: Finds the facts in a text.
    model: small
    system: You are careful.
    instructions: ["List the facts: {input}", "Check: {input}"]
    examples: [{input: a, output: b}]
    output: {schema: {type: object}}
  critic: {system: prompts/critic.md, instructions: [file: prompts/critic.md, "file: prompts/critic.md", missing.md]}
teams:
  desk:
    mode: broadcast
    agents: [analyst, critic]
    min_responses: 1
    synthesizer: {model: small, prompt: "Merge for '{user_input}': {agent_responses}"}
  row: {mode: pipeline, agents: [analyst, critic, analyst]}
chains:
  report: {entry_node: read, nodes: [{node_id: read, kind: tool, name: word_count}]}
defaults: {model: small, team: desk, timeout_s: 30}
limits: {max_nodes: 5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text_tools.py").write_text("def word_count(text): ...")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "critic.md").write_text("Find what is wrong: {input}\n")
    (tmp_path / "merge.txt").write_text("Merge {agent_responses}")
    (tmp_path / "bytes.md").write_bytes(b"\xff\xfe")
    return tmp_path


def load(text: str, folder: Path | None = None) -> Definitions:
    return load_definitions(parse(text), folder=folder)


def faults_of(text: str, folder: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, folder)
    return [str(fault) for fault in caught.value.faults]


def test_a_whole_configuration_loads(folder: Path) -> None:
    definitions = load(WHOLE, folder)

    assert definitions.folder == str(folder)
    assert definitions.model_of("small").params == {"temperature": 0}
    assert definitions.tools["word_count"].cheap is True
    assert definitions.commands["list"].command == ["ls", "-l"]
    assert definitions.teams["row"].agents == ["analyst", "critic", "analyst"]
    assert definitions.chains["report"].nodes[0].name == "word_count"
    assert definitions.defaults.team == "desk"


def test_text_files_are_read_in_where_a_text_names_them(folder: Path) -> None:
    critic = load(WHOLE, folder).agents["critic"]

    text = "Find what is wrong: {input}\n"
    assert critic.system == text
    assert critic.instructions == [text, text, "missing.md"]


@pytest.mark.parametrize(
    "text", ["see merge.txt", "merge.text", "Profile: x", f"{'x' * 5000}.md", "a\nmerge.txt", "prompts", "file:", ""]
)
def test_a_text_that_names_no_file_stays_a_text(folder: Path, text: str) -> None:
    definitions = load_definitions(Document({"agents": {"a": {"system": text}}}), folder=folder)

    assert definitions.agents["a"].system == text


def test_a_synthesizer_may_have_its_prompt_in_a_file(folder: Path) -> None:
    definitions = load(
        "{agents: {a: {}}, teams: {t: {mode: broadcast, agents: [a], synthesizer: {prompt: merge.txt}}}}", folder
    )

    synthesizer = definitions.teams["t"].synthesizer
    assert synthesizer
    assert synthesizer.prompt == "Merge {agent_responses}"


@pytest.mark.parametrize(
    "text",
    [
        "models: {m: {model: openai/gpt-4o-mini}, n: {model: gpt-4o}, o: {model: local/smollm2}}",
        "models: {m: {model: corp/big, params: {api_base: 'http://localhost/v1'}}}",
        "models: {corp/big: {model: openai/big}}\nagents: {a: {model: corp/big}}",
        "models: {m: {model: replicate/meta/meta-llama-3-8b}}",
    ],
)
def test_a_model_of_a_known_provider_or_of_a_server_of_ones_own_is_sound(folder: Path, text: str) -> None:
    load_definitions(parse(text), folder=folder)


def test_the_kinds_of_nodes_are_told_with_the_faults_of_the_form(folder: Path) -> None:
    assert faults_of("agnets: {}\nchains: {c: {entry_node: a, nodes: [{node_id: a, kind: tol}]}}", folder) == [
        "line 1: agnets: unknown key 'agnets'; did you mean 'agents'?",
        "line 2: chains.c.nodes[0] 'a'.kind: expected 'tool', 'skill', 'agent', 'chain', 'workflow', "
        "'proc', 'branch', 'map' or 'wait', found 'tol'; "
        "did you mean 'tool'?",
    ]


def test_a_router_that_is_a_model_must_know_what_agents_are_good_at() -> None:
    teams = "\nteams: {t: {mode: router, agents: [a, b]%s}}"
    nameless = "agents: {a: {}, b: {description: B}}"
    assert faults_of(nameless + teams % "") == [
        "line 2: teams.t.agents[0]: agent 'a' has no description, so the router cannot know what it is good at"
    ]
    assert load(nameless + teams % ", default_agent: a, rules: [{match: x, agent: b}]").teams["t"].default_agent == "a"


def test_both_spellings_of_round_robin_are_read() -> None:
    modes = [
        load(f"agents: {{a: {{}}}}\nteams: {{t: {{mode: {mode}, agents: [a]}}}}").teams["t"].mode
        for mode in ("round_robin", "round-robin")
    ]
    assert modes == ["round_robin", "round_robin"]


def test_an_agent_may_have_workflows_among_its_tools(folder: Path) -> None:
    text = "workflows: {desk: {function: 'text_tools:word_count'}}\nagents: {a: {model: openai/gpt-4o-mini, tools: [desk]}}\n"

    assert load(text, folder).agents["a"].tools == ["desk"]
    assert "there is no tool 'dsk'; did you mean 'desk'?" in faults_of(text.replace("[desk]", "[dsk]"), folder)[0]


def test_a_tool_may_share_its_name_with_an_agent(folder: Path) -> None:
    definitions = load("{tools: {words: {function: 'text_tools:word_count'}}, agents: {words: {}}}", folder)

    assert definitions.tools.keys() == definitions.agents.keys()


def test_all_faults_are_told_together_in_the_order_of_their_lines(folder: Path) -> None:
    text = """\
agnets: {}
agents:
  a: {system: "file: gone.md", modle: x}
  b: 7
teams:
  t: {mode: pipelin, agents: [c]}
  u: {mode: pipeline}
tools:
  word: {function: "text_tools:wrod_count"}
defaults: {team: v}
"""
    faults = faults_of(text, folder)

    assert [fault.split(": ")[:2] for fault in faults] == [
        ["line 1", "agnets"],
        ["line 3", "agents.a.system"],
        ["line 3", "agents.a.modle"],
        ["line 4", "agents.b"],
        ["line 6", "teams.t.mode"],
        ["line 6", "teams.t.agents[0]"],
        ["line 7", "teams.u"],
        ["line 9", "tools.word.function"],
        ["line 10", "defaults.team"],
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda values: (
            st.lists(values, max_size=3)
            | st.dictionaries(
                st.sampled_from(["agents", "teams", "tools", "a", "mode", "function", "synthesizer", "prompt", "file"]),
                values,
            )
        ),
        max_leaves=20,
    )
)
def test_any_data_are_loaded_or_refused(data: JsonValue) -> None:
    with suppress(ConfigError):
        assert load_definitions(Document(data))


@pytest.mark.parametrize(("more", "queue"), [("", "agents"), (", queue: gpu", "gpu"), (", queue: tools", "tools")])
def test_a_server_s_calls_wait_among_the_agents_unless_it_says_otherwise(more: str, queue: str) -> None:
    definitions = load(f"tools: {{files: {{mcp: {{command: [my-server]}}{more}}}}}")

    assert definitions.tools["files"].queue == queue
    assert Definitions.model_validate_json(definitions.model_dump_json(exclude_defaults=True)) == definitions
