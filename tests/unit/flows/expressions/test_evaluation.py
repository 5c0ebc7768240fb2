"""Evaluation of expressions: what null does, what is true, and the limits."""

from __future__ import annotations

import pytest

from cantata.flows.expressions.evaluation import EvaluationBudget
from cantata.flows.expressions.expressions import ExpressionLimitError, parse
from cantata.values import JsonValue
from tests.unit.flows.expression_values import NAMES, ROOT, value


@pytest.mark.parametrize(
    "text",
    [
        "length(missing)",
        "length(missing.items) > `0`",
        "missing > 3",
        "missing.x < missing.y",
        "keys(missing)",
        "join(', ', missing)",
        "join(missing, read.data)",
        "sort_by(missing, &n)",
        "max(missing)",
        "contains(missing, 'x')",
        "starts_with(text, missing)",
        "merge(a, missing)",
        "text > 3",
    ],
)
def test_null_where_a_value_is_needed_gives_null(text: str) -> None:
    assert value(text) is None
    assert not parse(text, NAMES).is_true(ROOT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not_null(missing, text)", "hello"),
        ("type(missing)", "null"),
        ("to_string(missing)", "null"),
        ("to_array(missing)", [None]),
        ("contains(process_each, null_value)", True),
        ("missing == missing", True),
        ("!missing", True),
        ("'a' < 'b'", True),
    ],
)
def test_functions_that_can_use_null_are_given_it(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


@pytest.mark.parametrize("text", ["on", "zero", "`0`", "word", "'false'", "text", "read", "read.data", "true", "1"])
def test_true_is_all_that_is_neither_null_false_nor_empty(text: str) -> None:
    assert parse(text, NAMES).is_true(ROOT)


@pytest.mark.parametrize("text", ["off", "missing", "empty", "none", "`{}`", "''", "false", "null", "!on", "!zero"])
def test_null_false_and_the_empty_are_not_true(text: str) -> None:
    assert not parse(text, NAMES).is_true(ROOT)


def test_evaluation_leaves_the_expression_and_the_root_as_they_were() -> None:
    expression = parse("sort_by(list-files.files, &n) | reverse(@)", NAMES)
    before = repr(ROOT)

    assert expression.evaluate(ROOT) == expression.evaluate(ROOT)
    assert repr(ROOT) == before


BIG = [f"{'x' * 300_000}{i}" for i in range(10)]
LARGE: dict[str, JsonValue] = {
    "items": [{"n": i, "name": f"n{i}"} for i in range(2000)],
    "big": [*BIG],
    "quotes": '"' * 1000,
}


def piped(part: str, times: int, first: str = "@") -> str:
    return " | ".join([first, *[part] * times])


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        (piped("[@,@]", 30), "expression_bytes"),
        (piped("{a:@,b:@,c:@}", 20), "expression_bytes"),
        (piped("to_string(@)", 1, piped("[@,@]", 30)), "expression_bytes"),
        (piped("to_string([@])", 30, "quotes"), "expression_bytes"),
        (piped("join('',[@,@])", 40, "quotes"), "expression_bytes"),
        (piped("reverse(@)", 90, "join('', big)"), "expression_bytes"),
        ("items[*].merge($,$)", "expression_bytes"),
        (f"[{','.join('$' * 90)}]", "expression_bytes"),
        ("{a: [@,@] | " + piped("[@,@]", 28) + ", b: `1`}.b | [@] | [0]", None),  # made, and not used
        (f"{piped('[@,@]', 30)} | contains([@], [@[0],@[1]])", None),  # equal parts are the same objects
        (f"[{piped('[@,@]', 30)}, {piped('[@,@]', 30)}] | @[0] == @[1]", "expression_nodes"),
        (f"[{piped('{a:@,b:@}', 30)}, {piped('{a:@,b:@}', 30)}] | contains([@[0]], @[1])", "expression_nodes"),
        (piped("[@,@][]", 60), "expression_nodes"),
        (piped("[@,@][] | [:]", 25), "expression_nodes"),
        (piped("[@,@][]", 60, "items[*].values(@)[]"), "expression_nodes"),
        ("items[*].[$.items[*].[$.items[*].n]]", "expression_nodes"),
        ("map(&map(&map(&length(@),$.items),$.items),items)", "expression_nodes"),
        ("items[?contains($.items[*].n, `-1`)]", "expression_nodes"),
        (piped("sort(@)", 1, piped("[@,@][]", 14, "big")), "expression_nodes"),
        (piped("sort_by(@, &@)", 1, piped("[@,@][]", 14, "big")), "expression_nodes"),
        (piped("max(@)", 1, piped("[@,@][]", 14, "big")), "expression_nodes"),
        (piped("[[[[[[[[@]]]]]]]]", 60), "nested more than 255 levels deep"),
    ],
)
def test_an_expression_that_multiplies_its_data_ends_and_names_its_bound(text: str, setting: str | None) -> None:
    if setting is None:
        assert parse(text).evaluate(LARGE) in (1, True)
        return
    with pytest.raises(ExpressionLimitError, match=setting) as caught:
        parse(text).evaluate(
            LARGE, EvaluationBudget(nodes=200_000, bytes=6_400_000)
        )  # a tenth of the usual bounds: the same in less time

    assert repr(text)[:100] in str(caught.value)


def test_what_is_in_a_value_many_times_is_counted_so_often_and_looked_at_once() -> None:
    budget = EvaluationBudget(bytes=2**70)  # by looking at each it would take ages

    parse(piped("[@,@]", 60, "text")).evaluate({"text": "12345678"}, budget)

    assert budget.bytes - budget.bytes_left == 2 + 2**60 * 10 + (2**60 - 1) * 4  # the texts, and the lists around them


def test_what_the_expressions_of_a_step_look_at_and_make_is_counted_together() -> None:
    budget, expression = EvaluationBudget(nodes=10_000, bytes=1000), parse("text")
    for _ in range(9):
        expression.evaluate({"text": "x" * 100}, budget)

    with pytest.raises(ExpressionLimitError, match=r"produces more than 0\.001 MB"):
        expression.evaluate({"text": "x" * 100}, budget)

    assert expression.evaluate({"text": "x"}, EvaluationBudget(nodes=1, bytes=10)) == "x"
    with pytest.raises(ExpressionLimitError, match="visits more than 1 values"):
        parse("text.x").evaluate({"text": "x"}, EvaluationBudget(nodes=1, bytes=10))


def test_usual_expressions_on_much_data_are_far_from_the_bounds() -> None:
    root: dict[str, JsonValue] = {"items": [{"n": i, "name": f"n{i}", "body": "y" * 1000} for i in range(10_000)]}

    for text in (
        "items",
        "items[?n > `50`].{a: n, b: name}",
        "sort_by(items, &n)[].name",
        "length(items[?contains(body, 'z')])",
    ):
        budget = EvaluationBudget()
        parse(text).evaluate(root, budget)

        assert budget.nodes_left > 0.9 * budget.nodes
        assert budget.bytes_left > 0.8 * budget.bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read.data == read.data", True),
        ("read.data != read.data", False),
        ("read.data != parse.values", True),
        ("read == {data: read.data, n: `3`}", True),
        ("read == {data: read.data, n: `4`}", False),
        ("read.data == 'text'", False),
    ],
)
def test_lists_and_objects_are_compared_by_what_is_in_them(text: str, expected: bool) -> None:
    assert value(text) is expected
