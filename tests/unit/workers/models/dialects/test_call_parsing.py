"""A reply says its answer and its calls, in either dialect."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.values import JsonValue, ToolCallRequest
from cantata_workers.models.dialects.call_parsing import (
    UNKNOWN_FUNCTION,
    Dialect,
    ParsedCall,
    ParsedReply,
    calls_of,
    resolve,
    unknown_tool,
)


def spoken(text: str | JsonValue) -> tuple[ParsedCall, ...]:
    return calls_of(text if isinstance(text, str) else json.dumps(text)).calls


def native(arguments: str, name: str = "add", call_id: str = "c1") -> ParsedCall:
    return calls_of("", [ToolCallRequest(id=call_id, name=name, arguments=arguments)]).calls[0]


def test_a_native_call_has_its_arguments() -> None:
    said = calls_of("I add.", [ToolCallRequest(id="c1", name="add", arguments='{"a": 1}')])

    assert said == ParsedReply("I add.", (ParsedCall(id="c1", name="add", arguments={"a": 1}),))


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    assert native(arguments) == ParsedCall(id="c1", name="add", arguments={})


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('{"a": 1', "The arguments are not valid JSON: "),
        ('"{\\"a\\": 1"', "The arguments are not valid JSON: "),
        ('[{"a": 1}]', "The arguments must be a JSON object, not [{'a': 1}]."),
        ('```json\n[{"a": 1}]\n```', "The arguments are not valid JSON: "),
        ('{"a": 1} and {"b": 2}', "The arguments are not valid JSON: "),
        (
            '{"a"',
            "The arguments are not valid JSON: Expecting ':' delimiter: line 1 column 5 (char 4). They were '{\"a\"'.",
        ),
        ("[1]", "The arguments must be a JSON object, not [1]."),
        ('{"a": NaN}', "arguments.a: nan is not JSON"),
        ('{"a": "\\ud800"}', "arguments.a: text with half a surrogate pair"),
        ('{"a": ' * 300 + "1" + "}" * 300, "nested deeper than 64 levels"),
        ('{"a": ' * 5000, "The arguments are not valid JSON: "),
        ('{"a": ' + "9" * 5000 + "}", "The arguments are not valid JSON: "),
    ],
)
def test_arguments_that_cannot_be_used_are_a_fault(arguments: str, fault: str) -> None:
    call = native(arguments)

    assert call.arguments is None
    assert fault in call.fault
    assert len(call.fault) < 400


@pytest.mark.parametrize(
    "arguments",
    [
        '"{\\"a\\": 1}"',
        '```json\n{"a": 1}\n```',
        "{'a': 1}",
        '{"a": 1}}',
        '{"a": 1,}',
        ' {"a": 1} ',
        '"```json\\n{\\"a\\": 1}\\n```"',
    ],
)
def test_arguments_that_are_almost_json_are_read_in_every_dialect(arguments: str) -> None:
    (in_json,) = calls_of(json.dumps({"mcp": {"tool": "add", "params": arguments}})).calls

    assert (native(arguments).arguments, native(arguments).fault) == ({"a": 1}, "")
    assert (in_json.arguments, in_json.fault) == ({"a": 1}, "")


def test_raw_newlines_in_arguments_are_read() -> None:
    assert native('{"a": "one\ntwo"}').arguments == {"a": "one\ntwo"}


def test_a_call_without_a_name_has_one_to_be_answered_under() -> None:
    call = native("{}", name="")

    assert (call.name, call.fault) == (UNKNOWN_FUNCTION, "The call names no tool.")


def test_a_reply_in_json_calls_a_method() -> None:
    reply = {"response": "I look", "mcp": {"tool": "files", "method": "read", "params": {"path": "a"}}}

    assert calls_of(json.dumps(reply)) == ParsedReply(
        "I look", (ParsedCall(id="call_1", name="files.read", arguments={"path": "a"}, dialect="json"),)
    )


def test_a_reply_in_json_may_call_several() -> None:
    first, second = spoken({"mcp": [{"tool": "a", "method": "b"}, {"tool": "c", "params": {"d": 1}}]})

    assert (first.id, first.name, first.arguments) == ("call_1", "a.b", {})
    assert (second.id, second.name, second.arguments) == ("call_2", "c", {"d": 1})


@pytest.mark.parametrize(
    "reply",
    [{"tool": "t", "intent": "do it", "context": [1]}, {"mcp": {"tool": "t", "intent": "do it", "context": [1]}}],
)
def test_an_intent_is_a_call_of_the_tools_own_workflow(reply: JsonValue) -> None:
    assert spoken(reply) == (
        ParsedCall(
            id="call_1", name="t", arguments={"intent": "do it", "context": [1]}, dialect="json", intent="do it"
        ),
    )


@pytest.mark.parametrize(
    ("mcp", "fault"),
    [
        ("none", "A call is an object {tool, method, params}, not 'none'."),
        ([7], "A call is an object {tool, method, params}, not 7."),
        ({"method": "m"}, "The call has no field 'tool' that names a tool."),
        ({"tool": 3}, "The call has no field 'tool' that names a tool."),
        ({"tool": "t", "method": ["m"]}, "'method' is a text, not ['m']."),
        ({"tool": "t", "params": [1]}, "The arguments must be a JSON object, not [1]."),
    ],
)
def test_a_call_in_json_that_cannot_be_made_has_a_fault(mcp: JsonValue, fault: str) -> None:
    (call,) = spoken({"mcp": mcp})

    assert call.fault == fault
    assert call.dialect == "json"


def test_a_call_without_a_response_says_nothing_beside() -> None:
    assert (
        calls_of('{"mcp": {"tool": "t"}}').response
        == calls_of('{"response": null, "mcp": {"tool": "t"}}').response
        == ""
    )


def test_params_may_be_json_in_a_text() -> None:
    assert spoken({"mcp": {"tool": "t", "params": '{"a": 1}'}})[0].arguments == {"a": 1}


@pytest.mark.parametrize(
    "text", ["", "Hello {name}!", "[1, 2]", '"mcp"', "12", "The set {1}: nice", 'It gives {"a": 1} back.']
)
def test_what_is_no_json_object_is_the_answer_unchanged(text: str) -> None:
    assert calls_of(text) == ParsedReply(text)


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ('{"response": "done"}', "done"),
        ('{"response": "done", "mcp": null}', "done"),
        ('{"response": {"a": 1}, "mcp": []}', {"a": 1}),
        ('{"total": 3}', {"total": 3}),
        ('```json\n{"total": 3}\n```', {"total": 3}),
        ('{"tool": "hammer", "price": 3}', {"tool": "hammer", "price": 3}),
        ('Here you are:\n```json\n{"response": "done",}\n```', "done"),
        ("{'response': 'it's done', 'mcp': None}", "it's done"),
    ],
)
def test_a_json_reply_without_a_call_is_its_response_or_itself(text: str, response: JsonValue) -> None:
    assert calls_of(text) == ParsedReply(response)


@pytest.mark.parametrize(
    ("text", "is_truncated"),
    [
        ('{"response": "I look", "mcp": {"tool": "fi', True),
        ('{"response": "I look"} {"mcp": {"tool": "fi', True),
        ('{"mcp": {"tool": "find"}} {"mcp": {"tool": "fi', False),
        ('Write {"name": "Ann', False),
        ('{"a": ', True),
    ],
)
def test_a_reply_that_ends_in_the_middle_of_its_json_is_truncated(text: str, is_truncated: bool) -> None:
    assert calls_of(text).is_truncated is is_truncated


def test_of_several_objects_among_words_the_first_that_calls_counts() -> None:
    said = calls_of('Given {"a": 1} and {"response": "x"} I do {"mcp": {"tool": "t"}} and then {"mcp": {"tool": "u"}}.')

    assert [call.name for call in said.calls] == ["t"]
    assert said.response == ""


def test_a_call_that_breaks_off_is_not_made() -> None:
    text = '{"response": "x", "mcp": {"tool": "files", "method": "write", "params": {"text": "if (x) { y }'

    assert calls_of(text) == ParsedReply(text, is_truncated=True)


def test_a_call_without_its_last_brace_is_not_made_in_an_incomplete_reply() -> None:
    text = '{"tool": "files", "intent": "write"'

    assert [call.name for call in calls_of(text).calls] == ["files"]
    assert calls_of(text, is_incomplete=True) == ParsedReply(text, is_truncated=True)


def test_both_dialects_mix() -> None:
    said = calls_of('{"response": "both", "mcp": {"tool": "t"}}', [ToolCallRequest(id="call_2", name="n")])

    assert said.response == "both"
    assert [(call.id, call.name, call.dialect) for call in said.calls] == [
        ("call_2", "n", "native"),
        ("call_2_", "t", "json"),
    ]


@given(
    st.text(),
    st.lists(
        st.builds(ToolCallRequest, id=st.sampled_from(["", "a", "call_1"]), name=st.text(), arguments=st.text()),
        max_size=4,
    ),
)
def test_every_native_call_is_there_once_under_an_id_of_its_own(text: str, asked: list[ToolCallRequest]) -> None:
    calls = [call for call in calls_of(text, asked).calls if call.dialect == "native"]

    assert len(calls) == len(asked) == len({call.id for call in calls})
    assert all(call.arguments is not None or call.fault for call in calls)


@pytest.mark.parametrize(
    ("name", "dialect", "known", "resolved"),
    [
        ("add", "native", ["add"], "add"),
        ("add", "json", ["add"], "add"),
        ("files.read", "native", ["files.read"], "files.read"),
        ("files.read", "json", ["files", "files.read"], "files.read"),
        ("add.run", "json", ["add"], "add"),
        ("a.b.c.d", "json", ["a.b"], "a.b"),
        ("files.read.read", "json", ["files.read", "files.write"], "files.read"),
    ],
)
def test_a_call_gets_its_tools_name(name: str, dialect: Dialect, known: list[str], resolved: str) -> None:
    call = resolve(ParsedCall(id="1", name=name, arguments={}, dialect=dialect), known)

    assert (call.name, call.fault) == (resolved, "")


@pytest.mark.parametrize(
    ("name", "dialect", "known", "hint"),
    [
        ("ad", "native", ["add", "sub"], " Did you mean 'add'?"),
        ("add.run", "native", ["zzz"], " There are 'zzz'."),
        ("files.reed", "json", ["files", "files.read"], " Did you mean 'files.read'"),
        ("files", "json", ["files.read"], " Did you mean 'files.read'?"),
        ("a", "json", ["a.quite_long_name", "b.quite_long_name"], " Did you mean 'a.quite_long_name'?"),
        ("a.b", "json", [], ""),
        ("q", "json", [f"tool{n}" for n in range(11)], ""),
    ],
)
def test_an_unknown_tool_is_a_fault_that_names_what_is_near(
    name: str, dialect: Dialect, known: list[str], hint: str
) -> None:
    call = resolve(ParsedCall(id="1", name=name, arguments={}, dialect=dialect), known)

    assert call.name == name
    assert call.fault.startswith(f"Tool function {name!r} is not available.{hint}")


def test_a_fault_stays() -> None:
    call = ParsedCall(id="1", name="add", fault="bad")

    assert resolve(call, ["add"]) is call


def test_a_name_that_is_a_novel_is_cut() -> None:
    assert len(unknown_tool("x" * 100_000, ["add"])) < 200
