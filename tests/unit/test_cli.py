"""The command line without a service: usage, errors, documents and plans."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from celery.canvas import Signature
from click.testing import CliRunner, Result

from cantata import text_format
from cantata.cli.commands.worker import WorkerProcess, supervise, workers_for
from cantata.cli.demo import accuracy, next_steps, with_model
from cantata.cli.main import COMMANDS, ExitStatusCommand, submit
from cantata.cli.views.plan_tree import TreeLine, canvas_tree, canvases_of, draw_tree, graph_tree
from cantata.config.chain_requests import with_lines
from cantata.config.documents import parse
from cantata.dispatch.celery_app import make_app
from cantata.errors import CantataError, ConfigError, Fault, UnavailableError, UnknownRunError
from cantata.models.definitions import Agent, Chain, Defaults, Definitions, Tool
from cantata.models.graph import Graph
from cantata.models.values import JsonValue, Usage
from cantata.models.wire import ChainRequest, ChainResponse, RunResult, TurnRequest
from cantata.planning.canvas import Dispatch
from cantata.planning.chains import expansion
from cantata.planning.turns import turn_plan
from cantata.workers.service import serve

NO_SERVICE = {"REDIS_URL": None, "CANTATA_CONFIG": None, "CANTATA_BROKER_URL": None, "CANTATA_LOG_LEVEL": None}
NOWHERE = {"REDIS_URL": "redis://127.0.0.1:1/0"}  # so no stack is started for what is refused before anything is asked of Redis


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CANTATA_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*words: str, given: str | None = None, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(submit, list(words), input=given, env={**NO_SERVICE, **(env or {})})


def command_of(name: str) -> click.Command:
    command = submit.get_command(click.Context(submit), name)
    assert command is not None
    return command


def raising(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return ExitStatusCommand("fail", callback=fail)


# Usage


def test_help_lists_every_command_with_what_it_does() -> None:
    result = run("--help")

    assert result.exit_code == 0
    for name, (_, does) in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert does.split(maxsplit=1)[0] in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_has_the_description_of_each_command(name: str) -> None:
    assert (command_of(name).help or "").startswith(COMMANDS[name][1])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("statsu", "submit status"),
        ("Stats", "submit status"),
        ("chian", "submit chain"),
        ("run", "submit runs"),
        ("dwon", "submit down"),
        ("help", "submit --help"),
        ("version", "submit --version"),
    ],
)
def test_a_word_that_is_nearly_a_command_is_not_sent_to_a_model(typed: str, meant: str) -> None:
    result = run(typed)

    assert result.exit_code == 2
    assert f"did you mean `{meant}`?" in result.stderr
    assert f"submit turn '{typed}'" in result.stderr


def test_the_name_of_a_file_is_not_sent_to_a_model(folder: Path) -> None:
    (folder / "request.yaml").write_text("nodes: []")

    result = run("request.yaml")

    assert result.exit_code == 2
    assert "did you mean `submit chain request.yaml`?" in result.stderr


@pytest.mark.parametrize("typed", [["hello"], ["status of my order?"], ["statsu of it"], ["--team", "x", "hello"], ["turn", "statsu"]])
def test_other_texts_are_turns(typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    turns_seen: list[str] = []
    monkeypatch.setattr(command_of("turn"), "callback", lambda **options: turns_seen.append(options["text"]))

    result = run(*typed)

    assert result.exit_code == 0
    assert turns_seen == [next(word for word in reversed(typed) if word not in ("--team", "x"))]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["turn"], "Missing argument 'TEXT'"),
        (["turn", "a", "b"], "unexpected extra argument"),
        (["turn", "a", "--timout", "3"], "Did you mean '--timeout'?"),
        (["turn", "a", "--timeout", "0"], "not in the range"),
        (["chain", "a.yaml", "--input", "[1]"], 'expected a JSON object such as {"key": "value"}'),
        (["chain", "a.yaml", "--input", '{"a"'], "not JSON"),
        (["chain", "a.yaml", "--input", "text=one"], """write '{"text": "one"}'"""),
        (["chain", "a.yaml", "--input", "@none.json"], "cannot be read"),
        (["plan"], "name the FILE of a chain request"),
        (["plan", "a.yaml", "--turn", "b"], "name the FILE of a chain request"),
        (["runs", "shwo"], "shwo"),
        (["runs", "signal", "r", "s", "yes"], "a text needs its own quotes"),
        (["runs", "follow", "r", "--from", "-1"], "not in the range"),
        (["up", "--agents", "0"], "not in the range"),
        (["worker"], "Missing argument 'QUEUE...'"),
    ],
)
def test_wrong_usage_has_status_2(typed: list[str], message: str) -> None:
    result = run(*typed)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


# Errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError([Fault("one", "a", 3), Fault("two")], source="f.yaml"), 2),
        (UnknownRunError("no run 'x'"), 2),
        (UnavailableError("Redis is away"), 3),
        (CantataError("the definitions have expired"), 1),
    ],
)
def test_an_expected_error_is_its_sentence_and_its_status(error: CantataError, status: int) -> None:
    result = CliRunner().invoke(raising(error), env=NO_SERVICE)

    assert result.exit_code == status
    assert result.stderr == "".join(f"submit: {line}\n" for line in str(error).splitlines())
    assert result.stdout == ""


def test_an_unexpected_error_is_one_line_that_names_the_way_to_its_details() -> None:
    result = CliRunner().invoke(raising(KeyError("a\nb")), env=NO_SERVICE)

    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "KeyError" in result.stderr
    assert "CANTATA_LOG_LEVEL=DEBUG" in result.stderr


def test_details_are_shown_when_they_are_asked_for() -> None:
    result = CliRunner().invoke(raising(KeyError("a")), env={"CANTATA_LOG_LEVEL": "debug"})

    assert "Traceback" in result.stderr


def test_an_interrupt_before_there_is_a_run_has_status_130() -> None:
    result = CliRunner().invoke(raising(KeyboardInterrupt()), env=NO_SERVICE)

    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_where_no_runs_are_kept_none_are_looked_for(folder: Path) -> None:
    result = run("runs", "list")

    assert result.exit_code == 3
    assert "no runs are kept here" in result.stderr
    assert not (folder / "home").exists()


def test_a_worker_without_a_redis_is_refused() -> None:
    result = run("worker", "tools")

    assert result.exit_code == 3
    assert "set REDIS_URL" in result.stderr


def test_status_without_a_service_has_status_3_with_json_too() -> None:
    result = run("status", "--json")

    assert result.exit_code == 3
    assert json.loads(result.stdout)["running"] is False


def test_down_without_a_stack_changes_nothing() -> None:
    result = run("down", "--json")

    assert (result.exit_code, json.loads(result.stdout)) == (0, {"stopped": False})


# Documents

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
            "line 3: nodes[0] 'read'.name: 'duoble' is not under 'tools'; did you mean 'double'?",
        ),
        ("next_node: last", "next_node: lost", "line 4: nodes[1] 'each'.next_node: node 'lost' is not in the chain; did you mean 'last'?"),
        ("items_path: read", "items_path: 'read['", "line 4: nodes[1] 'each'.items_path: "),
        ("n: _item", "n: '_item +'", "line 5: nodes[2] 'one'.input_map"),
        ("kind: map", "kind: mop", "line 4: nodes[1] 'each'.kind: "),
        ("node_id: last", "node_id: read", "line 6: nodes[3] 'read'.node_id: "),
        ("entry_node: read", "entry_node: raed", "line 1: entry_node: "),
        ("next_node: each", "next_nod: each", "line 3: nodes[0] 'read'.next_nod: unknown key 'next_nod'; did you mean 'next_node'?"),
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
        ("tools:\n  double: {function: 'my_tools:dobule'}\n", "line 2: tools.double.function: function 'dobule' is not in my_tools.py"),
        ("tols: {}\n", "line 1: tols: unknown key 'tols'; did you mean 'tools'?"),
        (
            CONFIG + "chains:\n  c:\n    entry_node: a\n    nodes:\n      - {node_id: a, kind: tool, name: nope}\n",
            "line 7: chains.c.nodes[0] 'a'.name: ",
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
        ("nodes[0] 'read'.name", 3), ("nodes[2] 'one'.name", 5), ("nodes[3] 'last'.name", 6)
    ]  # fmt: skip


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
    assert [line.split()[1] for line in graph.splitlines()[1:] if line.startswith(("├", "└"))] == ["read", "each", "last"]
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

    checked, run_with_input = run("check", "draft.yaml"), run("chain", "draft.yaml", "--input", '{"by": 1}', env=NOWHERE)

    assert checked.exit_code == 0
    assert checked.stdout.endswith("(a chain request of 1 node, which expects an input with 'aa', 'by')\n")
    assert run_with_input.exit_code == 2
    assert "line 2: nodes[0] 'a'.input_map.text: 'aa' is neither a node of the chain nor an input" in run_with_input.stderr


def test_a_missing_input_is_a_fault_before_anything_runs(folder: Path) -> None:
    nodes = "[{node_id: a, kind: agent, name: assistant, input_map: {text: text}}]"
    (folder / "needy.yaml").write_text(f"entry_node: a\ninputs:\n  text: string\nnodes: {nodes}")

    assert run("check", "needy.yaml").exit_code == 0
    result = run("chain", "needy.yaml", env=NOWHERE)

    assert result.exit_code == 2
    assert "initial_input.text: is missing: the chain declares it as a required input of type 'string'" in result.stderr


@pytest.mark.parametrize(
    ("request_text", "code", "faults"),
    [
        (
            "chain_id: c1\nentry_node: b\nnodes:\n- {node_id: a, kind: tool, name: t, next_node: c}",
            "bad_request",
            ["nodes[0] 'a'.name", "nodes[0] 'a'.next_node", "entry_node"],
        ),
        ("chain_id: c1\nentry_node: b\nnodes:\n- {node_id: a, kind: agent, name: assistant}", "bad_entry", ["entry_node"]),
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

    assert "nodes[0] 'a'.kind: expected 'tool'," in output
    assert "found 'tol'; did you mean 'tool'?" in output
    assert "nodes[0] 'a'.next_node: node 'bb' is not in the chain; did you mean 'b'?" in output
    assert "'nobody' is not under" in output


def test_a_module_that_cannot_be_imported_is_a_fault_of_the_configuration(folder: Path) -> None:
    (folder / "good.py").write_text("print('hello')\ndef f(): ...")
    (folder / "broken.py").write_text("import no_such_module_anywhere\ndef f(): ...")
    (folder / "desk.yaml").write_text('tools:\n  a: {function: "good:f"}\n  b: {function: "broken:f"}')

    result = run("check", "desk.yaml")

    assert result.exit_code == 2
    assert result.stdout == (
        "desk.yaml: line 3: tools.b.function: module 'broken' cannot be imported here: "
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'\n"
    )


def test_a_module_that_ends_its_process_when_it_is_imported_is_a_fault(folder: Path) -> None:
    (folder / "leaves.py").write_text("import os\nos._exit(3)\ndef f(): ...")
    (folder / "desk.yaml").write_text('tools: {a: {function: "leaves:f"}}')

    assert "module 'leaves' cannot be imported here: the process that imports it ended with status 3" in run("check", "desk.yaml").stdout


def test_a_configuration_in_place_of_a_request_is_a_fault(folder: Path) -> None:
    (folder / "desk.yaml").write_text("agents: {a: {}}")

    result = run("chain", "desk.yaml", env=NOWHERE)

    assert result.exit_code == 2
    assert "this is a configuration, not a chain request, which has 'nodes'" in result.stderr


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


# Plans

TWICE = Definitions(
    tools={"t": Tool(function="json:dumps")},
    agents={"a": Agent(), "b": Agent(instructions=["{input}", "again: {input}"])},
    chains={"inner": Chain.model_validate({"entry_node": "x", "nodes": [{"node_id": "x", "kind": "agent", "name": "b"}]})},
    defaults=Defaults(agent="a"),
)


def graph_of(*nodes: dict[str, JsonValue]) -> Graph:
    return expansion.plan(ChainRequest.model_validate({"nodes": list(nodes), "entry_node": nodes[0]["node_id"]}), TWICE)


def canvas_of(graph: Graph) -> list[TreeLine]:
    return canvas_tree(canvases_of(graph, Dispatch(make_app("redis://here"), "RUN")))


def texts(lines: list[TreeLine]) -> list[str]:
    return [" ".join(line.split()) for line in draw_tree(lines)]


def test_what_is_known_to_grow_is_drawn_under_its_grower() -> None:
    tree = texts(graph_tree(graph_of({"node_id": "g", "kind": "chain", "name": "inner"}), TWICE))

    assert [line.split("─ ")[1].split()[0] for line in tree] == ["g", "g/x", "g/x/@1", "g/x/@2", "g/@end"]


def test_a_row_of_agents_is_one_chain_and_a_fan_that_meets_a_chord() -> None:
    row: list[dict[str, JsonValue]] = [
        {"node_id": "p", "kind": "agent", "name": "a", "next_node": "q"},
        {"node_id": "q", "kind": "agent", "name": "a"},
    ]
    fan: list[dict[str, JsonValue]] = [
        {"node_id": "p", "kind": "agent", "name": "a"},
        {"node_id": "q", "kind": "agent", "name": "a"},
        {"node_id": "j", "kind": "agent", "name": "a", "deps": ["p", "q"]},
    ]
    decision: dict[str, JsonValue] = {"node_id": "s", "kind": "branch", "condition": "`true`", "true_node": ["p", "q"]}
    step: dict[str, JsonValue] = {"node_id": "s", "kind": "tool", "name": "t", "next_node": ["p", "q"]}

    assert texts(canvas_of(graph_of(*row)))[0] == "└─ chain"
    assert texts(canvas_of(graph_of(decision, *fan)))[:3] == ["├─ s in place, without a message", "└─ chord", "├─ group"]
    assert [line.split()[1] for line in texts(canvas_of(graph_of(step, *fan)))] == ["tool.call", "group", "├─", "└─", "agent.turn"], (
        "whoever did s has no graph at hand"
    )


def test_each_step_is_in_one_canvas() -> None:
    graph = turn_plan.plan_turn(TurnRequest(text="x", agent="b"), TWICE)

    assert len([line for line in texts(canvas_of(graph)) if " b " in f"{line} "]) == 1


# Lines of faults


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("entry_node", 1),
        ("nodes", 2),
        ("nodes[0] 'a.b'.kind", 4),
        ("nodes[0] 'a.b'.input_map.x", 6),
        ("nodes[0] 'a.b'", 3),
        ("nodes[0] 'a.b'.deps", 3),
        ("elsewhere", 1),
    ],
)
def test_a_place_leads_to_its_line(where: str, line: int) -> None:
    document = parse("entry_node: a\nnodes:\n  - node_id: a.b\n    kind: tool\n    input_map:\n      x: y\n")

    assert with_lines([Fault("m", where)], document)[0].line == line


# Workers


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_queues_of_one_pool_share_a_process() -> None:
    (worker,) = workers_for(("tools", "gpu"), "mine", 3)

    assert (worker.name, worker.queues) == ("mine", ("tools", "gpu"))
    assert worker.command == [sys.executable, "-P", "-m", "cantata.workers", "tools", "gpu", "--name", "mine", "--concurrency", "3"]


@pytest.mark.parametrize(
    ("queues", "name"), [(["tools"], "a|b"), (["tools"], "a~b"), (["tools"], "50%h"), (["a|b"], None), (["tools"], "x" * 101)]
)
def test_a_name_that_would_corrupt_leases_is_refused(queues: list[str], name: str | None) -> None:
    with pytest.raises(ConfigError, match="name has letters from A to Z, digits and"):
        workers_for(queues, name, None)
    with pytest.raises(ConfigError, match="name has letters from A to Z, digits and"):
        serve(tuple(queues), name=name or "worker", concurrency=None)


def test_a_worker_that_ends_on_its_own_stops_the_others_and_is_reported(capsys: pytest.CaptureFixture[str], kept_signals: None) -> None:
    python = [sys.executable, "-S", "-c"]
    lasting = WorkerProcess("lasting", ("agents",), [*python, "import time; time.sleep(600)"])
    failing = WorkerProcess("failing", ("tools",), [*python, "raise SystemExit(7)"])

    assert supervise([lasting, failing]) == 1

    assert capsys.readouterr().err.splitlines() == [
        "submit: worker failing ended with 7; stopping the others",
        "submit: worker lasting ended with -15",
    ]


def test_queues_of_several_pools_get_a_process_each() -> None:
    workers = workers_for(("agents", "tools", "coordinator", "gpu", "tools"), "mine", None)

    assert [(worker.name, worker.queues) for worker in workers] == [
        ("mine-agents", ("agents",)),
        ("mine-coordinator", ("coordinator",)),
        ("mine-tools", ("tools", "gpu")),
    ]


# Text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;never ended", "52;c;never ended"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPq\x1b\\sixel", "sixel"),
        ("a\r\nb\rc\x08\x00", "a\nbc"),
        ("[bold]kept[/bold] ü 漢 🎻", "[bold]kept[/bold] ü 漢 🎻"),
    ],
)
def test_what_could_harm_a_terminal_is_taken_out(text: str, cleaned: str) -> None:
    assert text_format.clean(text) == cleaned


@pytest.mark.parametrize(
    ("ms", "message"),
    [(0, "0 ms"), (999, "999 ms"), (1200, "1.2 s"), (59_900, "59.9 s"), (63_000, "1 min 03 s"), (7_260_000, "2 h 01 min")],
)
def test_times_have_the_unit_that_fits(ms: float, message: str) -> None:
    assert text_format.duration(ms) == message


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        (Usage(), ""),
        (Usage(input_tokens=1200, output_tokens=3), "1,200→3 tokens"),
        (Usage(input_tokens=1, cost_usd=0.0005), "1→0 tokens · $0.0005"),
        (Usage(input_tokens=1, cost_usd=2.5), "1→0 tokens · $2.50"),
    ],
)
def test_an_unknown_price_is_left_out(usage: Usage, message: str) -> None:
    assert text_format.usage(usage) == message


def test_a_long_text_becomes_one_short_line() -> None:
    assert text_format.line("a\nb  " + "c" * 200, 10) == "a b cccccc…"[:9] + "…"


# Demo


def test_the_demo_can_use_any_model() -> None:
    assert with_model(Definitions(), "openai/x").defaults.model == "openai/x"
    assert with_model(Definitions(), None) == Definitions()


def test_the_demo_prints_the_share_of_correct_labels() -> None:
    rows: list[Mapping[str, JsonValue]] = [{"right": True}, {"right": True}, {"right": False}]

    assert accuracy(rows) == "2 of 3 labels are those a person gave (67%)."


def test_the_demo_ends_with_commands_to_try() -> None:
    message = next_steps("r1", "r2", had_redis=True)

    assert len([line for line in message.splitlines() if line.startswith("  env -u REDIS_URL ")]) == 4
    assert "r1" in message
    assert "r2" in message
