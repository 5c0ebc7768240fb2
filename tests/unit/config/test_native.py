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


@pytest.mark.parametrize("text", ["see merge.txt", "merge.text", "Profile: x", f"{'x' * 5000}.md", "a\nmerge.txt", "prompts", "file:", ""])
def test_a_text_that_names_no_file_stays_a_text(folder: Path, text: str) -> None:
    definitions = load_definitions(Document({"agents": {"a": {"system": text}}}), folder=folder)

    assert definitions.agents["a"].system == text


def test_a_synthesizer_may_have_its_prompt_in_a_file(folder: Path) -> None:
    definitions = load("{agents: {a: {}}, teams: {t: {mode: broadcast, agents: [a], synthesizer: {prompt: merge.txt}}}}", folder)

    synthesizer = definitions.teams["t"].synthesizer
    assert synthesizer
    assert synthesizer.prompt == "Merge {agent_responses}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("agents: {a: {system: 'file: gone.md'}}", "agents.a.system: the file '{folder}/gone.md' does not exist"),
        ("agents: {a: {instructions: [{file: gone.md}]}}", "agents.a.instructions[0]: the file '{folder}/gone.md' does not exist"),
        ("agents: {a: {system: bytes.md}}", "agents.a.system: the file '{folder}/bytes.md' is not UTF-8 text"),
        ("agents: {a: {system: {file: prompts}}}", "agents.a.system: the file '{folder}/prompts' cannot be read: Is a directory"),
        (
            "{agents: {a: {}}, teams: {t: {mode: broadcast, agents: [a], synthesizer: {prompt: {file: gone.md}}}}}",
            "teams.t.synthesizer.prompt: the file '{folder}/gone.md' does not exist",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_fault(folder: Path, text: str, fault: str) -> None:
    assert faults_of(text, folder) == [f"line 1: {fault.format(folder=folder)}"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("agents: {analyst: {modle: small}}", "agents.analyst.modle: unknown key 'modle'; did you mean 'model'?"),
        ("agnets: {}", "agnets: unknown key 'agnets'; did you mean 'agents'?"),
        (
            "agents: {a: {instructions: [{function: 'json:loads', arg: [A]}]}}",
            "agents.a.instructions[0].arg: unknown key 'arg'; did you mean 'args'?",
        ),
        ("agents: {a: {instructions: [{prompt: x}]}}", "agents.a.instructions[0]: 'tools' is missing"),
        ("agents: {a: {instructions: [{objective: 3}]}}", "agents.a.instructions[0].objective: expected a text, found 3; put it in quotes"),
        ("folder: src", "folder: unknown key 'folder'; functions are imported from the folder of the file"),
        ("version: 2", "version: expected 1, found 2"),
        ("[]", "expected a mapping, found an empty list"),
        ("", "it is empty"),
        (
            "{agents: {writer: {}}, teams: {t: {mode: pipeline, agents: [writer, wirter]}}}",
            "teams.t.agents[1]: there is no agent 'wirter'; did you mean 'writer'?",
        ),
        (
            "{agents: {a: {}, b: {}}, teams: {t: {mode: pipeline, agents: [zzz]}}}",
            "teams.t.agents[0]: there is no agent 'zzz'; known are 'a', 'b'",
        ),
        ("defaults: {team: desk}", "defaults.team: there is no team 'desk'"),
        (
            "{agents: {a: {instructions: [{chain: c}]}}, chains: {c: {entry_node: n, nodes: [{node_id: n, kind: agent, name: a}]}}}",
            "agents.a.instructions[0].chain: agent 'a' would call itself through 'c' without end",
        ),
        ("{agents: {desk: {}}, defaults: {agent: dsek}}", "defaults.agent: there is no agent 'dsek'; did you mean 'desk'?"),
        (
            "{agents: {a: {}}, teams: {t: {mode: broadcast, agents: [a], synthesizer: {prompt: 'Merge {agent_response}'}}}}",
            "teams.t.synthesizer.prompt: the prompt has no '{agent_responses}', so it would not contain the agents' answers",
        ),
        (
            "{agents: {a: {}}, teams: {t: {mode: pipeline, agents: [a], deadline_s: 3}}}",
            "teams.t: 'deadline_s' belongs to mode 'broadcast', not 'pipeline'",
        ),
        (
            "{agents: {a: {model: ' '}}}",
            "agents.a.model: the model's name is empty; write one, such as 'openai/gpt-4o-mini', or leave the key out",
        ),
        (
            "{models: {m: {model: openai/gpt-4o, fallbacks: ['']}}}",
            "models.m.fallbacks[0]: the model's name is empty; write one, such as 'openai/gpt-4o-mini', or leave the key out",
        ),
        ("agents: {'': {}}", "agents.'': the name is empty"),
        ("agents: {'@start': {}}", "agents.@start: the name begins with '@', which is reserved for internal steps; rename it"),
        (
            "tools: {t: {function: 'text_tools:word_cuont'}}",
            "tools.t.function: function 'word_cuont' is not in text_tools.py; did you mean 'word_count'?",
        ),
        (
            "agents: {a: {chainbreakers: [{function: 'text_tools:word_cuont', args: [2]}]}}",
            "agents.a.chainbreakers[0].function: function 'word_cuont' is not in text_tools.py; did you mean 'word_count'?",
        ),
        ("skills: {t: {function: 'zzz:f'}}", "skills.t.function: module 'zzz' is not in {folder} nor installed"),
        (
            "tools: {t: {function: word_count}}",
            "tools.t.function: expected module:name, importable from the configuration's folder; found 'word_count'",
        ),
        (
            "tools: {t: {function: 'text_tools:word_count', queue: 'gpu:large'}}",
            "tools.t.queue: a queue's name has letters from A to Z, digits and . _ -, at most 100 of them; found 'gpu:large'",
        ),
        (
            f"agents: {{a: {{queue: {'q' * 101}}}}}",
            "agents.a.queue: a queue's name has letters from A to Z, digits and . _ -, at most 100 of them; found 101 characters",
        ),
        ("tools: {t: {}}", "tools.t: a tool is either a 'function', a 'task' or an 'mcp' server, or it 'asks' people"),
        (
            "tools: {t: {function: 'text_tools:word_count', mcp: {command: [x]}}}",
            "tools.t: a tool is either a 'function', a 'task' or an 'mcp' server, or it 'asks' people",
        ),
        ("tools: {t: {mcp: {}}}", "tools.t.mcp: an MCP server is either a 'command' or a 'url'"),
        ("tools: {t: {mcp: {command: [x], url: 'http://localhost'}}}", "tools.t.mcp: an MCP server is either a 'command' or a 'url'"),
        ("tools: {t: {mcp: {comand: [x]}}}", "tools.t.mcp.comand: unknown key 'comand'; did you mean 'command'?"),
        ("tools: {t: {mcp: {command: [x], headers: {A: B}}}}", "tools.t.mcp: 'headers' belongs to a server with 'url'"),
        ("tools: {t: {mcp: {url: 'http://localhost', env: [A]}}}", "tools.t.mcp: 'env' belongs to a server with 'command'"),
        (
            "tools: {t: {mcp: {url: 'http://me:hunter2@localhost'}}}",
            "tools.t.mcp: 'url' must be http:// or https:// and without a password, which belongs in 'headers'",
        ),
        (
            "tools: {t: {mcp: {url: 'https://localhost', headers: {Authorization: Bearer hunter2}}}}",
            "tools.t.mcp: 'env' and 'headers' name environment variables; the values themselves are set in the workers' environment",
        ),
        (
            "{agents: {desk: {}}, teams: {desk: {mode: pipeline, agents: [desk]}}}",
            "teams.desk: 'desk' is also in 'agents' (line 1); a node of kind 'skill' may mean either: rename one",
        ),
        (
            "models: {m: {model: opnai/gpt-4o-mini}}",
            "models.m.model: LiteLLM knows no provider 'opnai'; did you mean 'openai/gpt-4o-mini'?",
        ),
        (
            "agents: {a: {model: x-y-z-corp/big}}",
            "agents.a.model: LiteLLM knows no provider 'x-y-z-corp'; a server of your own is 'openai/<model>' under 'models', "
            "with params.api_base",
        ),
    ],
)
def test_a_fault_is_told_with_its_place(folder: Path, text: str, fault: str) -> None:
    assert faults_of(text, folder) == [f"line 1: {fault.replace('{folder}', str(folder))}"]


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


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "agents:\n  a:\n    output:\n      schema:\n        items:\n          $ref: http://127.0.0.1:9/x\n",
            "line 6: agents.a.output.schema.items.$ref: this is not a valid JSON Schema: 'http://127.0.0.1:9/x' is outside of the schema",
        ),
        (
            "tools:\n  t:\n    function: m:f\n    parameters:\n      type: object\n      properties:\n        x: {pattern: (}\n",
            "line 7: tools.t.parameters.properties.x.pattern: this is not a valid JSON Schema: '(' is not a pattern",
        ),
        (
            "tools:\n  t:\n    asks:\n      answer_schema: {type: strin}\n    parameters: {type: object}\n",
            "line 4: tools.t.asks.answer_schema.type: this is not a valid JSON Schema: 'strin' is not valid",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_a_fault_with_its_line(folder: Path, text: str, fault: str) -> None:
    (folder / "m.py").write_text("def f(x): ...\n")

    (found,) = faults_of(text, folder)
    assert found.startswith(fault)


ROUTER = "agents: {a: {description: A}, b: {description: B}}\nteams:\n  t:\n    mode: router\n    agents: [a, b]\n"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("    default_agent: c\n", "line 3: teams.t: default_agent: 'c' is not an agent of the team, which has 'a', 'b'"),
        ("    rules: [{match: x, agent: c}]\n", "line 3: teams.t: rules[0]: 'c' is not an agent of the team, which has 'a', 'b'"),
        ("    rules: [{match: x}]\n", "line 6: teams.t.rules[0]: a rule with 'match' names the 'agent' that it chooses"),
        ("    rules: [{agent: a}]\n", "line 6: teams.t.rules[0]: a rule is either a 'match' or a 'function'"),
        (
            "    rules: [{match: '(', agent: a}]\n",
            "line 6: teams.t.rules[0]: 'match' is not a regular expression: missing ) at position 1",
        ),
        (
            "    router: {decision_prompt_template: 'whom?'}\n",
            "line 6: teams.t.router.decision_prompt_template: the template has no '{user_input}', so it would not contain the request",
        ),
        (
            "    router: {instructions: ['{input}']}\n",
            "line 6: teams.t.router: 'instructions' is [null, text]: the text is what the model gets with the prompt, such as '{input}'",
        ),
        ("    synthesizer: {prompt: '{agent_responses}'}\n", "line 3: teams.t: 'synthesizer' belongs to mode 'broadcast', not 'router'"),
        (
            "    strategy: static_plan\n    rules: [{match: x, agent: a}]\n",
            "line 3: teams.t: 'rules' choose one agent; they do not fit the strategy 'static_plan'",
        ),
    ],
)
def test_a_fault_of_a_router_is_told_with_its_place(options: str, fault: str) -> None:
    assert faults_of(ROUTER + options) == [fault]


def test_a_router_that_is_a_model_must_know_what_agents_are_good_at() -> None:
    teams = "\nteams: {t: {mode: router, agents: [a, b]%s}}"
    nameless = "agents: {a: {}, b: {description: B}}"
    assert faults_of(nameless + teams % "") == [
        "line 2: teams.t.agents[0]: agent 'a' has no description, so the router cannot know what it is good at"
    ]
    assert load(nameless + teams % ", default_agent: a, rules: [{match: x, agent: b}]").teams["t"].default_agent == "a"


def test_both_spellings_of_round_robin_are_read() -> None:
    modes = [
        load(f"agents: {{a: {{}}}}\nteams: {{t: {{mode: {mode}, agents: [a]}}}}").teams["t"].mode for mode in ("round_robin", "round-robin")
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
                st.sampled_from(["agents", "teams", "tools", "a", "mode", "function", "synthesizer", "prompt", "file"]), values
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
