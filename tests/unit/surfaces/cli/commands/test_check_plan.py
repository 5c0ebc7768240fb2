"""Documents: their faults, with lines, and their plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from celery.canvas import Signature

from cantata.flows.graph import Graph
from cantata.flows.wire import ChainResponse, RunResult
from cantata.surfaces.cli.import_check import unimportable
from tests.unit.surfaces.cli.invocation import run

NOWHERE = {
    "REDIS_URL": "redis://127.0.0.1:1/0"
}  # so no stack is started for what is refused before anything is asked of Redis
CHAIN = """\
entry_node: read
nodes:
  - {node_id: read, kind: tool, name: double, input: {n: 1}, next_node: each}
  - {node_id: each, kind: map, items_path: read, map_node: one, next_node: last}
  - {node_id: one, kind: tool, name: double, input_map: {n: _item}}
  - {node_id: last, kind: tool, name: double, input: {n: 2}}
"""
CONFIG = """\
tools:
  double: {function: "my_tools:double"}
"""


@pytest.fixture
def documents(folder: Path) -> Path:
    """A configuration with a tool, and a chain that uses it."""
    (folder / "configs").mkdir()
    (folder / "configs" / "default.yaml").write_text(CONFIG)
    (folder / "configs" / "my_tools.py").write_text("def double(n): return 2 * n\n")
    (folder / "chain.yaml").write_text(CHAIN)
    return folder


@pytest.mark.usefixtures("documents")
@pytest.mark.parametrize("file", ["chain.yaml", "configs/default.yaml", "-"])
def test_a_sound_document_has_no_faults(file: str) -> None:
    result = run("check", file, given=CHAIN)

    assert result.exit_code == 0
    assert "no faults" in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "name: double, input: {n: 1}",
            "name: duoble",
            "yaml:3: nodes[0] 'read'.name: ",
        ),
        ("next_node: last", "next_node: lost", "yaml:4: nodes[1] 'each'.next_node: "),
        ("items_path: read", "items_path: 'read['", "yaml:4: nodes[1] 'each'.items_path: "),
        ("n: _item", "n: '_item +'", "yaml:5: nodes[2] 'one'.input_map"),
        ("kind: map", "kind: mop", "yaml:4: nodes[1] 'each'.kind: "),
        ("node_id: last", "node_id: read", "yaml:6: nodes[3] 'read'.node_id: "),
        ("entry_node: read", "entry_node: raed", "yaml:1: entry_node: "),
        ("next_node: each", "next_nod: each", "yaml:3: nodes[0] 'read'.next_nod: "),
        ("{n: 2}}", "{n: 2}, next_node: read}", "form a cycle"),
    ],
)
def test_a_fault_of_a_chain_has_its_line(documents: Path, old: str, new: str, message: str) -> None:
    (documents / "chain.yaml").write_text(CHAIN.replace(old, new))

    result = run("check", "chain.yaml")

    assert result.exit_code == 2
    assert message in result.stdout


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("tools:\n  double: {function: 'my_tools:dobule'}\n", "yaml:2: tools.double.function: "),
        ("tols: {}\n", "yaml:1: tols: "),
        (
            CONFIG + "chains:\n  c:\n    entry_node: a\n    nodes:\n      - {node_id: a, kind: tool, name: nope}\n",
            "yaml:7: chains.c.nodes[0] 'a'.name: ",
        ),
        ("a: [\n", "this is not YAML"),
    ],
)
def test_a_fault_of_a_configuration_has_its_line(documents: Path, config: str, message: str) -> None:
    (documents / "configs" / "default.yaml").write_text(config)

    result = run("check", "configs/default.yaml")

    assert result.exit_code == 2
    assert message in result.stdout


def test_faults_are_values_for_programs(documents: Path) -> None:
    (documents / "chain.yaml").write_text(CHAIN.replace("name: double", "name: nope"))

    result = run("check", "chain.yaml", "--json")

    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["source"] == "chain.yaml"
    assert [(fault["where"], fault["line"]) for fault in found["faults"]] == [
        ("nodes[0] 'read'.name", 3),
        ("nodes[2] 'one'.name", 5),
        ("nodes[3] 'last'.name", 6),
    ]


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--strict",), 2)])
def test_a_warning_is_told_and_fails_a_strict_check_only(folder: Path, options: tuple[str, ...], status: int) -> None:
    (folder / "langswarm.yaml").write_text("agents: [{id: ann}]\nserver: {}\n")

    people, program = run("check", "langswarm.yaml", *options), run("check", "langswarm.yaml", *options, "--json")

    assert people.exit_code == program.exit_code == status
    assert "langswarm.yaml:2: server: warning: no effect: " in people.stdout
    assert ("no faults, 1 warning (1 agent, of LangSwarm's files)" in people.stdout) is (status == 0)
    assert [(fault["line"], fault["is_warning"]) for fault in json.loads(program.stdout)["faults"]] == [(2, True)]


def test_a_fault_of_the_configuration_behind_a_request_names_the_configuration(documents: Path) -> None:
    (documents / "configs" / "default.yaml").write_text("tols: {}\n")

    result = run("check", "chain.yaml")

    assert result.exit_code == 2
    assert "configs/default.yaml: line 1: tols" in result.stderr


@pytest.mark.usefixtures("documents")
def test_a_plan_shows_the_graph_and_what_is_sent() -> None:
    result = run("plan", "chain.yaml")

    assert result.exit_code == 0
    graph, canvas = result.stdout.split("canvas\n")
    assert [line.split()[1] for line in graph.splitlines()[1:] if line.startswith(("├", "└"))] == [
        "read",
        "each",
        "last",
    ]
    assert "│  ├─ each/*" in graph
    assert "tool.call read  to queue tools" in canvas


@pytest.mark.usefixtures("documents")
def test_a_plan_is_a_graph_for_programs() -> None:
    plan = json.loads(run("plan", "chain.yaml", "--json").stdout)

    assert [step.id for step in Graph.model_validate(plan["graph"]).steps] == ["read", "each", "last"]
    assert [list(Signature.from_dict(each).args) for each in plan["canvas"]] == [["RUN", ["read"]], ["RUN", ["last"]]]


def test_a_request_without_an_input_is_described_with_what_it_reads_from_it(folder: Path) -> None:
    nodes = "[{node_id: a, kind: agent, name: assistant, input_map: {text: aa.foo, by: input.by}}]"
    (folder / "draft.yaml").write_text(f"entry_node: a\nnodes: {nodes}")

    checked, run_with_input = (
        run("check", "draft.yaml"),
        run("chain", "draft.yaml", "--input", '{"by": 1}', env=NOWHERE),
    )

    assert checked.exit_code == 0
    assert checked.stdout.endswith("(a chain request of 1 node, which expects an input with 'aa', 'by')\n")
    assert run_with_input.exit_code == 2
    assert "line 2: nodes[0] 'a'.input_map.text: " in run_with_input.stderr


def test_a_missing_input_is_a_fault_before_anything_runs(folder: Path) -> None:
    nodes = "[{node_id: a, kind: agent, name: assistant, input_map: {text: text}}]"
    (folder / "needy.yaml").write_text(f"entry_node: a\ninputs:\n  text: string\nnodes: {nodes}")

    assert run("check", "needy.yaml").exit_code == 0
    result = run("chain", "needy.yaml", env=NOWHERE)

    assert result.exit_code == 2
    assert "initial_input.text: " in result.stderr


@pytest.mark.parametrize(
    ("request_text", "code", "faults"),
    [
        (
            "chain_id: c1\nentry_node: b\nnodes:\n- {node_id: a, kind: tool, name: t, next_node: c}",
            "bad_request",
            ["nodes[0] 'a'.name", "nodes[0] 'a'.next_node", "entry_node"],
        ),
        (
            "chain_id: c1\nentry_node: b\nnodes:\n- {node_id: a, kind: agent, name: assistant}",
            "bad_entry",
            ["entry_node"],
        ),
        (
            "chain_id: c1\nentry_node: a\nnodes:\n- {node_id: a, kind: agent, name: assistant, next_node: a}",
            "chain_cycle",
            ["nodes[0] 'a'.next_node"],
        ),
        ("chain_id: c1\nnodes: []\nentry: a", "bad_request", ["entry"]),
    ],
)
@pytest.mark.parametrize("option", ["--json", "--events"])
def test_a_refused_chain_is_answered_with_its_code_and_all_faults(
    folder: Path, option: str, request_text: str, code: str, faults: list[str]
) -> None:
    (folder / "wrong.yaml").write_text(request_text)

    result = run("chain", "wrong.yaml", option, env=NOWHERE)

    assert result.exit_code == 2
    response = ChainResponse.model_validate_json(result.stdout)
    assert (response.chain_id, response.run_id, response.success) == ("c1", "", False)
    assert response.error is not None
    assert response.error.code == code
    assert [fault.where for fault in response.error.faults] == faults
    assert all(fault.line for fault in response.error.faults)
    assert "submit: wrong.yaml: line " in result.stderr


def test_an_unknown_kind_hides_no_other_fault(folder: Path) -> None:
    nodes = "[{node_id: a, kind: tol, next_node: bb}, {node_id: b, kind: agent, name: nobody}]"
    (folder / "wrong.yaml").write_text(f"entry_node: a\nnodes: {nodes}")

    output = run("check", "wrong.yaml").stdout

    assert [line.split(": ")[1] for line in output.splitlines()[:3]] == [
        "nodes[0] 'a'.kind",
        "nodes[0] 'a'.next_node",
        "nodes[1] 'b'.name",
    ]


def test_a_module_that_cannot_be_imported_is_a_fault_of_the_configuration(folder: Path) -> None:
    (folder / "good.py").write_text("print('hello')\ndef f(): ...")
    (folder / "broken.py").write_text("import no_such_module_anywhere\ndef f(): ...")
    (folder / "desk.yaml").write_text('tools:\n  a: {function: "good:f"}\n  b: {function: "broken:f"}')

    result = run("check", "desk.yaml")

    assert result.exit_code == 2
    assert result.stdout == (
        "desk.yaml:3: tools.b.function: module 'broken' cannot be imported here: "
        "ModuleNotFoundError: No module named 'no_such_module_anywhere' (broken.py, line 1)\n"
    )


def test_functions_and_scripts_of_a_further_format_that_cannot_be_imported_are_faults(folder: Path) -> None:
    (folder / "helpers.py").write_text("import not_there\n\ndef plus(n): return n\n\ndef minus(n): return n\n")
    script = "import not_here\n\n        def times(n): return n"
    steps = f"""
    - {{id: a, function: helpers.plus, args: {{n: 1}}}}
    - {{id: b, function: helpers.minus, args: {{n: 1}}}}
    - {{id: c, function: times, script: '{script}', args: {{n: 1}}}}
"""
    (folder / "workflows.yaml").write_text(f"agents: []\nworkflows:\n  w:{steps}")
    expected = [
        "'helpers:minus' cannot be imported here: ModuleNotFoundError: No module named 'not_there' (helpers.py, line 1)",
        "'workflows.yaml:times' cannot be imported here: ModuleNotFoundError: No module named 'not_here' (workflows.yaml (script), line 1)",
    ]

    assert [fault.message for fault in unimportable("workflows.yaml")] == expected, "which `submit up` asks"
    result = run("check", "workflows.yaml")
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [f"workflows.yaml: {each}" for each in expected]


def test_a_module_that_ends_its_process_when_it_is_imported_is_a_fault(folder: Path) -> None:
    (folder / "leaves.py").write_text("import os\nos._exit(3)\ndef f(): ...")
    (folder / "desk.yaml").write_text('tools: {a: {function: "leaves:f"}}')

    assert (
        "module 'leaves' cannot be imported here: the process that imports it ended with status 3"
        in run("check", "desk.yaml").stdout
    )


def test_a_configuration_in_place_of_a_request_is_a_fault(folder: Path) -> None:
    (folder / "desk.yaml").write_text("agents: {a: {}}")

    result = run("chain", "desk.yaml", env=NOWHERE)

    assert result.exit_code == 2
    assert "desk.yaml: line 1: " in result.stderr


def test_a_refused_turn_is_answered_too() -> None:
    result = run("turn", "hello", "--agent", "nobody", "--json", env=NOWHERE)

    assert result.exit_code == 2
    error = RunResult.model_validate_json(result.stdout).error
    assert error is not None
    assert error.message.startswith("turn: agent: no agent is called 'nobody'")


def test_a_turn_can_be_planned() -> None:
    result = run("plan", "--turn", "hello")

    assert result.exit_code == 0
    assert "agents assistant" in result.stdout


SHOP = """
from celery import Celery
app = Celery("shop")

@app.task(name="shop.charge", bind=True, acks_late=True)
def charge(self, quote, note=""): ...
"""


def test_tasks_that_the_application_does_not_have_are_warned_of(documents: Path) -> None:
    (documents / "shop.py").write_text(SHOP)
    (documents / "own.yaml").write_text("tools:\n  pay: {task: shop.chrge}\n  ok: {task: shop.charge}\n")

    quiet = run("check", "own.yaml")
    warned = run("check", "own.yaml", "--strict", env={"CANTATA_APP": "shop:app"})

    assert (quiet.exit_code, warned.exit_code) == (0, 2)
    assert warned.stdout.splitlines() == [
        "own.yaml:2: tools.pay.task: warning: application 'shop:app' has no task 'shop.chrge' on this machine; did you mean 'shop.charge'?"
    ]


def test_a_module_that_only_makes_the_application_is_asked_for_no_task(documents: Path) -> None:
    (documents / "shop.py").write_text('from celery import Celery\napp = Celery("shop")\n')
    (documents / "own.yaml").write_text("tools:\n  pay: {task: shop.charge}\n")

    found = run("check", "own.yaml", "--strict", env={"CANTATA_APP": "shop:app"})

    assert (found.exit_code, found.stdout) == (0, "own.yaml: no faults (1 tool)\n")


def test_an_application_that_cannot_be_imported_is_the_one_fault(documents: Path) -> None:
    (documents / "shop.py").write_text("import stripe_of_nobody\ndef sum(): ...\n")
    (documents / "own.yaml").write_text('tools:\n  pay: {task: shop.charge}\n  sum: {function: "shop:sum"}\n')

    found = run("check", "own.yaml", env={"CANTATA_APP": "shop:app"})

    assert found.exit_code == 2
    message = (
        "the Celery application 'shop:app' cannot be imported: ModuleNotFoundError: No module named 'stripe_of_nobody'"
    )
    assert found.stdout.splitlines() == [f"own.yaml: {message}"]


@pytest.mark.parametrize("more", ["", '  sum: {function: "shop:sum"}\n'])
def test_an_application_that_ends_its_process_is_a_fault(documents: Path, more: str) -> None:
    (documents / "shop.py").write_text("import os\nos._exit(3)\ndef sum(): ...\n")
    (documents / "own.yaml").write_text(f"tools:\n  pay: {{task: shop.charge}}\n{more}")

    found = run("check", "own.yaml", env={"CANTATA_APP": "shop:app"})

    assert found.exit_code == 2
    assert found.stdout.splitlines() == ["own.yaml: the process that imports 'shop:app' ended with status 3"]


def test_arguments_that_a_task_does_not_have_are_faults(documents: Path) -> None:
    (documents / "shop.py").write_text(SHOP)
    node = "{node_id: a, kind: tool, name: pay, input: {note: hi}, input_map: {qoute: input.price}}"
    (documents / "own.yaml").write_text(
        f"tools:\n  pay: {{task: shop.charge, at_most_once: true}}\nchains:\n  order:\n    entry_node: a\n    nodes:\n    - {node}\n"
    )

    found = run("check", "own.yaml", env={"CANTATA_APP": "shop:app"})

    assert found.exit_code == 2
    assert found.stdout.splitlines() == [
        "own.yaml:2: tools.pay.at_most_once: warning: task 'shop.charge' is acknowledged late (acks_late), "
        "so it may be executed twice: workers refuse its steps",
        "own.yaml:7: chains.order.nodes[0] 'a'.input_map.qoute: task 'shop.charge' has no parameter 'qoute'; did you mean 'quote'?",
    ]


def test_the_input_of_a_schedule_is_checked_against_its_chain(documents: Path) -> None:
    (documents / "own.yaml").write_text(
        "chains:\n  order:\n    inputs: {count: integer}\n    entry_node: a\n    nodes: [{node_id: a, kind: agent, name: b}]\n"
        "agents: {b: {}}\nschedules:\n  nightly: {every: 1h, chain: order, input: {cuont: 2}}\n"
    )

    found = run("check", "own.yaml")

    assert found.exit_code == 2
    assert "own.yaml:8: schedules.nightly.input.cuont: " in found.stdout


def test_faults_of_a_workflow_in_python_name_the_file_that_defines_it(folder: Path) -> None:
    (folder / "inner.py").write_text(
        "from cantata import workflow\n\n@workflow\nasync def answer(wf):\n    return open('x')\n"
    )
    (folder / "outer.py").write_text("from inner import answer\n")

    result = run("check", "outer:answer")

    assert result.stdout.startswith("inner.py:5: open in 'answer' differs in each replay")


def test_unknown_names_in_a_workflow_of_a_configuration_have_file_and_line(documents: Path) -> None:
    config = documents / "configs" / "default.yaml"
    config.write_text(CONFIG + 'workflows:\n  answer: {function: "flow:answer"}\n')
    code = "from cantata import workflow\n\n@workflow\nasync def answer(wf):\n    await wf.sleeep(1)\n    return await wf.tool('duoble')\n"
    (documents / "configs" / "flow.py").write_text(code)

    result = run("check")

    assert result.exit_code == 2
    assert [line.partition("configs/flow.py:")[2] for line in result.stdout.splitlines()] == [
        "5: wf.sleeep: a workflow has no 'sleeep'; did you mean 'sleep'? (in 'answer')",
        "6: the configuration has no tool 'duoble'; did you mean 'double'? (in 'answer')",
    ]


def test_a_command_to_which_anybody_may_give_options_is_warned_of(documents: Path) -> None:
    commands = {
        "open": "[sort]",
        "ended": "[sort, --]",
        **{each: f"[sort], args: {each}" for each in ("operands", "any", "none")},
    }
    (documents / "own.yaml").write_text(
        "commands:\n" + "".join(f"  {name}: {{command: {text}}}\n" for name, text in commands.items())
    )

    found = run("check", "own.yaml")

    assert found.exit_code == 0
    warnings = [line for line in found.stdout.splitlines() if "warning" in line and "commands" in line]
    assert [line.partition(" warning: ")[0] for line in warnings] == ["own.yaml:2: commands.open.command:"]
    assert (
        "a run's 'args' that begin with '-' are options of this program: set 'args' to 'operands', before which '--' is put"
        in warnings[0]
    )


def test_a_schema_that_the_models_provider_does_not_take_as_it_is_is_warned_of(documents: Path) -> None:
    (documents / "shapes.yaml").write_text("""
tools:
  pick: {asks: true, parameters: {type: object, anyOf: [{$ref: "#/$defs/a"}], $defs: {a: {type: object}}}}
agents:
  free: {model: openai/gpt-4o-mini, output: {schema: {type: object, properties: {x: {type: object}}}}, tools: [pick]}
  fine: {model: openai/gpt-4o-mini, output: {schema: {type: object, properties: {x: {type: string}}}}}
  other: {model: mistral/small, output: {schema: {type: object, properties: {x: {type: object}}}}}
""")

    found = run("check", "shapes.yaml")

    assert found.exit_code == 0
    warnings = [line.partition(" warning: ") for line in found.stdout.splitlines() if " warning: " in line]
    assert [(where.partition(": ")[2], message) for where, _, message in warnings] == [
        (
            "agents.free.output.schema:",
            "openai takes this schema as a hint, without 'strict': an object may have any keys at properties.x",
        ),
        (
            "tools.pick.parameters:",
            "agent 'free' is not offered this tool: its schema has alternatives at the top that are references",
        ),
    ]


SHAPES = """
from enum import Enum
from typing import Literal

def near(point: tuple[float, float], tags: list) -> str:
    "Say what is near."

def wordy(text: str) -> str: ...
wordy.__doc__ = "x" * 2000

def fine(text: str, level: Literal["a", "b"] = "a") -> str:
    "Say it."

def odd(handle: object, made: Enum, tree: "Tree") -> str:
    "Cannot be described."

def long(a: int) -> int:
    "Its name is long."

print("modules may print")
"""


def warnings_of(file: str) -> list[tuple[str, str]]:
    """The place and the message of each warning of a sound document."""
    found = run("check", file)
    assert found.exit_code == 0, found.stdout
    split = [line.partition(" warning: ") for line in found.stdout.splitlines() if " warning: " in line]
    return [(where.partition(": ")[2].rstrip(":"), message) for where, _, message in split]


def test_functions_whose_schemas_a_provider_does_not_take_as_they_are_are_warned_of(documents: Path) -> None:
    (documents / "shapes.py").write_text(SHAPES)
    name = "l" * 65
    (documents / "shapes.yaml").write_text(f"""
tools:
  near: {{function: "shapes:near"}}
  wordy: {{function: "shapes:wordy"}}
  fine: {{function: "shapes:fine"}}
  odd: {{function: "shapes:odd"}}
  {name}: {{function: "shapes:long"}}
  unused: {{function: "shapes:near"}}
agents:
  one: {{model: openai/gpt-4o-mini, tools: [near, wordy, fine, {name}]}}
  two: {{model: openai/gpt-4o-mini, tools: [near]}}
  three: {{model: mistral/small, tools: [wordy]}}
  own: {{model: server, tools: [near, wordy]}}
  prompted: {{model: openai/gpt-4o-mini, tools: [odd, near], dialect: json}}
  four: {{model: openai/gpt-4o-mini, tools: [odd]}}
models:
  server: {{model: openai/own, params: {{api_base: "http://127.0.0.1:1/v1"}}}}
""")

    array = "an array of its schema has no 'items', or one schema for each place: it gets one for all"
    assert warnings_of("shapes.yaml") == [
        ("tools.near.function", f"openai gets another form of this tool: {array}"),
        (
            "tools.wordy.function",
            "openai gets another form of this tool: its description has 2,000 characters, and is cut to 1,024",
        ),
        (
            f"tools.{name}.function",
            "openai gets another form of this tool: its name has more than 64 characters, and is cut",
        ),
        (
            "tools.odd.function",
            "agent 'four' cannot be offered this tool, and fails: odd has no tool schema: the type Tree of 'tree' cannot be evaluated on "
            "the worker (name 'Tree' is not defined); hide the parameter, give it another type, or write 'parameters' for the tool",
        ),
    ]


def test_tools_beyond_those_that_a_provider_takes_are_warned_of(documents: Path) -> None:
    names = [f"t{number}" for number in range(130)]
    functions = "".join(f"  {name}: {{function: 'my_tools:double'}}\n" for name in names)
    (documents / "my_tools.py").write_text("def double(n: int) -> int:\n    return 2 * n\n")
    agents = "".join(
        f"  {model[0]}: {{model: {model}, tools: [{', '.join(names)}]}}\n"
        for model in ("openai/gpt-4o-mini", "mistral/small")
    )
    (documents / "many.yaml").write_text(f"tools:\n{functions}agents:\n{agents}")

    assert warnings_of("many.yaml") == [
        (f"tools.{name}.function", "agent 'o' is not offered this tool: openai takes 128 tools, and 128 come before it")
        for name in ("t128", "t129")
    ]


@pytest.mark.parametrize("text", ["import not_there\n", "raise SystemExit(3)\n", "import os\nos._exit(3)\n"])
def test_a_module_that_cannot_be_imported_is_a_fault_and_no_schema_of_it_is_warned_of(
    documents: Path, text: str
) -> None:
    (documents / "shapes.py").write_text(f"{text}\ndef near(point: tuple[float, float]): ...\n")
    (documents / "shapes.yaml").write_text(
        "tools:\n  near: {function: 'shapes:near'}\nagents:\n  one: {model: openai/gpt-4o-mini, tools: [near]}\n"
    )

    found = run("check", "shapes.yaml")

    assert found.exit_code == 2
    assert "module 'shapes' cannot be imported here: " in found.stdout
    assert "warning" not in found.stdout
