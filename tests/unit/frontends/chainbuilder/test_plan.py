"""A plan only takes changes that leave it whole, and compiles to one request for all chains that are executed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cantata.flows.chains import checks
from cantata.flows.definitions import Agent, Tool
from cantata.flows.expressions import templates
from cantata.flows.expressions.expressions import parse
from cantata.flows.instructions import FunctionStep, NestedStep, PromptStep
from cantata_frontends.chainbuilder import plan, run_request
from cantata_frontends.chainbuilder.builder_arguments import read_base, read_parts
from cantata_frontends.chainbuilder.plan import BuilderBase, BuilderPlan, ChainParts
from cantata_frontends.chainbuilder.run_request import FAILED, START, definitions_of, request_of, sources_of
from cantata_frontends.promptchain import PromptChain

GPT = "openai/gpt-4o-mini"
EMPTY = BuilderPlan(base=BuilderBase(model=GPT, instruction="{instruction}"))


def clean(text: str) -> str:
    return text.strip()


def added(
    old: BuilderPlan,
    chain_id: str,
    *texts: str,
    needs: Sequence[str] = (),
    mode: Any = "serial",
    group: str = "default",
) -> BuilderPlan:
    parts = ChainParts(instructions=list(texts) or [f"{chain_id} {{input}}"])
    return plan.create(old, chain_id, parts, mode=mode, group=group, dependencies=needs)


def row(*chain_ids: str, mode: Any = "serial") -> BuilderPlan:
    made = EMPTY
    for chain_id in chain_ids:
        made = added(made, chain_id, mode=mode)
    return made


def instructions(old: BuilderPlan, chain_id: str) -> list[object]:
    return list(old.chains[chain_id].instructions)


# --- changes ----------------------------------------------------------------------------------------------------------


def test_what_is_no_list_or_no_name_is_refused_in_words() -> None:
    for refused in (
        lambda: added(row("a"), "b", needs=5),  # type: ignore[arg-type]  # as from callers without types, here and below
        lambda: plan.merge(row("a"), 5, "b", mode="serial", group=None),  # type: ignore[arg-type]
        lambda: plan.reorder(row("a"), "a", 5),  # type: ignore[arg-type]
        lambda: row("a").group(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="not 5"):
            refused()


def test_dependencies_as_one_text_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dependencies is a list of chains, such as \['a'\]"):
        added(row("a"), "b", needs="a")
    with pytest.raises(ValueError, match=r"a chain's id is a text, not \['a'\]"):
        added(row("a"), "b", needs=[["a"]])  # type: ignore[list-item]  # as from a caller without types


@pytest.mark.parametrize(
    ("position", "expected"), [(-1, ["1", "2", "x", "y"]), (0, ["x", "y", "1", "2"]), (1, ["1", "x", "y", "2"])]
)
def test_instructions_are_inserted_before_a_step_or_at_the_end(position: int, expected: list[str]) -> None:
    made = plan.insert(added(EMPTY, "a", "1", "2"), "a", ChainParts(instructions=["x", "y"]), position)

    assert instructions(made, "a") == expected


def test_a_position_behind_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 2, or -1 for the end; not 3"):
        plan.insert(added(EMPTY, "a", "1", "2"), "a", ChainParts(instructions=["x"]), 3)


def test_an_injected_chain_brings_what_it_depends_on() -> None:
    made = added(added(row("seed"), "source", "s {seed}", needs=["seed"]), "target", "1", "2")

    injected = plan.inject(made, "target", "source", 1)

    assert instructions(injected, "target") == ["1", "s {seed}", "2"]
    assert injected.chains["target"].dependencies == ["seed"]
    assert injected.chains["source"] == made.chains["source"]


def test_a_chain_of_the_same_id_replaces_the_one_before() -> None:
    made = added(row("a", "b"), "c", needs=["b"])

    again = plan.replace(
        made, "b", ChainParts(instructions=["new"]), mode="parallel", group="other", dependencies=["a"]
    )

    assert list(again.chains) == ["a", "c", "b"], "it is the last one created"
    assert instructions(again, "b") == ["new"]
    assert again.ordered("abc") == ["a", "b", "c"]


def test_a_replaced_chain_keeps_its_position_in_its_group() -> None:
    again = plan.replace(
        row("a", "b"), "a", ChainParts(instructions=["new"]), mode="serial", group="default", dependencies=[]
    )

    assert (list(again.chains), instructions(again, "a")) == (["a", "b"], ["new"])
    assert sources_of(again, again.ordered("ab")) == {"a": [], "b": ["a"]}


def test_a_replaced_chain_leaves_no_tools_and_agents_that_no_other_uses() -> None:
    def parts(tool: str, *more: str) -> ChainParts:
        tools = {name: Tool(function="json:loads", description=tool) for name in ("own", *more)}
        inner = Agent(instructions=["x"], tools=[*more])
        return ChainParts(
            instructions=[PromptStep(prompt="a", tools=["own"]), NestedStep(agent=f"in {tool}")],
            agents={f"in {tool}": inner},
            tools=tools,
        )

    def again(old: BuilderPlan, chain_id: str, made: ChainParts) -> BuilderPlan:
        return plan.replace(old, chain_id, made, mode="serial", group="default", dependencies=[])

    made = again(again(EMPTY, "a", parts("first", "inner")), "b", ChainParts(instructions=["b"]))

    replaced = again(made, "a", parts("second"))

    assert (list(replaced.agents), [*replaced.tools], replaced.tools["own"].description) == (
        ["in second"],
        ["own"],
        "second",
    )
    assert again(replaced, "b", ChainParts(instructions=["new"])).tools == replaced.tools
    with pytest.raises(ValueError, match="tool 'own' is a different tool in another chain"):
        again(made, "b", parts("second"))


def test_a_chain_that_would_depend_on_itself_replaces_nothing() -> None:
    made = added(added(row("a"), "b", needs=["a"]), "c", needs=["b"])

    with pytest.raises(ValueError, match="chain 'c' depends on 'a', so 'a' cannot depend on it"):
        plan.replace(made, "a", ChainParts(instructions=["new"]), mode="serial", group="default", dependencies=["c"])
    with pytest.raises(ValueError, match="chain 'a' cannot depend on itself: leave it out of its dependencies"):
        plan.replace(made, "a", ChainParts(instructions=["new"]), mode="serial", group="default", dependencies=["a"])


def test_an_injection_that_would_be_a_circle_is_refused() -> None:
    made = added(added(row("a"), "b", needs=["a"]), "c", needs=["b"])

    assert plan.can_inject(made, "c", "a")
    assert plan.can_inject(made, "c", "a", 1)
    assert not plan.can_inject(made, "c", "a", 2), "c has one step"
    assert not plan.can_inject(made, "a", "c")
    with pytest.raises(ValueError, match="'c' depends on 'a', so it cannot be injected"):
        plan.inject(made, "a", "c", -1)
    with pytest.raises(ValueError, match="Chain 'd' not found"):
        plan.can_inject(made, "a", "d")
    with pytest.raises(ValueError, match="position is a whole number, not '1'"):
        plan.can_inject(made, "c", "a", "1")  # type: ignore[arg-type]  # as from a caller without types


def test_a_serial_merge_depends_on_its_sources() -> None:
    made = added(row("a"), "b", needs=["a"])

    merged = plan.merge(made, ["a", "b"], "both", mode="serial", group=None)

    assert instructions(merged, "both") == ["a {input}", "b {input}"]
    assert merged.chains["both"].dependencies == ["a", "b"]
    assert merged.group("merged") == ["both"]


def test_other_merges_depend_on_what_their_sources_do() -> None:
    merged = plan.merge(added(row("a"), "b", needs=["a"]), ["b", "b"], "twice", mode="parallel", group="g")

    assert merged.chains["twice"].dependencies == ["a"]
    assert merged.group("g") == ["twice"]


def test_steps_are_put_in_order() -> None:
    made = added(row("x"), "a", "1 {x}", "2", "3 {x}", needs=["x"])

    assert plan.needs_of_steps(made, "a") == {0: ["x"], 1: [], 2: ["x"]}
    assert instructions(plan.reorder(made, "a", None), "a") == ["2", "1 {x}", "3 {x}"]
    assert instructions(plan.reorder(made, "a", [2, 1, 0]), "a") == ["3 {x}", "2", "1 {x}"]
    with pytest.raises(ValueError, match="names each of its steps once: 0, 1, 2; not"):
        plan.reorder(made, "a", [0, 1, 1])
    for order in ([0.0, 1, 2], ["0", 1, 2], [False, 1, 2]):
        with pytest.raises(ValueError, match="names each of its steps once"):
            plan.reorder(made, "a", order)  # type: ignore[arg-type]  # as from a caller without types


def test_a_group_that_has_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="Group 'defualt' not found; did you mean 'default'"):
        row("a").group("defualt")


def test_braces_in_a_task_are_no_placeholders() -> None:
    task = 'Fill {a} and {"x": `1`} for {input}'
    made = plan.create_task(row("a"), "a_1", task, "a", mode="parallel", group="g")
    merged = plan.merge(made, ["a_1"], "again", mode="parallel", group="g")

    nodes = {node.node_id: node for node in request_of(merged, merged.chains, "text", {}, timeout_s=None).nodes}

    for chain_id in ("a_1", "again"):
        (text,) = definitions_of(merged, [chain_id], "/tmp").agents[chain_id].instructions
        values = {
            name: str(parse(each, frozenset()).evaluate({}))
            for name, each in nodes[chain_id].input_map.items()
            if name != "input"
        }
        assert templates.instruct(str(text), "tea", values)[0] == f"{task}\n\ntea"
    assert (
        checks.check(
            request_of(merged, ["a", "a_1"], "t", {}, timeout_s=None), definitions_of(merged, ["a", "a_1"], "/tmp")
        )[0]
        == []
    )


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instruction", "template"),
    [
        ("Base analysis: {input}", "Base analysis: {instruction}"),
        ("Do {instruction} with {input}", "Do {instruction} with {input}"),
    ],
)
def test_a_template_without_a_place_for_the_text_has_it_where_the_input_is(instruction: str, template: str) -> None:
    assert read_base(GPT, instruction, "normal", 60).instruction == template


def test_a_chain_is_a_list_and_with_head_tail_also_a_text() -> None:
    assert read_parts("List tasks", "head-tail").instructions == ["List tasks"]
    for given, message in (
        ("List tasks", "must provide instruction list"),
        ([], "cannot be empty"),
        (3, "is a list of texts"),
    ):
        with pytest.raises(ValueError, match=message):
            read_parts(given, "normal")


def test_functions_and_chains_within_are_named() -> None:
    parts = read_parts(["{input}", clean, PromptChain([GPT], ["deep"])], "normal")

    (within,) = parts.agents
    assert parts.instructions == ["{input}", FunctionStep(function=f"{__name__}:clean"), NestedStep(agent=within)]
    assert parts.folder is not None


def test_a_chain_without_functions_has_no_folder() -> None:
    assert read_parts(["{input}"], "normal").folder is None


# --- compiling --------------------------------------------------------------------------------------------------------


def test_serial_chains_wait_for_the_one_before_and_all_for_what_they_need() -> None:
    made = row("s1")
    made = added(made, "p", mode="parallel", needs=["s1"])
    made = added(made, "i", mode="independent")
    made = added(added(made, "s2"), "s3", needs=["p"])

    order = made.ordered(made.chains)

    assert order == ["s1", "p", "i", "s2", "s3"]
    assert sources_of(made, order) == {"s1": [], "p": ["s1"], "i": [], "s2": ["s1"], "s3": ["p", "s2"]}


def test_a_dependency_goes_first_whatever_was_created_first() -> None:
    made = plan.inject(added(row("a", "b"), "c", needs=["b"]), "a", "c", -1)  # a needs b now

    assert made.ordered(["a", "b"]) == ["b", "a"]


def test_one_chain_is_one_node() -> None:
    made = added(row("x"), "a", "about {x}: {input}", needs=["x"])

    (node,) = request_of(made, ["a"], "text", {"x": "X"}, timeout_s=7).nodes

    assert (node.node_id, node.on_error, node.deps) == ("a", "abort", [])
    assert node.input_map == {"input": "input.input", "x": 'input.done."x"'}


def test_what_is_named_of_a_dependency_is_read_and_nothing_else() -> None:
    made = added(row("x", "y"), "a", "about {x}", needs=["x", "y"])

    nodes = {node.node_id: node for node in request_of(made, made.chains, "text", {}, timeout_s=None).nodes}

    assert nodes["a"].input_map == {"input": "input.input", "x": '"x"'}
    assert nodes["a?"].condition == '"x" != `null` && "y" != `null`'


@pytest.mark.parametrize(
    "made",
    [
        row("a"),
        row("a", "b", "c"),
        row("a", "b", "c", mode="parallel"),
        added(
            added(row("a", "b", mode="independent"), "c", needs=["a", "b"]),
            "d-1.2",
            "{c}",
            needs=["c"],
            mode="parallel",
        ),
    ],
)
def test_what_is_compiled_is_a_chain_request_without_fault(made: BuilderPlan) -> None:
    request = request_of(made, made.chains, "text", {}, timeout_s=None)

    assert checks.check(request, definitions_of(made, made.chains, "/tmp")) == ([], "bad_request")


def test_several_roots_begin_together_and_failures_lead_aside() -> None:
    nodes = request_of(row("a", "b", mode="parallel"), ["a", "b"], "text", {}, timeout_s=None).nodes

    assert [(node.node_id, node.deps, node.on_error) for node in nodes] == [
        (START, [], "abort"),
        ("a", [], FAILED),
        ("b", [START], FAILED),
        (FAILED, [], "abort"),
    ]


def test_texts_stand_within_the_base_and_functions_do_not() -> None:
    base = BuilderBase(model=GPT, instruction="Task: {instruction} {not: a gap}\n{input}")
    made = plan.create(
        EMPTY.model_copy(update={"base": base}),
        "a",
        read_parts(["Sum {x}", clean], "normal"),
        mode="serial",
        group="g",
        dependencies=[],
    )

    agent = definitions_of(made, ["a"], "/tmp").agents["a"]

    assert agent.instructions == ["Task: Sum {x} {not: a gap}\n{input}", FunctionStep(function=f"{__name__}:clean")]
    assert agent.models == [GPT]


# --- executors --------------------------------------------------------------------------------------------------------


def test_chains_start_in_waves() -> None:
    made = added(added(row("a"), "p", mode="parallel", needs=["a"]), "i", mode="independent")
    made = added(added(made, "q", mode="parallel"), "z", needs=["p"])

    assert run_request.waves(made, list(made.chains)) == [(["a", "i"], ["q"]), ([], ["p"]), (["z"], [])]


def test_an_executor_gives_an_output_for_each_chain() -> None:
    async def later(pairs: list[tuple[str, str]]) -> dict[str, str]:
        return {chain_id: text.upper() for chain_id, text in pairs}

    assert run_request.call(later, ["a", "b"], "x") == {"a": "X", "b": "X"}
    with pytest.raises(ValueError, match="returns the outputs of 'a', 'b', by chain; not"):
        run_request.call(lambda pairs: {"a": 1}, ["a", "b"], "x")
