"""Bad expressions, templates and conditions."""

from __future__ import annotations

from collections.abc import Iterator

from cantata.flows.expressions.expressions import ExpressionError, parse
from cantata.flows.expressions.templates import TemplateError, check, render
from cantata_frontends.langswarm.chains.conditions import condition
from cantata_frontends.langswarm.chains.reference_expressions import Scope, UnreadableError, step_value
from tests.unit.flows.expression_values import NAMES, value
from tests.unit.messages.entries import Entry, entries, said_by, text

SCOPE = Scope(
    steps={name: step_value(name) for name in ("a", "b", "check", "twelve")}, agents={"judge": step_value("check")}
)

PARSED: dict[str, list[str]] = {
    "faults that are found before anything runs": [
        "a.",
        "a OR",
        "(a",
        "a)",
        "a b",
        "a.3",
        "a == 1 or b",
        "n = 3",
        "a.b == 'x",
        "a - 1",
        "a[::0]",
        "a.lenght(b)",
        "length(a, b)",
        "not_null()",
        "sort_by(a, b)",
        "[length(&a)]",
        "a || &b",
        'a == `"\\q"`',
    ],
    "empty": [
        "",
        "  \n",
    ],
}

NAMED: dict[str, list[str]] = {"unknown names": ["list-file.files"]}

EVALUATED: dict[str, list[str]] = {
    "values of a wrong type": [
        "length(limit)",
        "sum(text)",
        "join(', ', read.data)",
        "max_by(list-files.files, &ok)",
        "contains(text, 3)",
        "merge(a, text)",
    ],
}

TEMPLATES: dict[str, list[str]] = {
    "templates": [
        "a\n{% if x %}",
        "a\nb\n{{ x | shorten }}",
        "{{ x is shiny }}",
        "a\n{{ x",
        "{{ pieces | random }}",
    ],
}

RENDERED: dict[str, list[str]] = {
    "templates that fail": [
        "\n{{ 1 / 0 }}",
        "\n{{ 1 + 'a' }}",
        "\n{{ [][0].x }}",
        "\n{{ range(1000000000) }}",
        "\n{{ none() }}",
    ],
    "templates that would leave the sandbox": [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% include '/etc/passwd' %}",
    ],
}

CONDITIONS: dict[str, list[str]] = {
    "conditions of LangSwarm": [
        "",
        "${a} ==",
        "${a} = 3",
        "(${a} == 3",
        "${a} == 3)",
        "${a} 'x'",
        "and ${a}",
        "${(a == 3)}",
        "${chek.ok}",
        "[1, 2",
        "a == 'x'",
        "1 < 2",
        "approved",
        "lambda x: x",
        "(" * 5000 + "${a}" + ")" * 5000,
        "!" * 5000 + "${a}",
        "${a} in " + "[" * 5000,
    ],
}


def found() -> Iterator[Entry]:
    """Check or evaluate each of them."""
    yield from entries(PARSED, lambda given: said_by(lambda: parse(given), ExpressionError), text)
    yield from entries(NAMED, lambda given: said_by(lambda: parse(given, NAMES), ExpressionError), text)
    yield from entries(EVALUATED, lambda given: said_by(lambda: value(given), ExpressionError), text)
    yield from entries(TEMPLATES, lambda given: said_by(lambda: check(given), TemplateError), text)
    yield from entries(RENDERED, lambda given: said_by(lambda: render(given, {}), TemplateError), text)
    yield from entries(CONDITIONS, lambda given: said_by(lambda: condition(given, SCOPE), UnreadableError), text)
