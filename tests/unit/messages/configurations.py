"""Bad configuration files of our own format, and texts that are no documents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from cantata.config.documents import Document, parse
from cantata.config.faults import faults_of
from cantata.config.native import load_definitions
from tests.unit.config.sample_form import Menu
from tests.unit.config.sample_tools import DECORATED_MODULE
from tests.unit.messages.entries import Entry, data, entries, said_by, text, without

ROUTER = "agents: {a: {description: A}, b: {description: B}}\nteams:\n  t:\n    mode: router\n    agents: [a, b]\n"
SERVER = {"command": ["s"]}
SCHEMA = {"type": "object", "properties": {"x": {}}}
TEAM = {"mode": "router", "agents": ["a", "b"]}

NATIVE: dict[str, list[str]] = {
    "files that cannot be read": [
        "agents: {a: {system: 'file: gone.md'}}",
        "agents: {a: {instructions: [{file: gone.md}]}}",
        "agents: {a: {system: bytes.md}}",
        "agents: {a: {system: {file: prompts}}}",
        "{agents: {a: {}}, teams: {t: {mode: broadcast, agents: [a], synthesizer: {prompt: {file: gone.md}}}}}",
    ],
    "keys, names and values": [
        "agents: {analyst: {modle: small}}",
        "agnets: {}",
        "agents: {a: {instructions: [{function: 'json:loads', arg: [A]}]}}",
        "agents: {a: {instructions: [{prompt: x}]}}",
        "agents: {a: {instructions: [{objective: 3}]}}",
        "folder: src",
        "version: 2",
        "[]",
        "",
        "{agents: {writer: {}}, teams: {t: {mode: pipeline, agents: [writer, wirter]}}}",
        "{agents: {a: {}, b: {}}, teams: {t: {mode: pipeline, agents: [zzz]}}}",
        "defaults: {team: desk}",
        "{agents: {a: {instructions: [{chain: c}]}}, chains: {c: {entry_node: n, nodes: [{node_id: n, kind: agent, name: a}]}}}",
        "{agents: {desk: {}}, defaults: {agent: dsek}}",
        "{agents: {a: {}}, teams: {t: {mode: broadcast, agents: [a], synthesizer: {prompt: 'Merge {agent_response}'}}}}",
        "{agents: {a: {}}, teams: {t: {mode: pipeline, agents: [a], deadline_s: 3}}}",
        "{agents: {a: {model: ' '}}}",
        "{models: {m: {model: openai/gpt-4o, fallbacks: ['']}}}",
        "agents: {'': {}}",
        "agents: {'@start': {}}",
        "tools: {t: {function: 'text_tools:word_cuont'}}",
        "agents: {a: {chainbreakers: [{function: 'text_tools:word_cuont', args: [2]}]}}",
        "skills: {t: {function: 'zzz:f'}}",
        "tools: {t: {function: word_count}}",
        "tools: {t: {function: 'text_tools:word_count', queue: 'gpu:large'}}",
        f"agents: {{a: {{queue: {'q' * 101}}}}}",
        "tools: {t: {}}",
        "tools: {t: {function: 'text_tools:word_count', mcp: {command: [x]}}}",
        "tools: {t: {mcp: {}}}",
        "tools: {t: {mcp: {command: [x], url: 'http://localhost'}}}",
        "tools: {t: {mcp: {comand: [x]}}}",
        "tools: {t: {mcp: {command: [x], headers: {A: B}}}}",
        "tools: {t: {mcp: {url: 'http://localhost', env: [A]}}}",
        "tools: {t: {mcp: {url: 'http://me:hunter2@localhost'}}}",
        "tools: {t: {mcp: {url: 'https://localhost', headers: {Authorization: Bearer hunter2}}}}",
        "{agents: {desk: {}}, teams: {desk: {mode: pipeline, agents: [desk]}}}",
        "models: {m: {model: opnai/gpt-4o-mini}}",
        "agents: {a: {model: x-y-z-corp/big}}",
    ],
    "JSON Schemas": [
        "agents:\n  a:\n    output:\n      schema:\n        items:\n          $ref: http://127.0.0.1:9/x\n",
        "tools:\n  t:\n    function: m:f\n    parameters:\n      type: object\n      properties:\n        x: {pattern: (}\n",
        "tools:\n  t:\n    asks:\n      answer_schema: {type: strin}\n    parameters: {type: object}\n",
    ],
}

ROUTERS: dict[str, list[str]] = {
    "routers": [
        "    default_agent: c\n",
        "    rules: [{match: x, agent: c}]\n",
        "    rules: [{match: x}]\n",
        "    rules: [{agent: a}]\n",
        "    rules: [{match: '(', agent: a}]\n",
        "    router: {decision_prompt_template: 'whom?'}\n",
        "    router: {instructions: ['{input}']}\n",
        "    synthesizer: {prompt: '{agent_responses}'}\n",
        "    strategy: static_plan\n    rules: [{match: x, agent: a}]\n",
    ],
}

OPTIONS: dict[str, list[tuple[str, dict[str, object]]]] = {
    "options that do not fit": [
        ("tools", {}),
        ("tools", {"function": "m:f", "mcp": SERVER}),
        ("tools", {"asks": True}),
        ("tools", {"mcp": SERVER, "hidden": ["x"]}),
        ("tools", {"function": "m:f", "at_most_once": True, "retries": 1}),
        ("tools", {"function": "m:f", "parameters": {"type": "array"}}),
        ("tools", {"function": "m:f", "parameters": SCHEMA, "values": {"x": 1}}),
        ("tools", {"mcp": {}}),
        ("tools", {"mcp": {**SERVER, "headers": {"A": "B"}}}),
        ("tools", {"mcp": {"url": "http://localhost", "env": ["A"]}}),
        ("tools", {"mcp": {"url": "http://me:secret@localhost"}}),
        ("tools", {"mcp": {**SERVER, "env": ["not a name"]}}),
        ("commands", {"command": ["x"], "env": ["sk-123"]}),
        ("agents", {"model": "m", "models": ["n"]}),
        ("agents", {"models": ["m", "n"], "instructions": ["a", "b", "c"]}),
        ("agents", {"output": {}}),
        ("agents", {"queue": "gpu:large"}),
        ("teams", {**TEAM, "min_responses": 1}),
        ("teams", {"mode": "broadcast", "agents": ["a"], "min_responses": 2}),
        ("teams", {**TEAM, "strategy": "static_plan", "rules": [{"match": "x", "agent": "a"}]}),
        ("teams", {**TEAM, "agents": ["a", "a"]}),
        ("teams", {**TEAM, "default_agent": "c"}),
        ("teams", {**TEAM, "rules": [{"match": "(", "agent": "a"}]}),
        ("teams", {**TEAM, "rules": [{"match": "x"}]}),
        ("teams", {**TEAM, "router": {"function": "m:f", "params": {"t": 1}}}),
        ("teams", {**TEAM, "router": {"instructions": ["x"]}}),
    ],
}

DECORATED: dict[str, list[str]] = {
    "functions with @tool": [
        "{function: 'work_tools:counted'}",
        "{function: 'work_tools:spread', timeout_s: 3}",
        "{function: 'work_tools:misspelt', timeout_s: 3}",
        "{function: 'work_tools:draw', values: {colour: red}}",
        "{function: 'work_tools:charge', hidden: [cent], values: {user_id: a}}",
        "{function: 'work_tools:charge'}",
        "{function: 'work_tools:searches'}",
        "{function: 'work_tools:charge', values: {user_id: a}, retries: 2}",
        "{function: 'work_tools:bare', parameters: {type: array}}",
        "{function: 'work_tools:searches', values: {limit: 3}, parameters: {type: object, properties: {limit: {}}}}",
        "{mcp: {command: [x]}, values: {a: 1}}",
        "{function: 'work_tools:searches', values: {limit: 1, api_key: x}}",
    ],
}

DISHES: dict[str, list[str]] = {
    "what was expected, and what was found": [
        "{name: a, kind: sup}",
        "{name: a, kind: 7}",
        "{name: a, price: cheap}",
        "{name: a, price: 0}",
        "{name: a, price: 101}",
        "{name: a, pieces: 1.5}",
        "{name: a, pieces: 0}",
        "{name: a, pieces: null}",
        "{name: a, warm: tepid}",
        "{name: a, parts: all}",
        "{name: a, parts: []}",
        "{name: a, parts: [x, 1]}",
        "{name: a, extra: [1]}",
        "{name: a, extra: true}",
        "{name: a, code: abc}",
        "{name: a, kind: soup, warm: no}",
        "{name: {input}}",
        "{}",
        "7",
        "{name: a, spce: 1}",
        "{name: a, side: {name: b, prise: 1}}",
        f"{{name: a, price: {'x' * 99}}}",
    ],
}

MENUS: dict[str, list[str]] = {
    "keys that are unknown or missing": [
        "zzz: 1",
        "hiden: 1",
        "days: [{nam: a}]",
        "days: [{zzz: a}]",
        "days: [{name: a, zzz: 1, qqq: 2, prise: 3}]",
        "zzz: 1\ndays:\n- name: a\n  price: -1\n- {}\ndishes: []\n",
        "# nothing",
    ]
}

DOCUMENTS: dict[str, list[str]] = {
    "texts that are no documents": [
        "a: 1\nb: 2\na: 3\n",
        '{"x": {"a": 1,\n"a": 2}}',
        "x:\n- 1: a",
        "true: a",
        "x: {[1]: a}",
        "a: !!python/object/apply:os.system [ls]",
        "a: !include x.yaml",
        "a: !!float 1",
        "a: *b",
        "a: &a [1, *a]",
        "a: {<<: 1}",
        "a: {<<: [{}, 1]}",
        "a: 1\n---\nb: 2",
        "a: 1e999",
        '{"a":\n[0, -1e999]}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": "\\ud800"}',
        "[" * 129 + "]" * 129,
        "- " * 129 + "x",
        "[" * 100_000,
    ],
}


def found() -> Iterator[Entry]:
    """Check each of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder)
        yield from entries(DOCUMENTS, lambda given: said_by(lambda: parse(given)), text)
        yield from entries(DISHES, lambda dish: _of_form(f"dishes:\n  one: {dish}\n"), text)
        yield from entries(MENUS, _of_form, text)
        yield from entries(NATIVE, lambda given: _loaded(given, folder), text)
        yield from entries(ROUTERS, lambda options: _loaded(ROUTER + options, folder), text)
        yield from entries(DECORATED, lambda entry: _loaded(f"tools:\n  t: {entry}\n", folder), text)
        yield from entries(OPTIONS, _of_options, lambda given: f"{given[0]}: {data(given[1])}")


def _write(folder: Path) -> None:
    (folder / "text_tools.py").write_text("def word_count(text): ...")
    (folder / "m.py").write_text("def f(x): ...\n")
    (folder / "work_tools.py").write_text(DECORATED_MODULE)
    (folder / "prompts").mkdir()
    (folder / "bytes.md").write_bytes(b"\xff\xfe")


def _loaded(given: str, folder: Path) -> list[str]:
    return without(folder, said_by(lambda: load_definitions(parse(given), folder=folder)))


def _of_options(given: tuple[str, dict[str, object]]) -> list[str]:
    section, fields = given
    sections: dict[str, dict[str, object]] = {section: {"n": fields}}
    if section == "teams":
        sections["agents"] = {"a": {"description": "A"}, "b": {"description": "B"}}
    return said_by(lambda: load_definitions(Document(sections)))  # type: ignore[arg-type]  # as JSON


def _of_form(given: str) -> list[str]:
    document = parse(given)
    try:
        Menu.model_validate(document.data)
    except ValidationError as error:
        return [str(fault) for fault in faults_of(error, document, Menu, hidden=["hidden"])]
    return []
