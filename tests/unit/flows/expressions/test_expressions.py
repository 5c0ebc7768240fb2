"""Expressions: every documented form gives its documented value, and no text gives anything but a value or an ExpressionError."""

from __future__ import annotations

from contextlib import suppress

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.expressions.expressions import ExpressionError, parse
from cantata.values import JsonValue
from tests.examples import examples
from tests.unit.flows.expression_values import NAMES, ROOT, value


def fault_of(text: str) -> str | None:
    try:
        parse(text)
    except ExpressionError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read.data", [1, 2, 3]),
        ("parse.values", [4, 5]),
        ("read.output", {"data": [1, 2, 3], "n": 3}),
        ("output.items", ["p", "q"]),
        ("input.files", ["f1", "f2"]),
        ("'/data/output.txt'", "/data/output.txt"),
        ("parse.data_type == 'numeric'", True),
        ("length(output.items) > `0`", True),
        ("numeric_transform.stats OR text_transform.summary", "short"),
        ("_item.path", "/tmp/a"),
        ("process_each", ["x", None]),
        ("$.a.b", "c"),
    ],
)
def test_each_documented_expression_has_its_documented_value(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


# The root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$['a'].b", "c"),
        ('$["a"]["b"]', "c"),
        ("$.a['b']", "c"),
        ("$.read.data[0]", 1),
        ("$.list-files.files[0].n", 1),
        ("$.read.n > 2 && $.limit == 2", True),
        ("list-files.files[?n > $.limit].name", ["b"]),
        ("read.data | [$.limit]", [2]),
        ("a | $.zero", 0),
        ("length($)", len(ROOT)),
    ],
)
def test_a_dollar_is_the_root_wherever_it_stands(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


def test_a_dollar_alone_is_the_whole_root() -> None:
    assert value("$") == ROOT


# OR and AND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("missing OR text", "hello"),
        ("missing OR also.missing OR text", "hello"),
        ("missing OR also.missing", None),
        ("zero OR text", 0),
        ("empty OR text", ""),
        ("none OR text", []),
        ("off OR text", False),
        ("missing OR 'x OR y'", "x OR y"),
        ("missing OR 0", 0),
        ("missing OR null", None),
        ("missing OR true", True),
        ("(missing OR a).b", "c"),
        ("(missing OR (also.missing OR a)).b", "c"),
        ("not_null(missing OR text)", "hello"),
        ("{x: missing OR text, y: zero}", {"x": "hello", "y": 0}),
        ("[missing OR text, limit]", ["hello", 2]),
        ("missing\nOR\ttext", "hello"),
        ("missing | x OR read | n", 3),
        ("none || off OR text", False),
    ],
)
def test_or_gives_the_first_operand_that_is_not_null(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on AND text", "hello"),
        ("text AND on", True),
        ("on AND zero", 0),
        ("off AND text", False),
        ("text AND none", False),
        ("missing AND text", False),
        ("on AND on AND text", "hello"),
        ("read.n > 2 AND parse.data_type == 'numeric'", True),
        ("missing OR on AND text", "hello"),
        ("(off OR on) AND text", "hello"),
    ],
)
def test_and_gives_its_last_operand_if_both_are_true(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("off OR on", True),
        ("off OR zero == 1", False),
        ("missing OR off OR (on AND text)", True),
        ("read.n > 5 OR text == 'hello'", True),
        ("read.n > 5 OR text == 'x' OR on", True),
        ("!(off OR on)", False),
        ("off AND on OR on", True),
        ("list-files.files[?ok OR n > 4] | length(@) == 2", True),
        ("list-files.files[?ok == false AND n > 4]", True),
    ],
)
def test_in_a_condition_or_asks_whether_either_holds(text: str, holds: bool) -> None:
    assert parse(text, NAMES).is_true(ROOT) is holds


def test_after_a_comparison_or_is_no_fallback() -> None:
    assert value("read.n > 5 OR text == 'hello'") is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("or", "a field called or"),
        ("a.OR", None),
        ("{OR: zero}.OR", 0),
        ("'a OR b'", "a OR b"),
        ('`"a AND b"`', "a AND b"),
        ('"a OR b"', None),
        ("ORACLE", None),
        ("none || text", "hello"),
        ("zero || text", 0),
        ("off && text", False),
    ],
)
def test_only_a_bare_upper_case_word_between_operands_is_an_operator(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


# Constants


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read.n == 3", True),
        ("3 == read.n", True),
        ("read.n > -1.5", True),
        ("read.n >= 3.0", True),
        ("read.n<4", True),
        ("not_null(missing, 0)", 0),
        ("list-files.files[?n > 1].name", ["b"]),
        ("read.data[0]", 1),
        ("read.data[-1]", 3),
        ("read.data[0:2]", [1, 2]),
        ("length(read.data) == 3", True),
    ],
)
def test_a_bare_number_is_a_number(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on == true", True),
        ("false != on", True),
        ("missing == null", True),
        ("read != null", True),
        ("list-files.files[?ok == true].name", ["a"]),
        ("(on == (true))", True),
        ("true", True),
        ("false", False),
        ("null", None),
        ('"true"', "a field called true"),
        ("$.true", "a field called true"),
        ("not_null(true)", "a field called true"),
        ("a.true", None),
    ],
)
def test_true_false_and_null_are_constants_beside_an_operator_or_alone(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


def test_a_known_name_is_never_a_constant() -> None:
    assert parse("true", {"true"}).evaluate({"true": 5}) == 5


# Names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("list-files.files[0].name", "a"),
        ("length(list-files.files)", 2),
        ("'list-files'", "list-files"),
        ('"list-files".files[1].name', "b"),
        ("missing OR list-files.files[1].n", 5),
        ("2nd.x", 9),
        ("2024-01-01.z", 8),
        ("42.y", 7),
        ("$.42.y", 7),
        ("42", {"y": 7}),
        ("zero == 42", False),
        ("read.data[42]", None),
        ("merge.rows", []),
        ("merge(merge, a).b", "c"),
    ],
)
def test_a_known_name_needs_no_quotes(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


def test_the_longest_name_wins() -> None:
    assert parse("a-b-c.x", {"a", "a-b", "a-b-c"}).roots == {"a-b-c"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read.output.data", [1, 2, 3]),
        ("read.output.n == 3", True),
        ("list-files.output.files[*].n", [1, 5]),
        ("text.output", "hello"),
        ("process_each.output", ["x", None]),
        ("null-check.output", None),
        ("$.read.output.n", 3),
        ("@.read.output.n", 3),
        ("process_each.output[0]", "x"),
        ("process_each.output[*]", ["x"]),
        ("list-files.output.files[?n > 1].n", [5]),
        ("read.output['n']", 3),
        ("read.{all: output.n}.all", 3),
        ("(missing OR read).output.n", 3),
        ("not_null(missing, read).output.n", 3),
        ("length(read).output", None),
        ("wrapped.output", {"data": "inner"}),
        ("wrapped.output.data", "inner"),
        ("wrapped.output.output", None),
        ("a.output", None),
        ("list-files.files[0].output", None),
        ("[a][?read.output]", []),
    ],
)
def test_output_of_a_known_name_is_the_whole_output_unless_there_is_such_a_key(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


# Null and truth


# Roots


@pytest.mark.parametrize(
    ("text", "roots"),
    [
        ("a.b.c", {"a"}),
        ("$.a.b", {"a"}),
        ("$['a'].b", {"a"}),
        ("@.a", {"a"}),
        ("a.output.b", {"a"}),
        ("a[?b == 'x'].c", {"a"}),
        ("a[?b == $.c]", {"a", "c"}),
        ("a[*].b[].c", {"a"}),
        ("a.*.b", {"a"}),
        ("a.{x: b, y: c[0]}", {"a"}),
        ("{x: b, y: c[0]}", {"b", "c"}),
        ("{x: b}.x.y", {"b"}),
        ("[a, b.c]", {"a", "b"}),
        ("a | b", {"a"}),
        ("a | b | $.c", {"a", "c"}),
        ("@ | a", {"a"}),
        ("length(a) > length(b.c)", {"a", "b"}),
        ("sort_by(a, &b)", {"a"}),
        ("map(&[b, $.c], a)", {"a", "c"}),
        ("a OR b.c AND d", {"a", "b", "d"}),
        ("a.x || !b", {"a", "b"}),
        ("(@ || a).b", {"a", "b"}),
        ("a == true", {"a"}),
        ("'a'", set()),
        ('`{"a": 1}`.a', set()),
        ("true", set()),
        ("true.x", {"true"}),
        ('"odd name".x', {"odd name"}),
        ("list-files.x OR 2nd", {"list-files", "2nd"}),
        ("@", set()),
        ("$", set()),
        ("keys(@)", set()),
        ("*.a", set()),
    ],
)
def test_roots_are_the_names_read_from_the_root(text: str, roots: set[str]) -> None:
    assert parse(text, NAMES).roots == roots


# Faults


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "!" * 5000 + "a", " OR ".join("a" * 500), "[a," * 300 + "a" + "]" * 300, "`" + "[" * 90_000 + "`"],
)
def test_an_expression_too_deep_to_evaluate_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"nested too deeply|recursion"):
        parse(text)


def test_a_message_quotes_no_more_than_the_head_of_a_long_expression() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("a" * 10_000 + " b")

    assert len(str(caught.value)) < 500


# Properties

FIELDS = ("a", "b", "c", "output")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=8,
)
ROOTS = st.dictionaries(st.sampled_from(FIELDS), JSON)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = [
        *(
            "{0}.{field}",
            "{0}[0]",
            "{0}[-1:]",
            "{0}[]",
            "{0}[*].{field}",
            "{0}.*",
            "{0}.[{field}, {1}]",
            "{0}.{{k: {1}}}",
        ),
        *(
            "({0})",
            "!({0})",
            "{0}[?{1}]",
            "{0}[?{1} == {2}].{field}",
            "({0}) | {1}",
            "({0}) || ({1})",
            "({0}) && {1}",
            "({0}) == ({1})",
            "({0}) != {1}",
        ),
        *("not_null({0}, {1})", "type({0})", "to_array({0})[*].{field}", "[{0}, {1}]", "{{k: {0}}}"),
    ]
    return st.builds(
        lambda form, parts, name: form.format(*parts, field=name),
        st.sampled_from(forms),
        st.tuples(inner, inner, inner),
        st.sampled_from(FIELDS),
    )


PATHS = st.recursive(st.sampled_from([*FIELDS, '"a"', "'text'", "`1`", '`["a"]`']), _combined, max_leaves=6)
PIECES = [
    *"abn.,:*@$&|!<>=()[]{}'\"`-\\ ",
    *(
        "[?",
        "[]",
        "||",
        "&&",
        "==",
        ">=",
        " OR ",
        " AND ",
        "true",
        "null",
        "3",
        "-1",
        "2.5",
        "list-files",
        "42",
        "2nd",
        "é",
        ".output",
    ),
    *("length(", "sort_by(", "merge(", "map(&", "join(", "contains(", "'x'", '"b"', "`1`", '`{"a":[]}`'),
]
SOUP = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
NEARLY_PATHS = st.builds(
    lambda text, place, piece: text[:place] + piece + text[place:], PATHS, st.integers(0, 20), st.sampled_from(PIECES)
)


@given(PATHS, ROOTS)
def test_plain_jmespath_means_what_the_library_says(text: str, root: dict[str, JsonValue]) -> None:
    assert parse(text).evaluate(root) == jmespath.search(text, root)


@given(NEARLY_PATHS | SOUP)
@examples(500)
@pytest.mark.filterwarnings("ignore:deprecated string literal syntax")
def test_what_the_library_can_read_is_read_or_refused_for_what_it_asks(text: str) -> None:
    try:
        jmespath.compile(
            text.replace(" OR ", " || ").replace(" AND ", " && ")
        )  # which it would read as arguments without commas
    except ValueError:
        return

    fault = fault_of(text)

    assert fault is None or any(
        reason in fault for reason in ("no function", "takes", "argument", "&expression", "steps of 0")
    )


@given(PATHS, ROOTS)
def test_the_roots_are_all_that_a_value_depends_on(text: str, root: dict[str, JsonValue]) -> None:
    expression = parse(text)

    assert expression.evaluate(root) == expression.evaluate(
        {name: root[name] for name in expression.roots if name in root}
    )


@given(PATHS, PATHS, ROOTS)
def test_or_and_and_agree_with_their_definitions(left: str, right: str, root: dict[str, JsonValue]) -> None:
    first, second = parse(left), parse(right)
    either, both = parse(f"{left} OR {right}"), parse(f"{left} AND {right}")

    assert either.is_true(root) == (first.is_true(root) or second.is_true(root))
    assert both.is_true(root) == (first.is_true(root) and second.is_true(root))
    assert both.evaluate(root) == (second.evaluate(root) if both.is_true(root) else False)
    assert either.evaluate(root) in (first.evaluate(root), second.evaluate(root))
    if first.evaluate(root) is None:
        assert either.evaluate(root) == second.evaluate(root)


@given(st.text() | SOUP | NEARLY_PATHS, ROOTS)
@examples(500)
def test_any_text_gives_a_value_or_an_expression_error(text: str, root: dict[str, JsonValue]) -> None:
    with suppress(ExpressionError):
        expression = parse(text, NAMES)

        assert isinstance(expression.is_true(root), bool)
        assert expression.evaluate(root) == expression.evaluate(root)


# Bounds


def test_an_expression_longer_than_any_that_is_written_is_refused_unread() -> None:
    with pytest.raises(ExpressionError, match="has 16,000,000 characters; 100,000 are allowed"):
        parse("a" * 16_000_000)


def test_what_is_kept_of_an_expression_does_not_grow_with_the_names_of_its_chain() -> None:
    names = {f"node-{i}" for i in range(1000)}

    one, other = parse("node-1.x", names), parse("node-1.x", names | {"another"})

    assert one is other
    with pytest.raises(ExpressionError, match="did you mean 'node-1'"):
        parse("nnode-1.x", {"node-1"})


@pytest.mark.parametrize(
    "text", ['"a.b".output', "$['a.b'].output", "$[`a.b`].output", '"it\'s".output', '"a\\u002eb".output']
)
def test_a_name_is_known_however_it_is_quoted(text: str) -> None:
    assert parse(text, {"a.b", "it's", "c"}).evaluate({"a.b": [1], "it's": [1]}) == [1]
