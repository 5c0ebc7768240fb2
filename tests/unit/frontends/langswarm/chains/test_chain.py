"""Workflows become chains that do what LangSwarm's pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.config.formats import Configuration
from cantata.values import JsonValue
from tests.unit.flows.interpreter import Tool, ToolFailure
from tests.unit.frontends.langswarm.stage import AGENTS, answer, asked, load, play

# --- shapes ------------------------------------------------------------------------------------------------------------

STEPS = "[{id: a, agent: ann, input: '${user_input}'}, {id: b, agent: bob, input: '${a}', output: {to: user}}]"


@pytest.mark.parametrize(
    ("workflows", "names"),
    [
        (f"{{w: {{steps: {STEPS}}}}}", ["w"]),
        (f"{{w: {STEPS}}}", ["w"]),
        (f"{{main: [{{id: w, steps: {STEPS}}}, {{id: v, steps: {STEPS}}}]}}", ["w", "v", "main"]),
        (f"[{{id: w, name: W, steps: {STEPS}}}]", ["w"]),
        ("{w: ann -> bob -> user}", ["w"]),
        ("{w: [ann, bob]}", ["w"]),
    ],
)
def test_every_shape_of_workflows_loads(tmp_path: Path, workflows: str, names: list[str]) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: {workflows}")

    assert list(loaded.definitions.chains) == names
    assert answer(loaded, "w") == "bob<ann<hello>>"


def test_a_list_of_arrows_is_numbered(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: ['ann -> user', 'ann -> bob -> user']")

    assert answer(loaded, "workflow_2") == "bob<ann<hello>>"


def test_side_by_side_arrows_give_an_object(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        f"{AGENTS}workflows: {{w: 'ann, bob -> cleo -> user', v: 'ann -> bob, cleo', u: 'ann, bob -> cleo, dan -> eve'}}",
    )

    assert answer(loaded, "w") == "cleo<{'ann': 'ann<hello>', 'bob': 'bob<hello>'}>"
    assert answer(loaded, "v") == {"bob": "bob<ann<hello>>", "cleo": "cleo<ann<hello>>"}
    assert asked(play(loaded, "u")) == ["ann", "bob", "cleo", "dan", "eve"]


@pytest.mark.parametrize(
    ("said", "chosen"), [("billing", "cleo"), ("It is CLEO's.", "cleo"), ("bob, I think", "bob"), ("who knows", "cleo")]
)
def test_of_alternative_arrows_the_one_is_taken_that_the_answer_names(tmp_path: Path, said: str, chosen: str) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: 'ann -> (bob | cleo) -> dan -> user'}}")

    assert answer(loaded, "w", ann=said) == f"dan<{chosen}<{said}>>"
    assert asked(play(loaded, "w", ann=said)) == ["ann", chosen, "dan"]


# --- steps in a row ------------------------------------------------------------------------------------------------------


def test_steps_follow_each_other_in_list_order_and_get_what_was_said_before(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: [{{agent: ann}}, {{agent: bob}}, {{agent: ann}}]}}")

    run = play(loaded, "w")

    assert asked(run) == ["ann", "bob", "ann-2"]
    assert run.output("it") == "ann<bob<ann<hello>>>"


def test_the_output_of_an_agent_is_that_of_its_most_recent_earlier_step(tmp_path: Path) -> None:
    steps = "[{agent: ann}, {agent: ann, input: 'again ${ann.output}'}, {agent: bob, input: '${ann.output}'}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w") == "bob<ann<again ann<hello>>>"


def test_inputs_may_be_texts_mappings_and_lists(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann, inputs: {user_input: '${user_input}', kind: x}},
      {id: b, agent: bob, input: ['${a.kind}', 1]},
      {id: c, agent: cleo, input: "none: ${context.nobody}."}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann=lambda given: given, bob=lambda given: given) == "cleo<none: .>"
    run = play(loaded, "w", ann=lambda given: given, bob=lambda given: given)
    assert run.output("it/a") == {"user_input": "hello", "kind": "x"}
    assert run.output("it/b") == {"input": ["x", 1]}


def test_a_step_without_routes_ends_where_the_user_is_told(tmp_path: Path) -> None:
    steps = "[{id: a, agent: ann, output: {to: [user, b]}}, {id: b, agent: bob, output: {to: user}}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w") == {"a": "ann<hello>", "b": "bob<ann<hello>>"}


# --- routes --------------------------------------------------------------------------------------------------------------

ROUTED = """
      - {id: a, agent: ann, output: {to: [%s]}}
      - {id: b, agent: bob, input: b, output: {to: user}}
      - {id: c, agent: cleo, input: c, output: {to: user}}
      - {id: d, agent: dan, input: d, output: {to: user}}
"""


@pytest.mark.parametrize(
    ("route", "replies", "done"),
    [
        ("condition: {if: \"${a.level} == 'high'\", then: b, else: c}", {"level": "high"}, ["a", "b"]),
        ("condition: {if: \"${a.level} == 'high'\", then: b, else: c}", {"level": "low"}, ["a", "c"]),
        ("condition: {if: \"${previous_output.level} == high\", then: [b, {step: c}], else: d}", {"level": "high"}, ["a", "b", "c"]),
        ("condition: {if: '${a.x}', then: b, else: {condition: {if: '${a.y}', then: c, else: d}}}", {"y": 1}, ["a", "c"]),
        ("condition: {if: '${a.x}', then: b, else: {condition: {if: '${a.y}', then: c, else: d}}}", {}, ["a", "d"]),
        ("condition: {switch: '${a.k}', cases: {one: b, two: c}, default: d}", {"k": "two"}, ["a", "c"]),
        ("condition: {switch: '${a.k}', cases: {one: b, '2': c}, default: d}", {"k": 2}, ["a", "c"]),
        ("condition: {switch: '${a.k}', cases: {one: b, 'true': c}, default: d}", {"k": True}, ["a", "c"]),
        ("condition: {switch: '${a.k}', cases: {one: b, two: c}, default: d}", {"k": "ten"}, ["a", "d"]),
        ("condition: {switch: '${a.k}', cases: {one: b, two: c}, default: d}", {}, ["a", "d"]),
        ("condition: {exists: '${a.id}', then: b, else: c}", {"id": 0}, ["a", "b"]),
        ("condition: {exists: '${a.id}', then: b, else: c}", {}, ["a", "c"]),
        ("condition: {if: '${a.id} exists', then: b, else: c}", {"id": ""}, ["a", "b"]),
    ],
)  # fmt: skip
def test_one_way_of_a_condition_is_taken(tmp_path: Path, route: str, replies: JsonValue, done: list[str]) -> None:
    used = [step for step in "bcd" if f" {step}" in route or f"[{step}" in route]
    rest = "".join(
        line + "\n"
        for line in (ROUTED % f"{{{route}}}").splitlines()
        if "id: a" in line or any(f"id: {s}" in line for s in used)
    )
    loaded = load(tmp_path, f"{AGENTS}workflows:\n  w:\n    steps:\n{rest}")

    assert asked(play(loaded, "w", ann=replies)) == done


def test_the_user_may_be_one_way_of_a_condition(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann, output: {to: {condition: {if: '${a.ok}', then: user, else: b}}}},
      {id: b, agent: bob, input: mend, output: {to: user}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann={"ok": True}) == {"ok": True}
    assert answer(loaded, "w", ann={"ok": False}) == "bob<mend>"


def test_a_condition_on_the_user_alone_needs_no_step(tmp_path: Path) -> None:
    steps = "[{id: a, agent: ann, output: {to: [{condition: {if: '${a.ok}', then: user}}, b]}}, {id: b, agent: bob, output: {to: user}}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann={"ok": True}, bob="b") == {"a": {"ok": True}, "b": "b"}
    assert answer(loaded, "w", ann={"ok": False}, bob="b") == "b"


@pytest.mark.parametrize(("said", "told"), [("x", "bob<x>"), ("y", "cleo<y>"), ("z", "z")])
def test_where_no_way_leads_on_the_last_output_is_the_answer(tmp_path: Path, said: str, told: str) -> None:
    steps = """[
      {id: a, agent: ann, output: {to: {condition: {switch: '${a}', cases: {x: b, y: c}}}}},
      {id: b, agent: bob},
      {id: c, agent: cleo}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann=said) == told


def test_a_condition_that_leads_back_is_a_loop(tmp_path: Path) -> None:
    steps = """[
      {id: write, agent: ann, input: '${review.notes || user_input}'},
      {id: review, agent: bob, input: '${write}', output: {to: {condition: {if: '${review.good}', then: user, else: write}}}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")
    rounds: Iterator[JsonValue] = iter([{"notes": "longer"}, {"notes": "shorter"}, {"good": True, "text": "done"}])

    run = play(loaded, "w", bob=lambda given: next(rounds))

    assert run.output("it") == {"good": True, "text": "done"}
    assert [run.outputs[step] for step in run.story if "write" in step] == ["ann<hello>", "ann<longer>", "ann<shorter>"]


def test_an_agent_may_be_the_target(tmp_path: Path) -> None:
    steps = "[{id: a, agent: ann, output: {to: bob}}, {id: c, agent: cleo, depends_on: b}, {id: b, agent: bob}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert asked(play(loaded, "w")) == ["a", "b", "c"]


def test_a_step_whose_condition_does_not_hold_is_passed_over(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann},
      {id: b, agent: bob, condition: "${a.tier} == 'premium'", input: more},
      {id: c, agent: cleo, input: 'a ${a.tier} b ${b}'}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann={"tier": "premium"}) == "cleo<a premium b bob<more>>"
    assert answer(loaded, "w", ann={"tier": "free"}) == "cleo<a free b >"


def test_condition_steps_choose_among_steps(tmp_path: Path) -> None:
    steps = """[
      {id: review, type: agent, agent_id: ann, input_template: 'Review: ${input}'},
      {id: check, type: condition, condition: '${review.score} >= ${limit}', true_step: auto, false_step: manual, depends_on: [review]},
      {id: auto, type: agent, agent_id: bob, input: 'auto ${review.score}', depends_on: [check]},
      {id: manual, type: agent, agent_id: cleo, input: 'manual ${review.score}', depends_on: [check]},
      {id: tell, agent: dan, input: '${auto || manual}', depends_on: [auto, manual]}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {{variables: {{limit: 0.8}}, steps: {steps}}}}}")

    assert answer(loaded, "w", ann={"score": 0.9}) == "dan<bob<auto 0.9>>"
    assert answer(loaded, "w", ann={"score": 0.2}) == "dan<cleo<manual 0.2>>"


@pytest.mark.parametrize(
    ("steps", "yes", "no"),
    [
        (
            "{id: check, condition: '${a}', true_step: b}, {id: b, agent: bob, input: b}, {id: c, agent: cleo, input: c}",
            "abc",
            "ac",
        ),
        (
            "{id: check, condition: '${a}', false_step: b}, {id: b, agent: bob, input: b}, {id: c, agent: cleo, input: c}",
            "ac",
            "abc",
        ),
        (
            "{id: check, condition: '${a}', true_step: c}, {id: b, agent: bob, input: b}, {id: c, agent: cleo, input: c}",
            "ac",
            "ab",
        ),
        (
            "{id: check, condition: '${a}', true_step: b}, {id: b, agent: bob, input: b, output: {to: user}}, "
            "{id: c, agent: cleo, input: c, output: {to: user}}",
            "ab",
            "ac",
        ),
        (
            "{id: check, condition: '${a}', true_step: b}, {id: b, agent: bob, input: b}, {id: c, agent: cleo, fan_key: k, input: c}, "
            "{id: d, agent: dan, fan_key: k, input: d}, {id: e, agent: eve, fan_key: k, is_fan_in: true}",
            "abcde",
            "acde",
        ),
    ],
)
def test_a_condition_that_names_one_step_goes_past_it_else(tmp_path: Path, steps: str, yes: str, no: str) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: [{{id: a, agent: ann}}, {steps}]}}")

    for said, done in (("yes", yes), ("false", no)):
        run = play(loaded, "w", ann=said)
        assert asked(run) == list(done)
        assert run.output("it") is not None


def test_a_condition_that_ends_the_workflow_leaves_what_was_said_before(tmp_path: Path) -> None:
    steps = "[{id: a, agent: ann}, {id: check, condition: '${a}', true_step: b}, {id: b, agent: bob}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann="false") == "false"
    assert answer(loaded, "w", ann="yes", bob="b") == "b"


def test_a_switch_of_many_cases_asks_each_alone(tmp_path: Path) -> None:
    def loaded(count: int) -> Configuration:
        cases = ", ".join(f"k{number}: {'b' if number % 2 else 'user'}" for number in range(count))
        steps = f"[{{id: a, agent: ann, output: {{to: {{condition: {{switch: '${{a}}', cases: {{{cases}}}, default: c}}}}}}}}"
        return load(
            tmp_path,
            f"{AGENTS}workflows: {{w: {steps}, {{id: b, agent: bob, output: {{to: user}}}}, "
            "{id: c, agent: cleo, output: {to: user}}]}",
        )

    many = loaded(120)
    sizes = [len(loaded(count).definitions.model_dump_json()) for count in (10, 20)]

    told = {said: answer(many, "w", ann=said) for said in ("k0", "k1", "k118", "k119", "other")}
    assert told == {"k0": "k0", "k1": "bob<k1>", "k118": "k118", "k119": "bob<k119>", "other": "cleo<other>"}
    assert len(many.definitions.model_dump_json()) < sizes[0] + (sizes[1] - sizes[0]) * 12


# --- inputs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (
            "{required: [user_input], additionalProperties: false, properties: {user_input: {type: string, minLength: 3}}}",
            True,
        ),
        ("{properties: {input: {maxLength: 3}}}", False),
        ("{required: [topic], properties: {topic: {type: string}}}", False),
        ("{required: [topic], properties: {topic: {type: string, default: tea}}}", True),
    ],
)
def test_a_workflow_begins_with_its_input_held_against_its_schema(tmp_path: Path, schema: str, fits: bool) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {{input_schema: {schema}, steps: [{{id: a, agent: ann}}]}}}}")

    run = play(loaded, "w")

    assert (run.status == "succeeded") is fits
    assert asked(run) == (["given", "a"] if fits else [])


# --- order ---------------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_fan_begin_together_and_are_gathered_once(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann},
      {id: b, agent: bob, fan_key: k, input: '${a}'},
      {id: c, agent: cleo, fan_key: k, input: '${a}'},
      {id: all, agent: dan, fan_key: k, is_fan_in: true},
      {id: e, agent: eve}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    run = play(loaded, "w")

    assert asked(run) == ["a", "b", "c", "all", "e"]
    assert run.output("it") == "eve<dan<{'b': 'bob<ann<hello>>', 'c': 'cleo<ann<hello>>'}>>"


def test_the_steps_of_a_fan_may_name_what_gathers_them(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann, output: {to: [b, c]}},
      {id: b, agent: bob, fan_in_id: all, input: b},
      {id: c, agent: cleo, fan_in_id: all, input: c},
      {id: all, agent: dan}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w") == "dan<{'b': 'bob<b>', 'c': 'cleo<c>'}>"


def test_loops_do_their_items_one_after_the_other_unless_the_workflow_is_async(tmp_path: Path) -> None:
    steps = "[{id: each, loop: {for_each: [1, 2], body: {agent: ann}}}, {id: all, async: true, loop: {for_each: [1], body: {agent: ann}}}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {{steps: {steps}}}, v: {{async: true, steps: {steps}}}}}")

    def most(workflow: str) -> list[int | None]:
        return [node.max_concurrency for node in loaded.definitions.chains[workflow].nodes if node.kind == "map"]

    assert (most("w"), most("v")) == ([1, None], [None, None])


def test_a_fan_may_be_drawn_with_targets(tmp_path: Path) -> None:
    steps = """[
      {id: split, agent: ann, output: {to: [{step: b, await: true}, {step: c, await: true}]}},
      {id: b, agent: bob, input: '${previous_output}', output: {to: gather}},
      {id: c, agent: cleo, input: '${previous_output}', output: {to: gather}},
      {id: gather, agent: dan, input: 'B ${step_outputs.b} C ${context.step_outputs.c}', output: {to: user}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w") == "dan<B bob<ann<hello>> C cleo<ann<hello>>>"
    assert asked(play(loaded, "w")).count("gather") == 1


@pytest.mark.parametrize(
    "workflow",
    [
        "{execution_mode: parallel, steps: [{id: a, agent: ann}, {id: b, agent: bob}, {id: c, agent: cleo, input: '${a} ${b}'}]}",
        "[{id: a, agent: ann, depends_on: []}, {id: b, agent: bob, depends_on: []}, {id: c, agent: cleo, input: '${a} ${b}'}]",
        "{execution_mode: parallel, steps: [{id: a, agent: ann}, {id: c, loop: {for_each: [1, 2], body: {agent: bob, input: '${a}'}}}]}",
        "{execution_mode: parallel, steps: [{id: a, agent: ann}, {id: c, agent: cleo, condition: '${a} exists', input: x}]}",
    ],
)
def test_the_answer_is_that_of_the_steps_that_nobody_reads(tmp_path: Path, workflow: str) -> None:
    run = play(load(tmp_path, f"{AGENTS}workflows: {{w: {workflow}}}"), "w")

    assert run.output("it") == run.output("it/c")


def test_a_last_step_that_is_read_in_the_next_round_gives_the_answer(tmp_path: Path) -> None:
    steps = """[
      {id: write, agent: ann, input: '${review.notes || user_input}'},
      {id: review, agent: bob, input: '${write}', output: {to: {condition: {if: '${review.notes}', then: write}}}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")
    rounds: Iterator[JsonValue] = iter([{"notes": "longer"}, {"text": "done"}])

    assert answer(loaded, "w", bob=lambda given: next(rounds)) == {"text": "done"}


@pytest.mark.parametrize(
    "steps",
    [
        "{id: a, agent: ann}, {id: b, agent: bob, condition: '${a} == x'}",
        "{id: a, agent: ann}, {id: b, agent: bob, condition: '${a} == x', output: {to: user}}",
        "{id: a, agent: ann, output: {to: {condition: {if: '${a} == x', then: user, else: b}}}}, {id: b, agent: bob, condition: '${a.x}'}",
    ],
)
def test_if_the_steps_of_the_answer_are_skipped_it_is_the_last_output(tmp_path: Path, steps: str) -> None:
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: [{steps}]}}")

    assert answer(loaded, "w") == "ann<hello>"


def test_an_answer_that_is_dropped_is_never_that_of_the_workflow(tmp_path: Path) -> None:
    steps = "{id: a, agent: ann, output: {to: [b, {invoke: good}]}}, {id: b, agent: bob, condition: '${a} == x', output: {to: user}}"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: [{steps}], good: [{{agent: cleo}}]}}")

    assert answer(loaded, "w") == "ann<hello>"


def test_in_parallel_only_what_a_step_reads_or_names_comes_before_it(tmp_path: Path) -> None:
    first = "{id: a, agent: ann}, {id: b, agent: bob}, {id: c, agent: cleo, input: '${a} ${b}'}"
    steps = f"[{first}, {{id: d, agent: dan, depends_on: c, input: d}}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {{execution_mode: parallel, steps: {steps}}}}}")

    run = play(loaded, "w")

    assert asked(run) == ["a", "b", "c", "d"]
    assert run.output("it/b") == "bob<hello>"
    assert run.output("it/c") == "cleo<ann<hello> bob<hello>>"


def test_the_step_under_an_async_one_begins_with_it(tmp_path: Path) -> None:
    steps = "[{id: a, agent: ann}, {id: log, agent: bob, async: true}, {id: c, agent: cleo}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w") == {"log": "bob<ann<hello>>", "c": "cleo<ann<hello>>"}


# --- failures --------------------------------------------------------------------------------------------------------------


def failing(times: int) -> Tool:
    left = [times]

    def say(given: dict[str, JsonValue]) -> JsonValue:
        left[0] -= 1
        if left[0] >= 0:
            raise ToolFailure
        return "at last"

    return say


def test_a_rollback_goes_back_as_often_as_it_may(tmp_path: Path) -> None:
    steps = "[{id: a, agent: ann}, {id: b, agent: bob, rollback_to: a, rollback_limit: 2}, {id: c, agent: cleo}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    run = play(loaded, "w", bob=failing(2))
    assert run.output("it") == "cleo<at last>"
    assert sum(step.startswith("it/a") for step in run.story) == 3
    assert play(loaded, "w", bob=failing(3)).status == "failed"


@pytest.mark.parametrize("failures", [0, 1, 2])
@pytest.mark.parametrize(
    "ways", ["", ", output: {to: [c, d]}", ", output: {to: {condition: {if: '${b} == never', then: d, else: c}}}"]
)
def test_what_is_skipped_after_its_rollbacks_goes_on_as_if_it_were_done(
    tmp_path: Path, ways: str, failures: int
) -> None:
    more = ", {id: d, agent: dan}" if ways else ""
    steps = f"[{{id: a, agent: ann}}, {{id: b, agent: bob, rollback_to: a, on_error: skip{ways}}}, {{id: c, agent: cleo}}{more}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    run = play(loaded, "w", bob=failing(failures))

    assert (run.status, run.state("it/c")) == ("succeeded", "done")


@pytest.mark.parametrize("failures", [0, 1])
def test_what_waits_for_a_step_of_a_rollback_runs_whether_it_was_needed_or_not(tmp_path: Path, failures: int) -> None:
    told = "output: {to: user}"
    steps = f"""[
      {{id: a, agent: ann}},
      {{id: b, agent: bob, rollback_to: a, {told}}},
      {{id: c, agent: cleo, input: 'c ${{a}}', depends_on: [a], {told}}},
      {{id: d, agent: dan, input: 'd ${{b}}', depends_on: [b], {told}}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", bob=failing(failures)) == {
        "b": "at last",
        "c": "cleo<c ann<hello>>",
        "d": "dan<d at last>",
    }


def test_an_error_may_be_skipped_or_lead_to_a_step(tmp_path: Path) -> None:
    skipped = load(
        tmp_path,
        f"{AGENTS}workflows: {{w: [{{id: a, agent: ann, on_error: skip}}, {{id: b, agent: bob, input: 'a: ${{a}}'}}]}}",
    )
    assert answer(skipped, "w", ann=failing(1)) == "bob<a: >"

    steps = "[{id: a, agent: ann, on_error: mend, output: {to: user}}, {id: mend, agent: bob, input: mend, output: {to: user}}]"
    jumping = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")
    assert answer(jumping, "w", ann=failing(1)) == "bob<mend>"
    assert answer(jumping, "w") == "ann<hello>"

    going_on = load(
        tmp_path,
        f"{AGENTS}workflows: {{w: {{continue_on_error: true, steps: [{{agent: ann}}, {{agent: bob, input: b}}]}}}}",
    )
    assert answer(going_on, "w", ann=failing(1)) == "bob<b>"


# --- other steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["work", "{id: work, agent: bob, input: '${word}!'}"])
def test_a_loop_does_a_step_for_each_item(tmp_path: Path, body: str) -> None:
    steps = f"""[
      {{id: a, agent: ann}},
      {{id: each, loop: {{for_each: '${{a.words}}', body: {body}, var: word, max: 2}}, output: {{collect: found, to: c}}}},
      {"{id: work, agent: bob, input: '${word}!'}," if body == "work" else ""}
      {{id: c, agent: cleo, input: 'all: ${{found}} ${{each[1]}}', output: {{to: user}}}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann={"words": ["x", "y", "z"]}) == 'cleo<all: ["bob<x!>","bob<y!>"] bob<y!>>'


def test_the_body_of_a_loop_is_given_the_item_if_it_says_nothing(tmp_path: Path) -> None:
    steps = "[{id: each, loop: {for_each: [[1, 2], [3]], body: {id: row, loop: {for_each: '${item}', body: {agent: bob}}}}}]"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w") == [["bob<1>", "bob<2>"], ["bob<3>"]]


@pytest.mark.parametrize(("said", "told"), [("yes", "dan<bob<yes>>"), ("no", "dan<cleo<no>>")])
def test_of_steps_that_share_an_output_key_the_one_that_ran_is_read(tmp_path: Path, said: str, told: str) -> None:
    steps = """[
      {id: a, agent: ann, output: {to: {condition: {if: '${a} == yes', then: b, else: c}}}},
      {id: b, agent: bob, output_key: found, output: {to: d}},
      {id: c, agent: cleo, output_key: found, output: {to: d}},
      {id: d, agent: dan, input: '${found}', output: {to: user}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann=said) == told


def test_an_input_that_is_only_described_has_no_default(tmp_path: Path) -> None:
    inputs = "{n: {type: integer}, city: {default: Rome}, plain: {x: 1}}"
    workflow = f"{{inputs: {inputs}, steps: [{{agent: ann, input: '${{n}} ${{city}} ${{plain.x}}'}}]}}"
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {workflow}}}")

    assert answer(loaded, "w") == "ann< Rome 1>"


def test_a_workflow_may_invoke_another(tmp_path: Path) -> None:
    workflows = """
      inner: {inputs: [tone], steps: [{agent: ann, input: '${user_input} ${tone}', output: {to: user}}]}
      w: [{id: x, invoke_workflow: inner, input: 'to ${user_input}'}, {id: y, agent: bob}]
      v: [{id: x, invoke_workflow: inner, input: {tone: dry}}]
      u: [{id: a, agent: cleo, output: {to: [user, {invoke: inner, await: true}]}}]
      t: [{id: a, agent: cleo, output: {to: [user, {invoke: inner}]}}]
"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {workflows}")

    assert answer(loaded, "w") == "bob<ann<to hello >>"
    assert answer(loaded, "v") == "ann<hello dry>"
    assert answer(loaded, "u") == {"a": "cleo<hello>", "inner": "ann<cleo<hello> >"}
    assert answer(loaded, "t") == "cleo<hello>"


def test_a_transform_is_a_function_or_a_value(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def tidy(text):\n    return text\n")
    steps = """[
      {id: a, agent: ann},
      {id: b, type: transform, function: tidy, input: '${a.text}'},
      {id: c, transform: {title: '${b}', all: '${a}'}},
      {id: d, transform: mine.tidy, input: '${c.title}?'}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")
    tidy: dict[str, Tool] = {
        "tidy": lambda given: f"tidy {given['text']}",
        "mine.tidy": lambda given: f"TIDY {given['text']}",
    }

    run = play(loaded, "w", "hello", ann={"text": "x"}, **tidy)

    assert run.output("it/c") == {"title": "tidy x", "all": {"text": "x"}}
    assert run.output("it") == "TIDY tidy x?"
    assert loaded.definitions.tools["tidy"].function == "mine:tidy"


def test_an_approval_waits_for_a_signal(tmp_path: Path) -> None:
    steps = """[
      {id: a, agent: ann},
      {id: ok, approval: 'May it be sent?', timeout: 60, default: {approved: false}},
      {id: b, agent: bob, condition: '${ok.approved}', input: sent, output: {to: user}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert loaded.definitions.chains["w"].nodes[1].kind == "wait"
    assert asked(play(loaded, "w")) == ["a", "ok"]


def test_an_agent_navigates(tmp_path: Path) -> None:
    steps = """[
      {id: desk, agent: ann, navigation: {mode: manual, available_steps: [tech, {id: bill, description: money}]}},
      {id: tech, agent: bob, description: machines, input: '${desk.response}', output: {to: user}},
      {id: bill, agent: cleo, input: '${desk.response}', output: {to: user}}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann={"step": "bill", "response": "pay"}) == "cleo<pay>"
    assert answer(loaded, "w", ann={"step": "tech", "response": "fix"}) == "bob<fix>"
    asks = loaded.definitions.agents["ann@w.desk"]
    assert "- tech: machines\n- bill: money" in str(asks.instructions[0])
    assert asks.output is not None
    assert asks.output.json_schema is not None
    assert asks.output.json_schema["properties"]["step"] == {"enum": ["tech", "bill"]}  # type: ignore[index,call-overload]


def test_where_the_agent_fails_to_navigate_the_fallback_step_comes_next(tmp_path: Path) -> None:
    steps = """[
      {id: desk, agent: ann, navigation: {available_steps: [tech, bill], fallback_step: boss}},
      {id: tech, agent: bob, input: t}, {id: bill, agent: cleo, input: b}, {id: boss, agent: dan, input: '!'}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann=failing(9)) == "dan<!>"
    assert answer(loaded, "w", ann={"step": "bill"}) == "cleo<b>"


def test_rules_navigate_before_the_agent_does(tmp_path: Path) -> None:
    steps = """[
      {id: desk, agent: ann, navigation: {mode: hybrid, available_steps: [tech, bill], rules: [
         {conditions: [{field: output.priority, operator: eq, value: high}], target_step: boss}]}},
      {id: tech, agent: bob, input: t}, {id: bill, agent: cleo, input: b}, {id: boss, agent: dan, input: '!'}]"""
    loaded = load(tmp_path, f"{AGENTS}workflows: {{w: {steps}}}")

    assert answer(loaded, "w", ann={"step": "bill", "priority": "high"}) == "dan<!>"
    assert answer(loaded, "w", ann={"step": "bill"}) == "cleo<b>"


def test_tools_of_a_step_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def add(a, b):\n    return a + b\n")
    head = "tools: [{id: adder, type: function, metadata: {function: mine.add, description: Adds.}}]\n"
    steps = """[
      {id: a, agent: ann, no_mcp: {tools: [adder, {name: clarify, retry_limit: 3}]}},
      {id: b, tool: adder, parameters: {a: 1, b: '${a}'}},
      {id: c, function: add, args: {a: '${b}', b: 1}},
      {id: d, function: one, script: 'def one(x): return x', input: '${c}'}]"""
    loaded = load(tmp_path, f"{AGENTS}{head}workflows: {{w: {steps}}}")

    definitions = loaded.definitions
    assert definitions.agents["ann"].tools == []
    assert (definitions.agents["ann@w.a"].tools, definitions.agents["ann@w.a"].max_tool_rounds) == (
        ["adder", "clarify"],
        3,
    )
    assert definitions.tools["clarify"].asks
    assert (definitions.tools["adder"].function, definitions.tools["adder"].description) == ("mine:add", "Adds.")
    assert definitions.chains["w"].nodes[1].input == {"a": 1}
    assert definitions.tools["add"].function == "mine:add"
    script = definitions.tools["one@w.d"].script
    assert script is not None
    assert (script.file, script.function) == ("flow.yaml", "one")
    assert definitions.chains["w"].nodes[3].input_map.keys() == {"x"}


# --- examples of its pages ---------------------------------------------------------------------------------------------------


def test_a_step_that_nothing_leads_to_begins_when_what_it_reads_is_there(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        AGENTS
        + """
workflows:
  w:
    steps:
      - id: basic_processing
        agent: ann
        input: "${user_input}"
        output:
          to: check_premium

      - id: premium_enhancement
        condition: "${context.step_outputs.basic_processing.user_tier} == 'premium'"
        agent: bob
        input: "${context.step_outputs.basic_processing}"
        output:
          to: finalize

      - id: check_premium
        agent: cleo
        input: "${context.step_outputs.basic_processing}"
        output:
          to: finalize

      - id: finalize
        agent: dan
        input: |
          Basic: ${context.step_outputs.basic_processing.user_tier}
          Premium: ${context.step_outputs.premium_enhancement}
        output:
          to: user
""",
    )

    assert answer(loaded, "w", ann={"user_tier": "premium"}, bob="more") == "dan<Basic: premium\nPremium: more\n>"
    assert answer(loaded, "w", ann={"user_tier": "free"}, bob="more") == "dan<Basic: free\nPremium: \n>"
    assert asked(play(loaded, "w", ann={"user_tier": "premium"})).count("finalize") == 1


def test_a_retry_is_drawn_with_routes(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        AGENTS
        + """
workflows:
  w:
    steps:
      - id: attempt_operation
        agent: ann
        input: "${user_input}"
        output:
          to:
            - condition:
                if: "${context.step_outputs.attempt_operation.success} == true"
                then: success_handler
                else: retry_or_fail

      - id: retry_or_fail
        agent: bob
        input: "${context.step_outputs.attempt_operation}"
        output:
          to:
            - condition:
                if: "${context.step_outputs.attempt_operation.retry_count} < 3"
                then: attempt_operation
                else: failure_handler

      - {id: success_handler, agent: cleo, input: done, output: {to: user}}
      - {id: failure_handler, agent: dan, input: given up, output: {to: user}}
""",
    )
    tries: Iterator[JsonValue] = iter([{"retry_count": 1}, {"retry_count": 2}, {"success": True}])
    failures: Iterator[JsonValue] = iter([{"retry_count": count} for count in (1, 2, 3)])

    assert answer(loaded, "w", ann=lambda given: next(tries)) == "cleo<done>"
    assert answer(loaded, "w", ann=lambda given: next(failures)) == "dan<given up>"


def test_a_fan_with_rollback_and_retry(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        AGENTS
        + """
workflows:
  main_workflow:
    - id: full_demo_workflow
      description: A demo.
      steps:
        - id: step1_plan
          agent: ann
          input: "Plan tasks for this project"
          retry: 2
          output: {to: [user, step2_execute]}

        - id: step2_execute
          agent: bob
          input: "${previous_output}"
          retry: 2
          rollback_to: step1_plan
          rollback_limit: 1
          output: {to: [step6_fanout]}

        - id: step6_fanout
          agent: ann
          input: "Split work"
          output:
            to:
              - { step: step6a_checker_a, await: true }
              - { step: step6b_checker_b, await: true }

        - {id: step6a_checker_a, agent: cleo, input: "${previous_output}", output: {to: step7_fanin}}
        - {id: step6b_checker_b, agent: dan, input: "${previous_output}", output: {to: step7_fanin}}

        - id: step7_fanin
          agent: eve
          input: |
            - A: ${step_outputs.step6a_checker_a}
            - B: ${step_outputs.step6b_checker_b}
          output: {to: user}
""",
    )
    merged = "eve<- A: cleo<ann<Split work>>\n- B: dan<ann<Split work>>\n>"

    run = play(loaded, "main_workflow", bob=failing(1))

    assert run.output("it") == {"step1_plan": "ann<Plan tasks for this project>", "step7_fanin": merged}
    assert sum(step.startswith("it/step1_plan") for step in run.story) == 2


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("{id: a, agent: ann, output: {to_step: b}}, {id: b, agent: bob}", "bob<ann<hello>>"),
        ("{id: a, agent: ann, output: {to: next_step}}, {id: b, agent: bob, output: {to: user}}", "bob<ann<hello>>"),
        ("{id: a, agent: ann, output: {format: text}}, {id: b, agent: bob, input: '${a.text}!'}", "bob<ann<hello>!>"),
        ("{id: a, agent: ann, output: {save_as: it}}, {id: b, agent: bob, input: 'of {{it}}'}", "bob<of ann<hello>>"),
        ("{id: a, agent: ann, output: {collect: it}}, {id: b, agent: bob, input: '${it}'}", "bob<ann<hello>>"),
        (
            "{id: a, transform: {x: 1}}, {agent: bob, conditions: [a.x > 0, a.x < 2]}, {agent: cleo, input: c, conditions: [a.x > 1]}",
            "bob<{'x': 1}>",
        ),
        (
            "{agent: ann, outputs: [x]}, {agent: bob, input: b, outputs: [y]}, {agent: cleo, inputs: [x, y]}",
            "cleo<{'x': 'ann<hello>', 'y': 'bob<b>'}>",
        ),
        ("{name: first, agent: ann}, {agent: bob, input: '${first}'}", "bob<ann<hello>>"),
        ("{agent: ann, input: '{{ context.user_input }}'}", "ann<hello>"),
        ("{agent: ann, input: 'x {{ other }}'}", "ann<x {{ other }}>"),
        ("{agent: ann, input: '${context.tone || \"dry\"} ${context.x || [1]} ${user_input || 3}'}", "ann<dry [1] hello>"),
        ("{id: a, agent: ann}, {id: b, agent: bob, input: '${context.step_outputs}'}", "bob<{'a': 'ann<hello>'}>"),
        ("{id: a, agent: ann, input: '${context.step_outputs}'}", "ann<{}>"),
        ("{agent: ann}, {agent: bob, input: '${context.step_outputs}'}", "bob<{'ann': 'ann<hello>'}>"),
        (
            "{id: a, agent: ann}, {id: l, loop: {for_each: [1], body: {agent: bob, input: '${context.step_outputs}'}}}",
            ["bob<{'a': 'ann<hello>'}>"],
        ),
        ("{id: a, agent: ann, condition: \"{{ user_input }} == 'hello'\"}", "ann<hello>"),
    ],
)  # fmt: skip
def test_what_other_versions_of_langswarm_write_means_the_same(tmp_path: Path, steps: str, said: JsonValue) -> None:
    assert answer(load(tmp_path, f"{AGENTS}workflows: {{w: [{steps}]}}"), "w") == said


def test_the_tools_of_a_step_are_added_to_those_of_its_agent(tmp_path: Path) -> None:
    tools = "tools: [{id: t, function: json.dumps}, {id: u, function: json.loads}]"

    loaded = load(
        tmp_path, f"agents: [{{id: ann, tools: [t]}}]\n{tools}\nworkflows: {{w: [{{agent: ann, tools: [u]}}]}}"
    )

    assert loaded.definitions.agents["ann@w.ann"].tools == ["t", "u"]


def test_a_workflow_retries_by_its_policy(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        f"{AGENTS}workflows: {{w: {{retry_policy: {{max_retries: 3}}, timeout_seconds: 9, steps: [{{agent: ann}}]}}}}",
    )

    own = load(tmp_path, f"{AGENTS}workflows: {{w: [{{agent: ann, retry_policy: {{max_retries: 2}}}}]}}")
    assert own.definitions.chains["w"].nodes[0].retry == 2
    assert (loaded.definitions.chains["w"].nodes[0].retry, loaded.definitions.chains["w"].timeout_s) == (3, 9)
