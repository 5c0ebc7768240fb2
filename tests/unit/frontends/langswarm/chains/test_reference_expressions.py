"""References become expressions, and mean what LangSwarm's pages say."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.expressions.expressions import parse
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.reference_expressions import (
    Scope,
    UnreadableError,
    literal,
    reads,
    render,
    step_value,
)

SCOPE = Scope(
    steps={
        "read": step_value("read"),
        "list-files": step_value("list-files"),
        "nothing": step_value("nothing"),
        "title": step_value("read"),
    },
    agents={"writer": step_value("read")},
    variables={"tone": "dry", "city": None},
    before=step_value("list-files"),
)
ROOT: dict[str, JsonValue] = {
    "read": {"text": "Tea", "pages": [1, {"no": 2}], "output": "all of it"},
    "list-files": ["a.txt", "b.txt"],
    "nothing": None,
    "input": {"user_input": "hello", "user_query": "hello", "input": "hello", "who": {"name": "Ann"}},
}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def value(written: JsonValue, root: dict[str, JsonValue] | None = None, scope: Scope = SCOPE) -> JsonValue:
    """What a value of the file comes to."""
    rendered = render(written, scope)
    return (
        rendered.value
        if rendered.expression is None
        else evaluated(rendered.expression, ROOT if root is None else root)
    )


def evaluated(expression: str, root: dict[str, JsonValue]) -> JsonValue:
    return parse(expression, frozenset(root) - {"input"}).evaluate(root)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${user_input}", "hello"),
        ("${user_query}", "hello"),
        ("${input}", "hello"),
        ("${context.user_input}", "hello"),
        ("${context.who.name}", "Ann"),
        ("${context.not_there}", None),
        ("${context.step_outputs.read.text}", "Tea"),
        ("${step_outputs.read.text}", "Tea"),
        ("${context.step_outputs.read.pages[1].no}", 2),
        ("${context.step_outputs.read['text']}", "Tea"),
        ("${context.previous_output}", ["a.txt", "b.txt"]),
        ("${context.previous_output[-1]}", "b.txt"),
        ("${previous_output}", ["a.txt", "b.txt"]),
        ("${context.workflow_variables.tone}", "dry"),
        ("${context.variables.city}", None),
        ("${tone}", "dry"),
        ("${title.text}", "Tea"),
        ("${read.output}", "all of it"),
        ("${list-files.output}", ["a.txt", "b.txt"]),
        ("${writer.output}", "all of it"),
        ("${writer.text}", "Tea"),
        ("${nothing || read.text}", "Tea"),
        (" ${list-files} \n", ["a.txt", "b.txt"]),
        ("no reference {user_input} $ {}", "no reference {user_input} $ {}"),
    ],
)
def test_a_reference_means_what_the_pages_say(written: str, meant: JsonValue) -> None:
    assert value(written) == meant


def test_a_lone_reference_keeps_its_type_and_one_within_a_text_is_written_out() -> None:
    assert value("${read.pages}") == [1, {"no": 2}]
    assert value("pages: ${read.pages}\n, none: ${nothing}.") == 'pages: [1,{"no":2}]\n, none: .'


def test_mappings_and_lists_are_read_within() -> None:
    assert value({"a": "${read.text}!", "b": ["${list-files[0]}", 1], "c": {}}) == {
        "a": "Tea!",
        "b": ["a.txt", 1],
        "c": {},
    }


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("${raed}", "'raed'; did you mean 'read'?"),
        ("${context.step_outputs.titel}", "no step 'titel'; did you mean 'title'?"),
        ("${}", "has no name"),
        ("${context}", "is incomplete"),
        ("${read + 1}", "no path"),
        ("${len(read)}", "no path"),
        ("${.read}", "no path"),
    ],
)
def test_what_means_nothing_is_said_with_the_nearest_name(written: str, said: str) -> None:
    with pytest.raises(UnreadableError) as error:
        value(f"text {written}")

    assert said in str(error.value)


@given(JSON)
def test_a_constant_is_what_its_expression_gives(constant: JsonValue) -> None:
    assert evaluated(literal(constant), {"x": 1}) == json.loads(json.dumps(constant))


@given(JSON, st.text(), st.text())
def test_a_text_around_a_reference_stays_as_it_is(inner: JsonValue, before: str, after: str) -> None:
    before, after = before.replace("${", "$"), after.replace("${", "$")
    root: dict[str, JsonValue] = {"read": inner}

    found = value(f"x{before}${{read}}{after}x", root)

    shown = (
        ""
        if inner is None
        else inner
        if isinstance(inner, str)
        else json.dumps(inner, separators=(",", ":"), ensure_ascii=True)
    )
    assert isinstance(found, str)
    assert found.startswith(f"x{before}")
    assert found.endswith(f"{after}x")
    if inner is None or isinstance(inner, str):
        assert found == f"x{before}{shown}{after}x"
    else:
        middle = found.removeprefix(f"x{before}").removesuffix(f"{after}x")
        assert json.loads(middle) == json.loads(json.dumps(inner))


@given(
    st.dictionaries(
        st.from_regex(r"[\w-]{1,8}", fullmatch=True, alphabet=st.characters(codec="ascii")), JSON, min_size=1
    )
)
def test_any_names_of_steps_and_fields_are_found(named: dict[str, JsonValue]) -> None:
    name, inner = next(iter(named.items()))
    scope = Scope(steps={f"s{name}": step_value(f"s{name}")})

    found = render(f"${{context.step_outputs.s{name}.{name}}}", scope)

    assert reads(cast(str, found.expression)) == {f"s{name}"}
    assert value(f"${{s{name}.{name}}}", {f"s{name}": named}, scope) == inner
