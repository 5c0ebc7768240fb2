"""Bad files of LangSwarm."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.unit.frontends.langswarm.stage import AGENTS, faults
from tests.unit.messages.entries import Entry, entries, text, without

SCHEMA = "{required: [topic, words], properties: {topic: {type: string}, words: {type: integer, default: 9}}}"
INNER = f"inner: {{inputs: [tone], input_schema: {SCHEMA}, steps: [{{agent: ann, input: '${{topic}}'}}]}}"

STEPS: dict[str, list[str]] = {
    "steps": [
        "{id: a, agent: ann, output: {to: useer}}",
        "{id: a, agent: anne}",
        "{id: a, agnet: ann}",
        "{id: a, agent: ann, inptu: x}",
        "{id: a, type: navigation, navigation: {}}",
        "{id: a, agent: ann, function: f}",
        "{id: a, type: agnet, agent: ann}",
        "{id: a, no_mcp: {tools: []}}",
        "{id: a, agent: ann, no_mcp: {}}",
        "{id: a, agent: ann, no_mcp: {tools: [clarfy]}}",
        "{id: a, agent: ann, input: '${b.x}'}",
        "{id: a, agent: ann, input: {x: ['${b}']}}",
        "{id: a, agent: ann, condition: '${user_input} ='}",
        "{id: a, agent: ann, depends_on: [c]}",
        "{id: a, agent: ann, depends_on: a}",
        "{id: a, agent: ann, on_error: retyr}",
        "{id: a, agent: ann, rollback_to: b}, {id: b, agent: bob}",
        "{id: a, agent: ann, retry: -1}",
        "{id: a, agent: ann, timeout: soon}",
        "{id: a, agent: ann, output: {to: {generate_steps: true, limit: 3}}}",
        "{id: a, agent: ann, output: {to: {invoke: x}}}",
        "{id: a, agent: ann, output: {to: {step: a, await: false}}}",
        "{id: a, agent: ann, output: {to: {conditon: {}}}}",
        "{id: a, agent: ann, output: {to: {condition: {if: x, than: user}}}}",
        "{id: a, agent: ann, output: {to: {condition: {switch: '${a}'}}}}",
        "{id: a, agent: ann, output: {to: {condition: {switch: '${a}', cases: {'true': user, 'True': user}}}}}",
        "{id: a, agent: ann, on_error: fail, continue_on_error: true}",
        "{id: a, agent: ann, on_error: skip, continue_on_error: false}",
        "{id: a, invoke_workflow: v}",
        "{id: a, loop: {for_each: '${user_input}'}}",
        "{id: a, loop: {for_each: '${user_input}', body: x}}",
        "{id: a, loop: {body: b}}, {id: b, agent: bob}",
        "{id: a, loop: {for_each: [1], body: b}}, {id: b, agent: bob, output: {to: user}}",
        "{id: a, condition: 'true', true_step: b}",
        "{id: a, true_step: user}",
        "{id: a, tool: t}",
        "{id: a, function: nowhere.f}",
        "{id: a, function: f}",
        "{id: a, function: f, script: 'x = 1'}",
        "{id: a, agent: ann, is_fan_in: true, fan_key: k}",
        "{id: a, agent: ann, navigation: {mode: weighted, available_steps: [a]}}",
        "{id: a, agent: ann, navigation: {available_steps: [b]}}",
        "{id: a, agent: ann, navigation: {}}",
        "{id: 'a/b', agent: ann}",
        "{id: a, agent: ann}, {id: a, agent: bob}",
        "{id: a, agent: ann, output: {to: user}}, {id: b, agent: bob, input: x}",
        "{id: a, agent: ann, output: {to: b}}, {id: b, agent: bob, output: {to: a}}",
        "{id: a, agent: ann, input: '${b}'}, {id: b, agent: bob}",
        "text, {id: a, agent: ann}",
        "{id: a, agent: ann, input: '${input} {{ context.user_input }}'}",
        "{id: a, agent: ann, input: 'x ${user_input'}",
        "{id: a, agent: ann, input: {'${user_input}': 1}}",
        "{id: a, agent: ann, input: one, inputs: two}",
        "{id: a, agent: ann, agent_id: bob}",
        "{id: a, agent: ann, args: {x: 1}}",
        "{id: a, agent: ann, timeout: inf}",
        "{id: a, agent: ann, retry: '1e999'}",
        "{id: a, agent: ann, output_key: b}, {id: b, agent: bob}",
        "{id: a, condition: '${user_input}', true_step: user}",
        "{id: user, agent: ann}",
        "{id: a, agent: ann, output: {to: {condition: {switch: a.kind, cases: {x: user}}}}}",
        "{id: a, agent: ann, output: {to: {condition: {exists: a.kind, then: user}}}}",
        "{id: a, function: f, script: 'def foo(x): pass'}",
        "{id: a, function: f, script: 'def f(x) pass'}",
        "{id: a, approval: false}",
        "{id: a, loop: {for_each: a.words, body: {agent: bob}}}",
        "{id: a, loop: {for_each: [1], body: {agent: bob, is_fan_in: true}}}",
        "{id: a, loop: {for_each: [1], body: {agent: bob, on_error: a}}}",
        "{id: a, loop: {for_each: [1], body: c}}, {id: b, loop: {for_each: [1], body: c}}, {id: c, agent: bob}",
        "{id: a, agent: ann, navigation: {mode: conditional, rules: [{conditions: [{field: k, operator: gt}], target_step: a}]}}",
        "{id: a, agent: ann, navigation: {mode: conditional, rules: [{conditions: [{field: context.k, value: 1}], target_step: a}]}}",
    ],
}

FILES: dict[str, list[str]] = {
    "files": [
        "wrokflows: {}\nagents: []",
        "workflows: {w: []}",
        "workflows: {w: 3}",
        "workflows: [{steps: []}]",
        "workflows: {w: {execution_mode: paralell, steps: []}}",
        "workflows: {w: {stesp: []}}",
        "workflows: {w: {steps: [], timout: 3}}",
        "workflows: {w: 'ann -> bbo -> user'}",
        "workflows: {w: {workflow: ann -> user, steps: [{agent: ann}]}}",
        "workflows: {w: 'ann -> -> user'}",
        "workflows: {w: '(ann | bob) -> user'}",
        "workflows: {w: ' -> user'}",
        "workflows: {ann: 'ann -> bob'}",
        "agents: [{model: m}]\nworkflows: {}",
        "agents: [{id: x, model: m}, {id: x}]\nworkflows: {}",
        "agents: [{id: x, agent_type: opneai}]\nworkflows: {}",
        "agents: [{id: x, tools: [t]}]\ntools: [{id: t, type: function}]\nworkflows: {}",
        "agents: [{id: x, tools: [serach]}]\ntools: [{id: search, url: 'http://a'}]\nworkflows: {}",
        "agents: [{id: x, model: 'env:NOT_SET'}]\nworkflows: {}",
        "tools: [{id: t, url: 'http://a', headers: {Authorization: secret}}]\nworkflows: {}",
        "tools: [{id: t, url: 'http://a', local_mode: true}]\nworkflows: {}",
        "tools: [{id: t, type: mcpfilesystem, permissions: {/: all}}]\nworkflows: {}",
        "tools: [{id: t, function: nowhere.f, settings: {token: 'env:TOKEN'}}]\nworkflows: {}",
        "include: [more.yaml]\nworkflows: {}",
        "include: [/etc/passwd]\nworkflows: {}",
        "include: [../more.yaml]\nworkflows: {}",
        "include: ['../*.yaml']\nworkflows: {}",
        "agents: [{id: x, system_prompt: 'file: ../x.md'}]\nworkflows: {}",
        "workflows: {w: {input_schema: {required: name}, steps: [{agent: ann}]}}",
        "workflows: {w: {output_schema: {type: objekt}, steps: [{agent: ann, output: {to: user}}]}}",
        "workflows: {w: {error_strategy: stop, continue_on_error: true, steps: [{agent: ann}]}}",
        "agents: {x: You are helpful.}\nworkflows: {}",
        "workflows: {w: {timeout: -1, retry: x, steps: [{agent: ann}]}}",
        "agents: [{id: x, timeout: 3, timeout_seconds: 4}]\nworkflows: {}",
        "agents: [{id: x, memory: true, memory_enabled: false}]\nworkflows: {}",
        "workflows: {w: {retry: 1, retry_policy: {max_retries: 2}, steps: [{agent: ann}]}}",
        "workflows: {w: {timeout: 1, timeout_seconds: 2, steps: [{agent: ann}]}}",
        "workflows: {w: [{agent: ann, retry: 1, retry_policy: {max_retries: 2}}]}",
        "workflows: {w: [{agent: ann, output: {to: user, to_step: user}}]}",
        "workflows: {w: {workflow: ann -> user, simple: bob -> user}}",
        "workflows: {w: {agent: ann, agent_id: bob}}",
        "include: x.yaml\nincludes: x.yaml\nworkflows: {}",
        "workflows: {w: [{invoke_workflow: w}]}",
        "workflows: {w: [{id: a, loop: {for_each: [1], body: {approval: ok}}}]}",
        "tools: [{id: t, functon: t.count}]\nworkflows: {}",
        "tools: [{id: t, comand: python}]\nworkflows: {}",
        "memory: {enabeld: false}\nworkflows: {}",
        "workflows: {w: 'ann -> user -> bob'}",
        "workflows: {w: {output_schema: [x], steps: [{agent: ann, output: {to: user}}]}}",
        "workflows: {w: {input_schema: text, steps: [{agent: ann}]}}",
        "agents: [{id: x, temperature: hot}]\nworkflows: {}",
        "agents: [{id: x, agent_type: openai, provider: gemini}]\nworkflows: {}",
        "tools: [{id: t, function: json.dumps, settings: {a: ['env:B']}}]\nworkflows: {}",
        "agents: [{id: x, system_prompt: prompts/missing.md}]\nworkflows: {}",
        "workflows: {w: [{agent: ann, input: '${context.user_inptu}'}]}",
        "workflows: {w: [{id: y, agent: ann}, {agent: bob, input: '${context.step_output.y.z}'}]}",
        "workflows: {w: {inputs: [tone], steps: [{agent: ann, condition: '${context.tome} == a'}]}}",
        "workflows: {w: [{function: langswarm.core.utils.f}]}",
    ],
}

WARNINGS: dict[str, list[str]] = {
    "warnings": [
        "experimental_features: {x: true}",
        "session: {unified: true}",
        "memory: production",
        "memory: {enabled: true, backend: sqlite}",
        "agents: [{id: x, model: m, allow_middleware: true}]",
        "agents: [{id: x, model: m, tags: [a]}]",
        "workflows: {w: [{agent: ann, tags: [a]}]}",
        "agents: [{id: x, model: m, response_mode: conversational}]",
        "agents: [{id: x, model: m, response_format: markdown}]",
        "agents: [{id: x, model: m, system_prompt: 'You: ${ROLE}.'}]",
        "agents: [{id: x, model: m, tools: [web_search]}]",
        "tools: [{id: t, function: json.dumps, env: [A]}]",
        "tools: [{id: t, url: 'http://a', permissions: [a]}]",
        "tools: [{id: t, function: json.dumps, metadata: {x: 1}}]",
        "tools: [{id: t, type: mcpforms}]",
        "tools: [{id: t, type: mcpworkflow_executor}]",
        "tools: {t: {type: mcp, server_config: {command: python, args: [-m, langswarm.x]}}}",
        "tools: [{id: t, type: mcpfilesystem, gcs_project_id: x}]",
        "tools: [{id: t, type: mcpfilesystem, permissions: {'gs://x': read_only}}]",
        "workflows: {w: {max_iterations: 3, steps: [{agent: ann}]}}",
        "workflows: {w: {steps: [{id: a, agent: ann, parallel: false}]}}",
        "workflows: {w: {steps: [{id: a, agent: ann, input: 'x {{y}}'}]}}",
        "workflows: {w: {agent_id: ann, steps: [{agent: bob}]}}",
        "workflows: {w: {agent_id: ann, workflow: bob -> user}}",
        "workflows: {w: [{agent: ann, rollback_limit: 2}]}",
        "workflows: {w: [{approval: x, default: 1}]}",
        "workflows: {w: [{transform: '${user_input}', input: x}]}",
        "workflows: {w: {output_schema: {type: object}, steps: [{agent: ann}]}}",
        "workflows: {w: [{id: a, agent: ann, navigation: {available_steps: [b], rules: []}}, {id: b, agent: bob}]}",
        "workflows: {w: [{agent: ann, input: 'for ${context.tone}'}]}",
        "workflows: {w: [{agent: ann, condition: '${context.variables.tone} == a'}]}",
        "workflows: {v: ann, w: {steps: [{id: a, invoke_workflow: v, retry: 2}]}}",
    ],
}

GIVEN: dict[str, list[str]] = {
    "inputs of a workflow that another calls": [
        "{topic: tea, tnoe: dry}",
        "{tone: dry}",
        "tea",
        "{topic: 3}",
        "{topic: tea, context: x}",
    ],
}


FILE_TOOLS: dict[str, list[str]] = {
    "the tool for files": [
        "allowed_paths: ['']",
        "root_path: '${UNSET:}'",
        "permissions: {'': read_only}",
        "allowed_paths: ['gs://x']",
        "retry: 3",
        "methods: [read_flie]",
        "server_config: {command: python, args: [-m, langswarm.filesystem, --root, /data]}",
    ],
}


def found() -> Iterator[Entry]:
    """Check each of them."""
    yield from entries(STEPS, lambda steps: _checked(f"{AGENTS}workflows: {{w: {{steps: [{steps}]}}}}"), text)
    yield from entries(FILES, lambda given: _checked(given if "agents:" in given else f"{AGENTS}{given}"), text)
    yield from entries(WARNINGS, lambda given: _checked(_completed(given)), text)
    yield from entries(
        FILE_TOOLS, lambda keys: _checked(f"tools: [{{id: fs, type: mcpfilesystem, {keys}}}]\nworkflows: {{}}"), text
    )
    yield from entries(GIVEN, _given, text)


def _completed(given: str) -> str:
    return "\n".join([given, *(each for each in (AGENTS, "workflows: {}\n") if each.partition(":")[0] not in given)])


def _checked(given: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        return without(Path(folder), faults(Path(folder), given))


def _given(given: str) -> list[str]:
    return _checked(f"{AGENTS}workflows: {{w: [{{id: a, invoke_workflow: inner, input: {given}}}], {INNER}}}")
