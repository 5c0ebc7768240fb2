"""Conditions become expressions, and hold where LangSwarm's pages say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.expressions.expressions import parse
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.conditions import condition
from cantata_frontends.langswarm.chains.reference_expressions import Scope, UnreadableError, step_value

SCOPE = Scope(
    steps={name: step_value(name) for name in ("a", "b", "check", "twelve")}, agents={"judge": step_value("check")}
)
CHECK: JsonValue = {
    "priority": "high", "score": 0.85, "count": "12", "tier": "premium", "text": "an error came", "tags": ["urgent", "new"], "ok": True,
    "said": "true", "no": False, "none": None, "zero": 0, "path": "C:\\new", "empty": "", "nested": {"deep": [1, 2]},
}  # fmt: skip
ROOT: dict[str, JsonValue] = {"a": 3, "b": 4, "twelve": 12, "check": CHECK, "input": {"user_input": "hi"}}


def holds(text: str, root: dict[str, JsonValue] | None = None) -> bool:
    root = ROOT if root is None else root
    return parse(condition(text, SCOPE), frozenset(root) - {"input"}).is_true(root)


@pytest.mark.parametrize(
    "text",
    [
        "${check.priority} == 'high'",
        '${context.step_outputs.check.priority} == "high"',
        "${check.priority} == high",
        "'high' == ${check.priority}",
        "check.priority == high",
        "judge.priority == high",
        "${check.priority} != 'low'",
        "${check.score} > 0.8",
        "${check.score} >= .85",
        "0.9 > ${check.score}",
        "${check.count} == 12",
        "${check.count} > 5",
        "${a} < ${b}",
        "${a} <= 3",
        "${a} != ${b}",
        "${check.text} contains 'error'",
        "${check.text} contains error",
        "${check.tags} contains 'new'",
        "${check.text} not contains 'fine'",
        "${check.tags} not contains 'ne'",
        "${check.tier} in ['enterprise', 'premium']",
        "${check.tier} not in [basic, 'free']",
        "'urgent' in ${check.tags}",
        "${a} in [1, 2, 3]",
        "${a} in ['3', x]",
        "${check.count} in [11, 12]",
        "${check.count} not in [1, 2]",
        "${check.said} in [true]",
        "${check.ok} in ['true']",
        "${check.none} in [None, 'x']",
        "${check.priority} exists",
        "${check.none} not exists",
        "${check.nothing.at.all} not exists",
        "${check.empty} exists",
        "${check.none} == None",
        "'${check.none}' == None",
        "'${check.none}' == ''",
        "'' == '${check.nothing.at.all}'",
        "'${check.none}' == '${check.empty}'",
        "'${check.tier}' != ''",
        "'${check.zero}' != ''",
        "${check.priority} != None",
        "${check.ok} == true",
        "${check.ok} == True",
        "${check.said} == true",
        "${check.no} == false",
        "${check.ok}",
        "${check.said}",
        "!${check.no}",
        "not ${check.zero}",
        "not ${check.empty}",
        "!${check.none}",
        "${check.priority} == 'high' && ${check.tier} == 'premium'",
        "${check.priority} == 'low' || ${check.tier} == 'premium'",
        "${check.priority} == 'low' or ${check.tier} == 'premium' and ${a} == 3",
        "(${check.priority} == 'critical' || ${check.tier} == 'premium') && ${check.ok} == true",
        "not (${a} == 4 or ${b} == 3)",
        "${check.priority} exists && ${check.score} > 0.8",
        "true",
        "'${check.priority}-${a}' == 'high-3'",
        "${user_input} == hi",
        "${check.nested.deep[1]} == 2",
        "${check.tier} == ${check.tier}",
        "${a} == '3'",
        "'3' == ${a}",
        "'${a}' == '3'",
        "${a} > '2'",
        "'10' > ${a}",
        "${check.count} == ${twelve}",
        "${twelve} == ${check.count}",
        "${check.ok} == 'true'",
        "${check.ok} == ${check.said}",
        "${check.path} == 'C:\\new'",
    ],
)
def test_a_condition_holds(text: str) -> None:
    assert holds(text)
    assert not holds(f"not ({text})")
    assert holds(f"({text})")


@pytest.mark.parametrize(
    "text",
    [
        "${check.nothing} > 1",
        "${check.nothing} < 1",
        "${check.nothing} contains 'x'",
        "'x' contains ${check.nothing}",
        "${check.nothing} in ['x']",
        "${check.nothing}",
        "${check.nothing} == ''",
        "${check.text} > 3",
        "false",
        "None",
        "0",
    ],
)
def test_what_is_not_there_or_does_not_fit_holds_nowhere(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize(
    "text",
    [" || ".join(["${b} == 1"] * 700 + ["${a} == 3"]), " && ".join(["${a} != 1"] * 700), "${a} != " + "1" * 9000],
)
def test_a_long_condition_is_read(text: str) -> None:
    assert holds(text)


def test_nothing_of_a_condition_is_run_as_python() -> None:
    with pytest.raises(UnreadableError):
        condition("__import__('os').system('true')", SCOPE)


SCALARS = st.none() | st.booleans() | st.integers(-100, 100) | st.text(max_size=5)
ATOMS = st.sampled_from(
    ["${a} == ${b}", "${a} exists", "${b}", "${a} contains 'x'", "${a} < 3", "${b} in [1, 'x', true]"]
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds("({} && {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("!({})".format, inner)
    ),
    max_leaves=8,
)


@given(
    CONDITIONS,
    SCALARS | st.lists(SCALARS, max_size=3),
    SCALARS | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
)
def test_a_condition_or_its_contrary_holds_whatever_the_data(text: str, a: JsonValue, b: JsonValue) -> None:
    root: dict[str, JsonValue] = {"a": a, "b": b}

    assert holds(text, root) != holds(f"not {text}", root)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expression = condition(text, SCOPE)
    except UnreadableError:
        return
    parse(expression, frozenset(ROOT) - {"input"}).is_true(ROOT)


@given(st.text(alphabet="ab '\"\\`${}.[]|&=\n", max_size=20).filter(lambda text: "${" not in text))
def test_a_quoted_text_is_compared_as_it_stands(text: str) -> None:
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    assert holds(f"${{a}} == {quoted}", {"a": text})
