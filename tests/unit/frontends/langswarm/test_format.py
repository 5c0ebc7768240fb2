"""Every fault of a file is told at once, with its line, its step and the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.errors import ConfigError
from cantata.flows.turns import turn_plan
from cantata.flows.wire import TurnRequest
from tests.unit.frontends.langswarm.stage import AGENTS, answer, faults, load


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("{id: a, agent: ann, output: {to: useer}}", "steps[0] 'a'.output.to: there is no step 'useer'; did you mean 'user'?"),
        ("{id: a, agent: anne}", "steps[0] 'a'.agent: there is no agent 'anne'; did you mean 'ann'?"),
        ("{id: a, agnet: ann}", "steps[0] 'a': the step does nothing; it needs one of"),
        ("{id: a, agnet: ann}", "(unknown key 'agnet'; did you mean 'agent'?)"),
        ("{id: a, agent: ann, inptu: x}", "steps[0] 'a'.inptu: unknown key 'inptu'; did you mean 'input'?"),
        ("{id: a, type: navigation, navigation: {}}", "the step names no agent"),
        ("{id: a, agent: ann, function: f}", "a step does one thing, not 'function' and 'agent'"),
        ("{id: a, type: agnet, agent: ann}", "there is no type 'agnet'; did you mean 'agent'?"),
        ("{id: a, no_mcp: {tools: []}}", "'no_mcp' needs an 'agent'"),
        ("{id: a, agent: ann, no_mcp: {}}", "'no_mcp' needs 'tools'"),
        ("{id: a, agent: ann, no_mcp: {tools: [clarfy]}}", "there is no tool 'clarfy'; did you mean 'clarify'?"),
        ("{id: a, agent: ann, input: '${b.x}'}", "steps[0] 'a'.input: ${b.x}: there is no name 'b'"),
        ("{id: a, agent: ann, input: {x: ['${b}']}}", "steps[0] 'a'.input.x[0]: ${b}: there is no name 'b'"),
        ("{id: a, agent: ann, condition: '${user_input} ='}", "steps[0] 'a'.condition: the condition '${user_input} =' cannot be read"),
        ("{id: a, agent: ann, depends_on: [c]}", "steps[0] 'a'.depends_on[0]: there is no step 'c'"),
        ("{id: a, agent: ann, depends_on: a}", "the step would wait for itself"),
        ("{id: a, agent: ann, on_error: retyr}", "steps[0] 'a'.on_error: there is no step 'retyr'"),
        ("{id: a, agent: ann, rollback_to: b}, {id: b, agent: bob}", "step 'b' comes later; a rollback goes to an earlier step"),
        ("{id: a, agent: ann, retry: -1}", "steps[0] 'a'.retry: expected a whole number of at least 0, found -1"),
        ("{id: a, agent: ann, timeout: soon}", "steps[0] 'a'.timeout: expected a number of at least 0.001, found 'soon'"),
        ("{id: a, agent: ann, output: {to: {generate_steps: true, limit: 3}}}", "generated steps are not available"),
        ("{id: a, agent: ann, output: {to: {invoke: x}}}", "output.to.invoke: there is no workflow 'x'"),
        ("{id: a, agent: ann, output: {to: {step: a, await: false}}}", "the workflow always waits for it"),
        ("{id: a, agent: ann, output: {to: {conditon: {}}}}", "expected one of the keys 'step', 'invoke'"),
        ("{id: a, agent: ann, output: {to: {condition: {if: x, than: user}}}}", "unknown key 'than'; did you mean 'then'?"),
        ("{id: a, agent: ann, output: {to: {condition: {switch: '${a}'}}}}", "'switch' needs 'cases'"),
        (
            "{id: a, agent: ann, output: {to: {condition: {switch: '${a}', cases: {'true': user, 'True': user}}}}}",
            "the case 'True' repeats one above",
        ),
        ("{id: a, agent: ann, on_error: fail, continue_on_error: true}", "'continue_on_error' and 'on_error' contradict each other"),
        ("{id: a, agent: ann, on_error: skip, continue_on_error: false}", "'continue_on_error' and 'on_error' contradict each other"),
        ("{id: a, invoke_workflow: v}", "there is no workflow 'v'; known are 'w'"),
        ("{id: a, loop: {for_each: '${user_input}'}}", "a loop needs a 'body'"),
        ("{id: a, loop: {for_each: '${user_input}', body: x}}", "steps[0] 'a'.loop.body: there is no step 'x'"),
        ("{id: a, loop: {body: b}}, {id: b, agent: bob}", "a loop needs 'for_each'"),
        (
            "{id: a, loop: {for_each: [1], body: b}}, {id: b, agent: bob, output: {to: user}}",
            "'output' has no effect on the body of a loop",
        ),
        ("{id: a, condition: 'true', true_step: b}", "steps[0] 'a'.true_step: there is no step 'b'"),
        ("{id: a, true_step: user}", "need a 'condition'"),
        ("{id: a, tool: t}", "steps[0] 'a'.tool: there is no tool 't'"),
        ("{id: a, function: nowhere.f}", "module 'nowhere' is not in"),
        ("{id: a, function: f}", "function 'f' is in no module beside the file"),
        ("{id: a, function: f, script: 'x = 1'}", "the script does not define the function 'f'"),
        ("{id: a, agent: ann, is_fan_in: true, fan_key: k}", "no step has its 'fan_key'"),
        (
            "{id: a, agent: ann, navigation: {mode: weighted, available_steps: [a]}}",
            "there is no mode 'weighted'; random choices are not available",
        ),
        ("{id: a, agent: ann, navigation: {available_steps: [b]}}", "navigation.available_steps[0]: there is no step 'b'"),
        ("{id: a, agent: ann, navigation: {}}", "name the steps to choose among"),
        ("{id: 'a/b', agent: ann}", "the id 'a/b' contains '/'"),
        ("{id: a, agent: ann}, {id: a, agent: bob}", "the id 'a' is also the id of the step on line"),
        ("{id: a, agent: ann, output: {to: user}}, {id: b, agent: bob, input: x}", "no step leads to 'b'"),
        ("{id: a, agent: ann, output: {to: b}}, {id: b, agent: bob, output: {to: a}}", "steps 'a' → 'b' → 'a' form a cycle"),
        ("{id: a, agent: ann, input: '${b}'}, {id: b, agent: bob}", "steps 'a' → 'b' → 'a' form a cycle"),
        ("text, {id: a, agent: ann}", "expected a step"),
        ("{id: a, agent: ann, input: '${input} {{ context.user_input }}'}", "'{{ context.user_input }}' stands beside ${...}"),
        ("{id: a, agent: ann, input: 'x ${user_input'}", "'${user_input' is not closed"),
        ("{id: a, agent: ann, input: {'${user_input}': 1}}", "has a reference; only values may have references"),
        ("{id: a, agent: ann, input: one, inputs: two}", "'inputs' means the same as 'input'; write one of them"),
        ("{id: a, agent: ann, agent_id: bob}", "'agent_id' means the same as 'agent'"),
        ("{id: a, agent: ann, args: {x: 1}}", "'x' has no effect on a step with an agent"),
        ("{id: a, agent: ann, timeout: inf}", "expected a number of at least 0.001, found 'inf'"),
        ("{id: a, agent: ann, retry: '1e999'}", "expected a whole number of at least 0"),
        ("{id: a, agent: ann, output_key: b}, {id: b, agent: bob}", "'b' is the id of a step; give the output another name"),
        ("{id: a, condition: '${user_input}', true_step: user}", "a condition leads to steps, not to 'user'"),
        ("{id: user, agent: ann}", "the id 'user' means the user"),
        ("{id: a, agent: ann, output: {to: {condition: {switch: a.kind, cases: {x: user}}}}}", "'a.kind' is the same in every run"),
        ("{id: a, agent: ann, output: {to: {condition: {exists: a.kind, then: user}}}}", "'a.kind' is the same in every run"),
        ("{id: a, function: f, script: 'def foo(x): pass'}", "the script does not define the function 'f'"),
        ("{id: a, function: f, script: 'def f(x) pass'}", "the script is not valid Python"),
        ("{id: a, approval: false}", "expected a text that describes what to approve, found false"),
        ("{id: a, loop: {for_each: a.words, body: {agent: bob}}}", "expected a list, or a reference to one, found 'a.words'"),
        ("{id: a, loop: {for_each: [1], body: {agent: bob, is_fan_in: true}}}", "'is_fan_in' has no effect on the body of a loop"),
        ("{id: a, loop: {for_each: [1], body: {agent: bob, on_error: a}}}", "loop.body.on_error: expected one of 'abort'"),
        (
            "{id: a, loop: {for_each: [1], body: c}}, {id: b, loop: {for_each: [1], body: c}}, {id: c, agent: bob}",
            "step 'c' is the body of 'a' already",
        ),
        (
            "{id: a, agent: ann, navigation: {mode: conditional, rules: [{conditions: [{field: k, operator: gt}], target_step: a}]}}",
            "'value' is missing: what 'k' is compared with",
        ),
        (
            "{id: a, agent: ann, navigation: {mode: conditional, rules: [{conditions: [{field: context.k, value: 1}], target_step: a}]}}",
            "a rule refers to the output of its own step",
        ),
    ],
)
def test_a_fault_of_a_step_is_told(tmp_path: Path, steps: str, said: str) -> None:
    found = faults(tmp_path, f"{AGENTS}workflows: {{w: {{steps: [{steps}]}}}}")

    assert said in "\n".join(found)
    assert all(fault.startswith("line 2: workflows.w") for fault in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wrokflows: {}\nagents: []", "unknown key 'wrokflows'; did you mean 'workflows'?"),
        ("workflows: {w: []}", "the workflow has no steps"),
        ("workflows: {w: 3}", "expected a workflow"),
        ("workflows: [{steps: []}]", "workflows[0]: the workflow has no steps"),
        ("workflows: {w: {execution_mode: paralell, steps: []}}", "there is no execution mode 'paralell'; did you mean 'parallel'?"),
        ("workflows: {w: {stesp: []}}", "expected a workflow"),
        ("workflows: {w: {steps: [], timout: 3}}", "unknown key 'timout'; did you mean 'timeout'?"),
        ("workflows: {w: 'ann -> bbo -> user'}", "there is no agent, tool or workflow 'bbo'; did you mean 'bob'?"),
        ("workflows: {w: {workflow: ann -> user, steps: [{agent: ann}]}}", "w.workflow: a workflow has either 'steps' or arrows"),
        ("workflows: {w: 'ann -> -> user'}", "'' is neither a name"),
        ("workflows: {w: '(ann | bob) -> user'}", "needs one step before it"),
        ("workflows: {w: ' -> user'}", "is neither a name"),
        ("workflows: {ann: 'ann -> bob'}", "'ann' is also the name of an agent"),
        ("agents: [{model: m}]\nworkflows: {}", "'id' is missing"),
        ("agents: [{id: x, model: m}, {id: x}]\nworkflows: {}", "'x' is defined twice"),
        ("agents: [{id: x, agent_type: opneai}]\nworkflows: {}", "there is no provider 'opneai'; did you mean 'openai'?"),
        ("agents: [{id: x, tools: [t]}]\ntools: [{id: t, type: function}]\nworkflows: {}", "write one of 'function'"),
        ("agents: [{id: x, tools: [serach]}]\ntools: [{id: search, url: 'http://a'}]\nworkflows: {}", "did you mean 'search'?"),
        ("agents: [{id: x, model: 'env:NOT_SET'}]\nworkflows: {}", "the environment has no variable 'NOT_SET'"),
        ("tools: [{id: t, url: 'http://a', headers: {Authorization: secret}}]\nworkflows: {}", "write 'env:AUTHORIZATION'"),
        ("tools: [{id: t, url: 'http://a', local_mode: true}]\nworkflows: {}", "contradicts the rest"),
        ("tools: [{id: t, type: mcpfilesystem, permissions: {/: all}}]\nworkflows: {}", "permissions./: there is no permission 'all'"),
        ("tools: [{id: t, function: nowhere.f, settings: {token: 'env:TOKEN'}}]\nworkflows: {}", "the value of 'TOKEN' would be stored"),
        ("include: [more.yaml]\nworkflows: {}", "there is no file 'more.yaml' beside this one"),
        ("include: [/etc/passwd]\nworkflows: {}", "include[0]: '/etc/passwd' leaves the configuration's folder"),
        ("include: [../more.yaml]\nworkflows: {}", "include[0]: '../more.yaml' leaves the configuration's folder"),
        ("include: ['../*.yaml']\nworkflows: {}", "include[0]: '../*.yaml' leaves the configuration's folder"),
        ("agents: [{id: x, system_prompt: 'file: ../x.md'}]\nworkflows: {}", "'file: ../x.md' leaves the configuration's folder"),
        ("workflows: {w: {input_schema: {required: name}, steps: [{agent: ann}]}}", "w.input_schema.required: not a JSON schema"),
        (
            "workflows: {w: {output_schema: {type: objekt}, steps: [{agent: ann, output: {to: user}}]}}",
            "w.output_schema.type: not a JSON schema: 'objekt' is not valid",
        ),
        (
            "workflows: {w: {error_strategy: stop, continue_on_error: true, steps: [{agent: ann}]}}",
            "'error_strategy' and 'continue_on_error' contradict each other",
        ),
        ("agents: {x: You are helpful.}\nworkflows: {}", "agents.x: expected an agent: a mapping such as {model: ...,"),
        ("workflows: {w: {timeout: -1, retry: x, steps: [{agent: ann}]}}", "w.timeout: expected a number of at least 0.001, found -1"),
        ("agents: [{id: x, timeout: 3, timeout_seconds: 4}]\nworkflows: {}", "'timeout_seconds' means the same as 'timeout'; write one"),
        ("agents: [{id: x, memory: true, memory_enabled: false}]\nworkflows: {}", "'memory_enabled' means the same as 'memory'"),
        ("workflows: {w: {retry: 1, retry_policy: {max_retries: 2}, steps: [{agent: ann}]}}", "'retry_policy' means the same as 'retry'"),
        ("workflows: {w: {timeout: 1, timeout_seconds: 2, steps: [{agent: ann}]}}", "'timeout_seconds' means the same as 'timeout'"),
        ("workflows: {w: [{agent: ann, retry: 1, retry_policy: {max_retries: 2}}]}", "'retry_policy' means the same as 'retry'"),
        ("workflows: {w: [{agent: ann, output: {to: user, to_step: user}}]}", "'to_step' means the same as 'to'"),
        ("workflows: {w: {workflow: ann -> user, simple: bob -> user}}", "'simple' means the same as 'workflow'"),
        ("workflows: {w: {agent: ann, agent_id: bob}}", "'agent_id' means the same as 'agent'"),
        ("include: x.yaml\nincludes: x.yaml\nworkflows: {}", "'includes' means the same as 'include'"),
        ("workflows: {w: [{invoke_workflow: w}]}", "w[0]: workflow 'w' runs itself"),
        ("workflows: {w: [{id: a, loop: {for_each: [1], body: {approval: ok}}}]}", "loop.body: a loop cannot run an approval"),
        ("tools: [{id: t, functon: t.count}]\nworkflows: {}", "unknown key 'functon'; did you mean 'function'?"),
        ("tools: [{id: t, comand: python}]\nworkflows: {}", "unknown key 'comand'; did you mean 'command'?"),
        ("memory: {enabeld: false}\nworkflows: {}", "memory.enabeld: unknown key 'enabeld'; did you mean 'enabled'?"),
        ("workflows: {w: 'ann -> user -> bob'}", "'user' may only follow the last arrow"),
        ("workflows: {w: {output_schema: [x], steps: [{agent: ann, output: {to: user}}]}}", "expected a JSON schema, found a list"),
        ("workflows: {w: {input_schema: text, steps: [{agent: ann}]}}", "expected a JSON schema, found 'text'"),
        ("agents: [{id: x, temperature: hot}]\nworkflows: {}", "temperature: expected a number of at least 0, found 'hot'"),
        ("agents: [{id: x, agent_type: openai, provider: gemini}]\nworkflows: {}", "'provider' means the same as 'agent_type'"),
        ("tools: [{id: t, function: json.dumps, settings: {a: ['env:B']}}]\nworkflows: {}", "settings.a[0]: the value of 'B' would"),
        (
            "agents: [{id: x, system_prompt: prompts/missing.md}]\nworkflows: {}",
            "'x'.system_prompt: there is no file 'prompts/missing.md' in the configuration's folder",
        ),
        ("workflows: {w: [{agent: ann, input: '${context.user_inptu}'}]}", "there is no name 'user_inptu'; did you mean 'user_input'?"),
        ("workflows: {w: [{id: y, agent: ann}, {agent: bob, input: '${context.step_output.y.z}'}]}", "did you mean 'step_outputs'?"),
        ("workflows: {w: {inputs: [tone], steps: [{agent: ann, condition: '${context.tome} == a'}]}}", "did you mean 'tone'?"),
        ("workflows: {w: [{function: langswarm.core.utils.f}]}", "is a function of LangSwarm's own; write 'module:name' of one of yours"),
    ],
)  # fmt: skip
def test_a_fault_of_a_file_is_told(tmp_path: Path, text: str, said: str) -> None:
    text = text if "agents:" in text else f"{AGENTS}{text}"

    assert said in "\n".join(faults(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("experimental_features: {x: true}", "experimental_features: no effect: it is about LangSwarm's own process"),
        ("session: {unified: true}", "session: no effect: 'session' has no meaning here"),
        ("memory: production", "memory: memory is on; this word has no effect beyond that"),
        ("memory: {enabled: true, backend: sqlite}", "memory.backend: no effect: memory is kept in Redis"),
        ("agents: [{id: x, model: m, allow_middleware: true}]", "'x'.allow_middleware: no effect: 'allow_middleware' has no meaning here"),
        ("agents: [{id: x, model: m, tags: [a]}]", "'x'.tags: no effect: 'tags' has no meaning here"),
        ("workflows: {w: [{agent: ann, tags: [a]}]}", "[0].tags: no effect: 'tags' has no meaning here"),
        ("agents: [{id: x, model: m, response_mode: conversational}]", "'x'.response_mode: no effect: there are the modes"),
        ("agents: [{id: x, model: m, response_format: markdown}]", "'x'.response_format: no effect: only 'json' is a format"),
        ("agents: [{id: x, model: m, system_prompt: 'You: ${ROLE}.'}]", "'x'.system_prompt: '${ROLE}' stays as it is"),
        ("agents: [{id: x, model: m, tools: [web_search]}]", "'x'.tools[0]: no effect: there is no tool 'web_search' under 'tools'"),
        ("tools: [{id: t, function: json.dumps, env: [A]}]", "'t'.env: 'env' has no effect on a tool that is a function"),
        ("tools: [{id: t, url: 'http://a', permissions: [a]}]", "'permissions' has no effect on an MCP server"),
        ("tools: [{id: t, function: json.dumps, metadata: {x: 1}}]", "metadata.x: no effect: 'x' has no meaning here"),
        ("tools: [{id: t, type: mcpforms}]", "'t': 'mcpforms' is a program of LangSwarm's own; agents go without it"),
        ("tools: [{id: t, type: mcpworkflow_executor}]", "let a step with 'invoke_workflow' call the workflow"),
        (
            "tools: {t: {type: mcp, server_config: {command: python, args: [-m, langswarm.x]}}}",
            "'langswarm.x' is a program of LangSwarm's own",
        ),
        ("tools: [{id: t, type: mcpfilesystem, gcs_project_id: x}]", "'t'.gcs_project_id: no effect"),
        ("tools: [{id: t, type: mcpfilesystem, permissions: {'gs://x': read_only}}]", "only files of the workers' machines"),
        ("workflows: {w: {max_iterations: 3, steps: [{agent: ann}]}}", "w.max_iterations: no effect: 'max_iterations' has no meaning here"),
        ("workflows: {w: {steps: [{id: a, agent: ann, parallel: false}]}}", "'a'.parallel: no effect: 'parallel' has no meaning here"),
        ("workflows: {w: {steps: [{id: a, agent: ann, input: 'x {{y}}'}]}}", "'a'.input: '{{y}}' names nothing here, so it stays as it is"),
        ("workflows: {w: {agent_id: ann, steps: [{agent: bob}]}}", "w.agent_id: 'agent_id' has no effect beside 'steps'"),
        ("workflows: {w: {agent_id: ann, workflow: bob -> user}}", "w.agent_id: 'agent_id' has no effect beside 'arrows'"),
        ("workflows: {w: [{agent: ann, rollback_limit: 2}]}", "'rollback_limit' has no effect without 'rollback_to'"),
        ("workflows: {w: [{approval: x, default: 1}]}", "'default' has no effect without 'timeout'"),
        ("workflows: {w: [{transform: '${user_input}', input: x}]}", "'input' has no effect on a transform that is a value"),
        ("workflows: {w: {output_schema: {type: object}, steps: [{agent: ann}]}}", "'output_schema' has no effect"),
        (
            "workflows: {w: [{id: a, agent: ann, navigation: {available_steps: [b], rules: []}}, {id: b, agent: bob}]}",
            "'rules' have no effect in mode 'manual'",
        ),
        ("workflows: {w: [{agent: ann, input: 'for ${context.tone}'}]}", "'tone' is always null, unless a caller passes it"),
        ("workflows: {w: [{agent: ann, condition: '${context.variables.tone} == a'}]}", "'tone' is always null, unless"),
        ("workflows: {v: ann, w: {steps: [{id: a, invoke_workflow: v, retry: 2}]}}", "'retry' has no effect on a step that is another"),
    ],
)
def test_what_has_no_effect_here_is_a_warning_with_its_reason(tmp_path: Path, text: str, warned: str) -> None:
    found = faults(tmp_path, "\n".join([text, *(each for each in (AGENTS, "workflows: {}\n") if each.partition(":")[0] not in text)]))

    [warning] = found
    assert "warning: " in warning
    assert warned in warning.replace("warning: ", "")


def test_the_known_keys_are_listed_once(tmp_path: Path) -> None:
    found = faults(tmp_path, "agents: [{id: x, model: m, colour: red, shape: round}, {id: y, model: m, colour: blue}]\nworkflows: {}")

    assert [("known keys are" in fault) for fault in found] == [True, False, False]


def test_a_workflow_with_a_fault_is_refused_and_the_others_run(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        f"{AGENTS}workflows: {{good: ann -> bob, bad: ann -> bbo, caller: [{{invoke_workflow: bad}}], outer: [caller]}}",
    )

    assert answer(loaded, "good") == "bob<ann<hello>>"
    assert list(loaded.definitions.chains) == ["good"]
    assert loaded.definitions.refused["bad"] == ["line 2: workflows.bad: there is no agent, tool or workflow 'bbo'; did you mean 'bob'?"]
    assert "calls 'bad', which has faults: line 2: workflows.bad" in loaded.definitions.refused["caller"][0]
    assert ": calls 'caller', which has faults: line 2: workflows.bad: " in loaded.definitions.refused["outer"][0]
    with pytest.raises(ConfigError, match="there is no agent, tool or workflow 'bbo'"):
        turn_plan.plan_turn(TurnRequest(text="hello", workflow="bad"), loaded.definitions)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{topic: tea, tnoe: dry}", "w[0] 'a'.input.tnoe: the workflow has no input 'tnoe'; did you mean 'tone'?"),
        ("{tone: dry}", "w[0] 'a'.input: the workflow needs the input 'topic'"),
        ("tea", "w[0] 'a': the workflow needs the input 'topic'"),
        ("{topic: 3}", "w[0] 'a'.input.topic: 3 is not of type 'string'"),
        ("{topic: tea, context: x}", "the workflow has no input 'context'"),
    ],
)
def test_what_another_workflow_is_given_is_held_against_its_inputs(tmp_path: Path, given: str, said: str) -> None:
    schema = "{required: [topic, words], properties: {topic: {type: string}, words: {type: integer, default: 9}}}"
    inner = f"inner: {{inputs: [tone], input_schema: {schema}, steps: [{{agent: ann, input: '${{topic}}'}}]}}"

    found = faults(tmp_path, f"{AGENTS}workflows: {{w: [{{id: a, invoke_workflow: inner, input: {given}}}], {inner}}}")

    assert len(found) == 1
    assert said in found[0]


def test_all_faults_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = """agents:
  - {id: ann, modle: m}
workflows:
  w:
    - {id: a, agent: anna, output: {to: useer}}
    - {id: b, agnet: ann}
    - {id: c, agent: ann, input: "${a} ${b} ${d}"}
"""

    found = faults(tmp_path, text)

    assert [fault.partition(":")[0] for fault in found] == ["line 2", "line 5", "line 5", "line 6", "line 7"]
    assert "'d'" in found[-1]


def test_what_is_in_two_files_is_told_with_both(tmp_path: Path) -> None:
    found = faults(tmp_path, agents=f"{AGENTS}workflows: {{w: ann -> eve}}", workflows=f"\n{AGENTS}workflows: {{w: ann -> bob}}")

    assert "line 2: workflows.yaml agents[0] 'ann': 'ann' is defined twice; it is on line 1 of agents.yaml too" in found
    assert "line 3: workflows.yaml workflows.w: the workflow 'w' is defined twice; it is on line 2 of agents.yaml too" in found


def test_what_planning_finds_is_said_of_steps(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann, output: {to: user}},
      {id: b, agent: bob, condition: '${c}', depends_on: c},
      {id: c, agent: cleo, condition: '${b}', depends_on: b, output: {to: user}}]"""

    found = faults(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert [fault.partition(": ")[2] for fault in found] == [
        "workflows.w[1] 'b': cannot be reached from the entry 'a': only 'c' could start it",
        "workflows.w[2] 'c': steps 'b' → 'c' → 'b' form a cycle; only a condition may point back, and its other side must leave the loop",
        "workflows.w[2] 'c': cannot be reached from the entry 'a': only 'b' could start it",
    ]


def test_faults_of_several_files_name_the_file(tmp_path: Path) -> None:
    found = faults(tmp_path, agents="agents: [{id: ann, modle: m}]", workflows="workflows:\n  w: ann -> bbo", tools="tools: [\n")

    assert [fault.split()[2].rstrip(":") for fault in found] == ["agents.yaml", "tools.yaml", "workflows.yaml"]


def test_a_file_that_includes_others_is_not_named_twice(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("agents: [{id: eve, modle: m}]")

    found = faults(tmp_path, "include: more.yaml\nagents: [{id: ann, modle: m}]")

    assert [fault.rpartition(" 'ann'")[0] or fault.rpartition(" 'eve'")[0] for fault in found] == [
        "line 2: agents[0]",
        "line 1: more.yaml agents[0]",
    ]


@pytest.mark.parametrize(
    ("workflows", "name"),
    [
        ("{w: [ann, bob]}", "w"),
        ("{w: {name: W, steps: [ann, bob]}}", "w"),
        ("{w: {steps: [ann, bob, user]}}", "w"),
        ("[{id: w, workflow: ann -> bob -> user}]", "w"),
        ("[{id: w, simple: ann -> bob}]", "w"),
        ("[{name: w, steps: [{agent: ann}, {agent: bob}]}]", "w"),
        ("[{steps: [{agent: ann}, {agent: bob}]}]", "workflow_1"),
        ("{w: [{steps: [{agent: ann}, {agent: bob}]}]}", "w"),
        ("{w: [{id: v, steps: [{agent: ann}, {agent: bob}]}]}", "v"),
        ("[w: {steps: [ann, bob]}]", "w"),
    ],
)
def test_a_workflow_has_many_forms(tmp_path: Path, workflows: str, name: str) -> None:
    assert answer(load(tmp_path, f"{AGENTS}workflows: {workflows}"), name) == "bob<ann<hello>>"


def test_a_workflow_of_one_agent_needs_no_steps(tmp_path: Path) -> None:
    text = "tools: [{id: t, function: json.dumps}]\nworkflows: [{id: w, agent_id: ann, tool_ids: [t]}]"

    loaded = load(tmp_path, f"{AGENTS}{text}")

    assert loaded.definitions.chains["w"].nodes[0].name == "ann@w.ann"
    assert loaded.definitions.agents["ann@w.ann"].tools == ["t"]
