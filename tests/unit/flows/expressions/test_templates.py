"""Texts with gaps: what is filled, what stays as it is, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.expressions.templates import (
    TemplateError,
    check,
    computed_with,
    fill,
    instruct,
    names,
    render,
    undeclared,
)
from cantata.values import JsonValue

ROUTER_PROMPT = """Choose an agent for: {user_input}
History: {history}
Agents: {agent_details}
Reply with JSON: {"chosen_agent": "name", "refined_query": null}"""


def test_a_check_of_a_template_does_not_work_its_constants_out() -> None:
    assert check("{{ 'a' * 10 ** 12 }} {{ 10 ** 10 ** 10 }}") == []


# fill


def test_the_documented_router_prompt_keeps_its_json_braces() -> None:
    prompt = fill(ROUTER_PROMPT, {"user_input": "2 + 2", "history": "none", "agent_details": "- math"})

    assert prompt == (
        'Choose an agent for: 2 + 2\nHistory: none\nAgents: - math\nReply with JSON: {"chosen_agent": "name", "refined_query": null}'
    )


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}{a}", "11"),
        ("{unknown} {a}", "{unknown} 1"),
        ("{ a }", "{ a }"),
        ("{a!r} {a:>4} {0} {}", "{a!r} {a:>4} {0} {}"),
        ("{{a}}", "{1}"),
        ("{x {a}", "{x 1"),
        ("{A}", "{A}"),
        ("a {} } {", "a {} } {"),
        ("", ""),
    ],
)
def test_only_known_placeholders_are_filled(template: str, filled: str) -> None:
    assert fill(template, {"a": "1"}) == filled


def test_text_that_was_put_in_is_not_scanned_again() -> None:
    assert (
        fill("{user_input} | {history}", {"user_input": "say {history}", "history": "{user_input}"})
        == "say {history} | {user_input}"
    )


def test_the_names_of_a_template_are_what_stands_in_braces_each_once() -> None:
    assert names("{a} {memory.x.y z}{a} {} {{b}} {c {d}") == ["a", "memory.x.y z", "b", "d"]


@given(st.text())
def test_a_template_without_known_names_is_unchanged(template: str) -> None:
    assert fill(template, {}) == template


@given(st.text(), st.text(alphabet="{}ab "), st.text())
def test_what_stands_round_a_placeholder_does_not_matter_to_it(before: str, value: str, after: str) -> None:
    assert fill(f"{before.replace('{', '')}{{name}}{after.replace('{', '')}", {"name": value}) == (
        f"{before.replace('{', '')}{value}{after.replace('{', '')}"
    )


# instruct


@pytest.mark.parametrize(
    ("instruction", "prompt", "used"),
    [
        ("Summarise this: {input}", "Summarise this:\n\nTEXT", True),
        ("Summarise this:\n{input}\n", "Summarise this:\n\nTEXT", True),
        ("{input}", "TEXT", True),
        ("Take {input} and shorten it.", "Take TEXT and shorten it.", True),
        ("{input}: what is {input}?", "TEXT: what is TEXT?", True),
        ("{input} or {input}", "TEXT or\n\nTEXT", True),
        ('Answer {"q": {input}}', 'Answer {"q": TEXT}', True),
        ("Say hello. ", "Say hello. ", False),
        ("", "", False),
    ],
)
def test_the_place_of_the_input_decides(instruction: str, prompt: str, used: bool) -> None:
    assert instruct(instruction, "TEXT") == (prompt, used)


def test_other_placeholders_of_an_instruction_are_filled_too() -> None:
    prompt = instruct("For {who}: {input}", "TEXT", {"who": "me"})

    assert prompt == ("For me:\n\nTEXT", True)


@pytest.mark.parametrize("instruction", ["{who}: {input}", "{input} for {who}"])
def test_an_input_with_braces_stays_whole(instruction: str) -> None:
    prompt, _ = instruct(instruction, "{input} {who}", {"who": "{input}"})

    assert prompt in ("{input}:\n\n{input} {who}", "{input} {who} for {input}")


@given(st.text(), st.text())
def test_an_input_that_is_used_is_in_the_prompt(instruction: str, text: str) -> None:
    prompt, used = instruct(instruction + "{input}", text)

    assert used
    assert prompt.endswith(text)


# render and check


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Hello {{ name }}", "Hello Ada"),
        ("{% for n in numbers %}{{ n }};{% endfor %}", "1;2;"),
        ("{{ user.mail }}", "a@b"),
        ("<b>{{ html }}</b>", "<b><i>&</b>"),
        ("{% if missing is defined %}yes{% else %}no{% endif %}", "no"),
        ("{{ missing | default('none') }}", "none"),
        ("{{ numbers | tojson }}", "[1, 2]"),
    ],
)
def test_a_template_is_rendered_with_its_context(template: str, text: str) -> None:
    context: dict[str, JsonValue] = {"name": "Ada", "numbers": [1, 2], "user": {"mail": "a@b"}, "html": "<i>&"}

    assert render(template, context) == text


@pytest.mark.parametrize(
    "template", ["{{ nmae }}", "{{ user.nmae }}", "{% if nmae %}x{% endif %}", "{% for n in nmae %}x{% endfor %}"]
)
def test_a_missing_variable_renders_as_nothing(template: str) -> None:
    assert render(template, {"name": "Ada", "user": {}}) == ""


def test_what_is_in_a_missing_variable_is_an_error_with_its_line() -> None:
    with pytest.raises(TemplateError, match=r"line 2: .*'nmae' is undefined"):
        render("one\n{{ nmae.first }}", {})


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ name }} {% if topic %}{% endif %}", {"name", "topic"}),
        ("{% set a = b %}{{ a }}{% for c in d %}{{ c }} {{ loop.index }}{% endfor %}", {"b", "d"}),
        ("{{ a | default('x') }}{{ b | d('x') }}{% if c is defined %}{{ c }}{% endif %}{{ e | upper }}", {"e"}),
        ("{% from 'words.jinja2' import be %}{{ be(what) }}{{ range(3) }}", {"what"}),
    ],
)
def test_what_a_template_takes_from_its_context_is_known_before(template: str, found: set[str]) -> None:
    assert undeclared(template) == found


@pytest.mark.parametrize(
    "template",
    [
        "{{ foo.bar }}",
        "{{ foo['bar'] }}",
        "{{ foo + 1 }}",
        "{{ 2 * foo }}",
        "{{ foo() }}",
        "{% for x in foo.items() %}{% endfor %}",
        "{% if foo.bar %}x{% endif %}",
    ],
)
def test_a_name_that_a_template_computes_with_must_not_be_missing(template: str) -> None:
    assert computed_with(template) == {"foo"}
    with pytest.raises(TemplateError):
        render(template, {})


@pytest.mark.parametrize(
    "template",
    [
        "{{ foo }}", "{% for x in foo %}{{ x }}{% endfor %}", "{{ foo | upper }}", "{% if foo %}{{ foo.bar }}{% endif %}",
        "{{ foo.bar if foo else '' }}", "{{ foo and foo.bar }}", "{% if foo and foo.bar %}x{% endif %}", "{% if foo == 1 %}x{% endif %}",
    ],
)  # fmt: skip
def test_a_name_that_is_shown_or_asked_for_may_be_missing(template: str) -> None:
    assert computed_with(template) == set()
    assert isinstance(render(template, {}), str)


def test_a_sound_template_passes_the_check_without_its_variables() -> None:
    check("{{ anything.at['all'] | default('x') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, {})


def test_a_template_cannot_change_its_context() -> None:
    items: list[JsonValue] = [1]

    text = render("{% set _ = items.append(2) %}{{ items }}", {"items": items})

    assert text == "[1, 2]"
    assert items == [1]


@pytest.mark.parametrize(
    "template", ["{{" + "(" * 2000 + ")" * 2000 + "}}", "{% for i in x %}" * 30 + "{% endfor %}" * 30]
)
def test_a_template_too_deep_to_compile_is_a_fault(template: str) -> None:
    with pytest.raises(TemplateError, match="cannot be compiled"):
        check(template)


PIECES = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    " x ",
    "if",
    "endif",
    "for",
    "in",
    "|",
    ".",
    "'",
    "1",
    "/",
    "0",
    "-",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_renders_or_is_a_template_error(template: str) -> None:
    with suppress(TemplateError):
        assert isinstance(render(template, {"x": [{}]}), str)
