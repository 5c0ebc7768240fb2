"""Every fault of a file is told at once, with its line, its step and the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.errors import ConfigError
from cantata.flows.turns import turn_plan
from cantata.flows.wire import TurnRequest
from tests.unit.frontends.langswarm.stage import AGENTS, answer, faults, load


def test_the_known_keys_are_listed_once(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        "agents: [{id: x, model: m, colour: red, shape: round}, {id: y, model: m, colour: blue}]\nworkflows: {}",
    )

    assert [("known keys are" in fault) for fault in found] == [True, False, False]


def test_a_workflow_with_a_fault_is_refused_and_the_others_run(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        f"{AGENTS}workflows: {{good: ann -> bob, bad: ann -> bbo, caller: [{{invoke_workflow: bad}}], outer: [caller]}}",
    )

    assert answer(loaded, "good") == "bob<ann<hello>>"
    assert list(loaded.definitions.chains) == ["good"]
    assert loaded.definitions.refused["bad"] == [
        "line 2: workflows.bad: there is no agent, tool or workflow 'bbo'; did you mean 'bob'?"
    ]
    assert "calls 'bad', which has faults: line 2: workflows.bad" in loaded.definitions.refused["caller"][0]
    assert ": calls 'caller', which has faults: line 2: workflows.bad: " in loaded.definitions.refused["outer"][0]
    with pytest.raises(ConfigError, match="there is no agent, tool or workflow 'bbo'"):
        turn_plan.plan_turn(TurnRequest(text="hello", workflow="bad"), loaded.definitions)


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
    found = faults(
        tmp_path, agents=f"{AGENTS}workflows: {{w: ann -> eve}}", workflows=f"\n{AGENTS}workflows: {{w: ann -> bob}}"
    )

    assert "line 2: workflows.yaml agents[0] 'ann': 'ann' is defined twice; it is on line 1 of agents.yaml too" in found
    assert (
        "line 3: workflows.yaml workflows.w: the workflow 'w' is defined twice; it is on line 2 of agents.yaml too"
        in found
    )


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
    found = faults(
        tmp_path, agents="agents: [{id: ann, modle: m}]", workflows="workflows:\n  w: ann -> bbo", tools="tools: [\n"
    )

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
