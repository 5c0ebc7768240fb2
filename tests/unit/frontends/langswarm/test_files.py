"""Files of one or several pieces, what is read in from others, and what agents and tools say."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config import loading
from cantata_frontends.langswarm.files import is_langswarm
from tests.unit.frontends.langswarm.stage import answer, faults, load


def test_files_of_one_section_each_make_one_configuration(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        agents="agents: [{id: ann, model: m}]",
        tools="tools: [{id: t, url: 'https://tools.example/mcp'}]",
        workflows="workflows: {w: ann -> user}",
    )

    assert answer(loaded, "w") == "ann<hello>"
    assert list(loaded.definitions.tools) == ["t"]
    for path in (tmp_path, tmp_path / "workflows.yaml"):
        assert loading.load(path) == loaded.definitions


def test_files_that_are_nearly_named_as_they_must_be_are_told_as_not_read(tmp_path: Path) -> None:
    for name in ("workflow.yaml", "brokers.yaml", "docker-compose.yml", "crew.yaml"):
        (tmp_path / name).write_text("agents: []")

    found = faults(tmp_path, langswarm="include: crew.yaml\nworkflows: {}")

    assert found == [
        "brokers.yaml: warning: not read: it is about LangSwarm's own process, for whose purposes the fleet has settings",
        "workflow.yaml: warning: not read; did you mean 'workflows.yaml'?",
    ]


def test_a_prompt_that_is_no_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "support.md").write_text("You help.")

    [found] = faults(tmp_path, "agents: [{id: ann, system_prompt: prompts/suport.md}]\nworkflows: {}")

    assert found.endswith(
        "there is no file 'prompts/suport.md' in the configuration's folder; did you mean 'prompts/support.md'?"
    )


def test_a_file_includes_others(tmp_path: Path) -> None:
    (tmp_path / "crew").mkdir()
    (tmp_path / "crew" / "ann.yaml").write_text("agents: [{id: ann, model: m}]")
    (tmp_path / "crew" / "bob.yaml").write_text("agents: {bob: {model: m}}")

    loaded = load(tmp_path, "include: ['crew/*.yaml']\nworkflows: {w: ann -> bob -> user}")

    assert answer(loaded, "w") == "bob<ann<hello>>"


def test_prompts_are_read_from_files_and_variables_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "ann.md").write_text("You are Ann.")
    (tmp_path / "more.txt").write_text("Be brief.")
    ann = "{id: ann, model: 'env:MODEL', agent_type: openai, system_prompt: [ann.md, more.txt]}"
    agents = f"[{ann}, {{id: bob, system_prompt: not there.md}}]"

    loaded = load(tmp_path, f"agents: {agents}\nworkflows: {{w: ann -> bob}}", environment={"MODEL": "gpt-4o"})

    assert loaded.definitions.agents["ann"].model == "openai/gpt-4o"
    assert loaded.definitions.agents["ann"].system == "You are Ann.\n\n---\n\nBe brief."
    assert loaded.definitions.agents["bob"].system == "not there.md"


def test_what_an_agent_says_of_itself_has_its_effect(tmp_path: Path) -> None:
    text = """
memory: {enabled: true}
agents:
  ann: {name: Ann, provider: anthropic, model: claude-x, behavior: coding, system_prompt: Also sing., streaming: true,
        response_mode: streaming, max_tokens: 10, temperature: 0.5, max_tool_iterations: 7, timeout: 9}
  bob: {model: local/smollm2, memory: false}
workflows: {}
"""

    agents = load(tmp_path, text).definitions.agents

    ann = agents["ann"]
    assert (ann.description, ann.model, ann.dialect) == ("Ann", "anthropic/claude-x", "json")
    assert (ann.stream, ann.response_mode) == (True, "streaming")
    assert (ann.params, ann.max_tool_rounds, ann.timeout_s) == ({"max_tokens": 10, "temperature": 0.5}, 7, 9)
    assert str(ann.system).endswith("\n\nAlso sing.")
    assert (ann.history.enabled, agents["bob"].history.enabled) == (True, False)


def test_a_tool_is_a_function_methods_of_a_module_or_a_server(tmp_path: Path) -> None:
    (tmp_path / "disk.py").write_text("def read(path, root): return path\ndef write(path, text, root): return path\n")
    text = """
agents: [{id: ann, model: m, tools: [disk, web, one]}]
tools:
  - {id: disk, type: mcpfilesystem, module: disk, methods: [{read: Reads a file.}, write], settings: {root: /srv}, local_mode: true}
  - {id: web, type: mcpremote, url: 'https://tools.example/mcp', headers: {Authorization: 'env:TOKEN'}}
  - {id: run, settings: {command: python, args: [server.py], env: [HOME]}}
  - {id: one, type: function, metadata: {function: disk.read, description: Reads., parameters: {path: where it is}}, timeout: 3}
workflows: {w: [{id: r, tool: disk, method: read, parameters: {path: x}}]}
"""

    definitions = load(tmp_path, text).definitions
    tools = definitions.tools

    assert definitions.agents["ann"].tools == ["disk.read", "disk.write", "web", "one"]
    assert (tools["disk.read"].function, tools["disk.read"].description, tools["disk.read"].values) == (
        "disk:read",
        "Reads a file.",
        {"root": "/srv"},
    )
    assert tools["web"].mcp is not None
    assert tools["web"].mcp.headers == {"Authorization": "TOKEN"}
    assert tools["run"].mcp is not None
    assert (tools["run"].mcp.command, tools["run"].mcp.env) == (["python", "server.py"], ["HOME"])
    assert tools["one"].parameters == {"type": "object", "properties": {"path": {"description": "where it is"}}}
    assert tools["one"].timeout_s == 3
    assert definitions.chains["w"].nodes[0].name == "disk.read"


def test_what_a_workflow_says_of_itself_has_its_effect(tmp_path: Path) -> None:
    text = """
agents: [{id: ann, model: m}]
workflows:
  w:
    name: Answers.
    timeout: 120
    retry: 2
    execution_mode: streaming
    input_schema: {type: object, properties: {tone: {type: string, default: dry}}}
    output_schema: {type: object, required: [text]}
    steps: [{id: a, agent: ann, input: '${tone}', timeout: 5, output: {to: user}}]
"""

    definitions = load(tmp_path, text).definitions

    [node, _] = definitions.chains["w"].nodes
    assert (definitions.chains["w"].timeout_s, definitions.chains["w"].description) == (120, "Answers.")
    assert (node.retry, node.timeout, node.name) == (2, 5, "ann@w.a")
    agent = definitions.agents["ann@w.a"]
    assert agent.stream
    assert agent.output is not None
    assert agent.output.json_schema == {"type": "object", "required": ["text"]}


def test_no_secret_is_kept_with_a_run(tmp_path: Path) -> None:
    text = "tools: [{id: t, url: 'https://a', headers: {X-Key: 'env:KEY'}}]\nagents: [{id: a, model: m}]\nworkflows: {}"

    loaded = load(tmp_path, text, environment={"KEY": "secret-value"})

    assert "secret-value" not in loaded.definitions.model_dump_json()


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        ({"workflows": {}}, True),
        ({"agents": [{"id": "x"}]}, True),
        ({"tools": []}, True),
        ({"version": "1.0", "agents": {}}, True),
        ({"version": 1, "agents": {}}, False),
        ({"nodes": []}, False),
        (None, False),
    ],
)
def test_langswarms_files_are_known_by_what_they_hold(data: object, is_one: bool) -> None:
    assert is_langswarm(data) == is_one  # type: ignore[arg-type]


def test_what_means_nothing_here_is_a_warning_on_its_line(tmp_path: Path) -> None:
    warnings = load(
        tmp_path, "observability: {}\nworkflows: {}\nserver: {}\nmemory: {enabled: true, backend: sqlite}"
    ).faults

    assert [(warning.line, warning.where, warning.is_warning) for warning in warnings] == [
        (1, "observability", True),
        (3, "server", True),
        (4, "memory.backend", True),
    ]


def test_warnings_are_told_beside_faults(tmp_path: Path) -> None:
    assert faults(tmp_path, "server: {}\nagnets: []\nworkflows: {}") == [
        "line 1: server: warning: no effect: it is about LangSwarm's own process, for whose purposes the fleet has settings",
        "line 2: agnets: unknown key 'agnets'; did you mean 'agents'?",
    ]


@pytest.mark.parametrize(
    ("agent", "system"),
    [
        ("{instructions: Be brief.}", "Be brief."),
        ("{system_prompt: Be kind., system_prompt_additions: Be brief.}", "Be kind.\n\nBe brief."),
        ("{system_prompt_file: ann.md}", "You are Ann."),
        ("{system_prompt: '${PROMPT}'}", "Be exact."),
        ("{system_prompt: '${PROMPT_2:Be quick.}'}", "Be quick."),
        ("{system_prompt: 'Never ${PROMPT}'}", "Never ${PROMPT}"),
    ],
)
def test_a_prompt_has_many_names(tmp_path: Path, agent: str, system: str) -> None:
    (tmp_path / "ann.md").write_text("You are Ann.")

    loaded = load(tmp_path, f"agents: {{ann: {agent}}}\nworkflows: {{}}", environment={"PROMPT": "Be exact."})

    assert loaded.definitions.agents["ann"].system == system


@pytest.mark.parametrize(
    ("memory", "is_on"),
    [
        ("true", True),
        ("false", False),
        ("production", True),
        ("none", False),
        ("{backend: sqlite}", True),
        ("{enabled: false}", False),
    ],
)
def test_memory_is_on_or_off(tmp_path: Path, memory: str, is_on: bool) -> None:
    text = f"agents: {{ann: {{memory: {memory}}}, bob: {{memory_enabled: true}}, cleo: {{}}}}\nmemory: {memory}\nworkflows: {{}}"

    agents = load(tmp_path, text).definitions.agents

    assert [agents[name].history.enabled for name in ("ann", "bob", "cleo")] == [is_on, True, is_on]


def test_agents_and_tools_of_a_list_may_have_a_name_in_place_of_an_id(tmp_path: Path) -> None:
    definitions = load(
        tmp_path, "agents: [{name: ann}, bob]\ntools: [{identifier: t, function: json.dumps}]\nworkflows: {}"
    ).definitions

    assert (list(definitions.agents), list(definitions.tools)) == (["ann", "bob"], ["t"])


def test_a_format_that_models_know_is_asked_for(tmp_path: Path) -> None:
    agents = load(
        tmp_path, "agents: {ann: {response_format: json, streaming_enabled: true}}\nworkflows: {}"
    ).definitions.agents

    assert agents["ann"].params == {"response_format": {"type": "json_object"}}
    assert agents["ann"].stream


def test_a_tool_may_stand_in_the_list_of_an_agent(tmp_path: Path) -> None:
    definitions = load(
        tmp_path, "agents: [{id: ann, tools: [{id: t, function: json.dumps}]}]\nworkflows: {}"
    ).definitions

    assert definitions.agents["ann"].tools == ["t"]
    assert definitions.tools["t"].function == "json:dumps"


def test_a_server_is_called_again_if_the_file_says_so(tmp_path: Path) -> None:
    tools = load(
        tmp_path, "tools: [{id: t, mcp_url: 'https://a', retry_count: 2, headers: {x-key: '${KEY}'}}]\nworkflows: {}"
    ).definitions.tools

    assert tools["t"].retries == 2
    assert tools["t"].mcp is not None
    assert tools["t"].mcp.headers == {"x-key": "KEY"}


def test_the_type_of_an_agent_is_its_provider(tmp_path: Path) -> None:
    agents = load(tmp_path, "agents: [{id: ann, type: google, model: gemini-pro}]\nworkflows: {}").definitions.agents

    assert agents["ann"].model == "gemini/gemini-pro"


def test_settings_of_a_tool_may_stand_beside_its_function(tmp_path: Path) -> None:
    (tmp_path / "disk.py").write_text("def read(path, root_path, limit): return path\n")

    tools = load(
        tmp_path, "tools: [{id: t, function: disk.read, root_path: /srv, settings: {limit: 3}}]\nworkflows: {}"
    ).definitions.tools

    assert tools["t"].values == {"limit": 3, "root_path": "/srv"}


def test_an_agent_goes_without_a_program_of_langswarms_own_and_a_step_that_calls_it_is_refused(tmp_path: Path) -> None:
    steps = "[{tool: t}, {tool: t, method: ask, params: {x: 1}}, {tool: c}]"
    tools = "[{id: t, type: mcpforms}, {id: c, module: theirs, class: Theirs}]"
    text = f"agents: [{{id: ann, tools: [t]}}]\ntools: {tools}\nworkflows: {{w: ann -> user, v: {steps}}}"

    loaded = load(tmp_path, text)

    assert loaded.definitions.agents["ann"].tools == []
    assert answer(loaded, "w") == "ann<hello>"
    assert len(loaded.definitions.refused["v"]) == 3
    assert "let the tool 'clarify' or a step with 'approval' ask a person" in loaded.definitions.refused["v"][1]
