"""Parsing of model replies: the answer, and the tool calls in it, native or written as JSON; and the tools that they name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cantata import bounds
from cantata.flows.expressions import json_repair
from cantata.values import JsonValue, ToolCallRequest, Value

Dialect = Literal["native", "json"]

UNKNOWN_FUNCTION = "unknown_function"
"""The name of a call that names no tool."""

MAX_ENCODINGS = 3
"""How often arguments may be JSON in JSON, in all."""
MAX_QUOTED_CHARS = 100
"""Characters of a name that are quoted to a model; no tool has a longer one."""
MAX_LISTED_TOOLS = 10
"""The number of tools up to which all are listed to a model that calls an unknown one."""


class ParsedCall(Value):
    """One tool call that a model requested."""

    id: str = Field(description="the id of its result, unique in the reply")
    name: str = Field(description="as the model wrote it, or the tool's own name once resolved")
    arguments: dict[str, JsonValue] | None = Field(default=None, description="null if they cannot be read")
    fault: str = Field(default="", description="why the call cannot be made, for the model")
    dialect: Dialect = Field(default="native", description="the form of the call, and so of its result")
    intent: str = Field(default="", description="the aim of the tool's own workflow, where no method is named")


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A parsed reply: its response and its calls."""

    response: JsonValue
    """The answer if there are no calls, else the text beside them."""
    calls: tuple[ParsedCall, ...] = ()
    is_truncated: bool = False
    """Whether the text ends in the middle of a JSON reply."""


def calls_of(text: str, tool_calls: Sequence[ToolCallRequest] = (), *, is_incomplete: bool = False) -> ParsedReply:
    """Return the response and the calls of a reply with this text and these native calls; native calls come first.

    A JSON reply is an object with `response`, or `mcp` ({tool, method, params}, {tool, intent, context}, or a list of them), or
    {tool, intent, context} itself. Another JSON object is the answer as it is; any other text is the answer, unchanged. In a reply that is
    incomplete, as its finish reason says, an object without its last brace is truncated.
    """
    value = _json_reply(text, is_incomplete)
    requested = [_native(call) for call in tool_calls]
    json_calls = [] if value is None else [_json_call(each) for each in _requests_in(value)]
    requested += json_calls
    ids = _unique(call.id for call in requested)
    calls = tuple(call.model_copy(update={"id": call_id}) for call, call_id in zip(requested, ids, strict=True))
    is_truncated = not json_calls and json_repair.is_truncated(
        text, ("response", "mcp", "tool"), is_incomplete=is_incomplete
    )
    if value is None:
        return ParsedReply(text, calls, is_truncated)
    response = value.get("response", None if json_calls else value)
    return ParsedReply("" if json_calls and response is None else response, calls, is_truncated)


def _json_reply(text: str, is_incomplete: bool) -> dict[str, JsonValue] | None:
    """Return the object that the text is; else, of the objects within it, the first that calls a tool, or the first with a response."""
    found = list(json_repair.objects_in(text, is_incomplete=is_incomplete))
    if len(found) == 1 and found[0].is_whole_text:
        return found[0].value
    values = [each.value for each in found]
    return next((value for value in values if _requests_in(value)), None) or next(
        (value for value in values if "response" in value), None
    )


def _requests_in(value: dict[str, JsonValue]) -> list[JsonValue]:
    mcp = value.get("mcp")
    if mcp:
        return mcp if isinstance(mcp, list) else [mcp]
    return [value] if _texts(value, "tool", "intent") else []


def _texts(value: dict[str, JsonValue], *keys: str) -> bool:
    return all(isinstance(value.get(key), str) and value[key] for key in keys)


def _native(call: ToolCallRequest) -> ParsedCall:
    if not call.name:
        return ParsedCall(id=call.id, name=UNKNOWN_FUNCTION, fault="The call names no tool.")
    arguments, fault = _arguments(call.arguments)
    return ParsedCall(id=call.id, name=call.name, arguments=arguments, fault=fault)


def _json_call(requested: JsonValue) -> ParsedCall:
    if not isinstance(requested, dict):
        return _nameless(f"A call is an object {{tool, method, params}}, not {_quoted(requested)}.")
    if not _texts(requested, "tool"):
        return _nameless("The call has no field 'tool' that names a tool.")
    tool, method, intent = str(requested["tool"]), requested.get("method"), requested.get("intent")
    if not method and _texts(requested, "intent"):
        context: dict[str, JsonValue] = {key: requested[key] for key in ("intent", "context") if key in requested}
        return ParsedCall(id="", name=tool, arguments=context, dialect="json", intent=str(intent))
    if method and not isinstance(method, str):
        return ParsedCall(id="", name=tool, fault=f"'method' is a text, not {_quoted(method)}.", dialect="json")
    arguments, fault = _arguments(requested.get("params"))
    return ParsedCall(
        id="", name=f"{tool}.{method}" if method else tool, arguments=arguments, fault=fault, dialect="json"
    )


def _nameless(fault: str) -> ParsedCall:
    return ParsedCall(id="", name=UNKNOWN_FUNCTION, fault=fault, dialect="json")


def _arguments(given: JsonValue) -> tuple[dict[str, JsonValue] | None, str]:
    """Return the arguments, or None and what is wrong with them.

    For no arguments models write null or an empty text. Some write JSON in JSON, a fence, single quotes, or a brace too many.
    """
    value = given
    for _ in range(MAX_ENCODINGS):
        if not isinstance(value, str):
            break
        text = value
        try:
            value = json.loads(text, strict=False) if text.strip() else None
        except (ValueError, RecursionError) as error:
            value = json_repair.only_object(
                text, is_incomplete=True
            )  # half a request must not be made: no brace is added
            if value is None:
                return None, f"The arguments are not valid JSON: {error}. They were {_quoted(given)}."
    if value is None:
        return {}, ""
    if excess := bounds.find(value):
        return None, f"The arguments cannot be used: {excess.of('arguments')}."
    if not isinstance(value, dict):
        return None, f"The arguments must be a JSON object, not {_quoted(value)}."
    return value, ""


def _quoted(value: JsonValue, max_chars: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def _unique(ids: Iterable[str]) -> list[str]:
    """Return the ids, with a new one for each call that has none, or that of another call."""
    taken: list[str] = []
    for number, given in enumerate(ids, 1):
        unique = given or f"call_{number}"
        while unique in taken:
            unique += "_"
        taken.append(unique)
    return taken


def resolve(call: ParsedCall, known: Collection[str]) -> ParsedCall:
    """Return the call with its tool's own name, or with a fault if there is no such tool.

    A call in JSON names `tool.method`; the method is ignored if the tool has none.
    """
    if call.fault:
        return call
    name = call.name if call.name in known else None if call.dialect == "native" else _without_method(call.name, known)
    return call.model_copy(update={"fault": unknown_tool(call.name, known)} if name is None else {"name": name})


def unknown_tool(name: str, known: Collection[str]) -> str:
    """Return the message to a model that called an unknown tool."""
    name = name if len(name) <= MAX_QUOTED_CHARS else f"{name[:MAX_QUOTED_CHARS]}…"
    message = f"Tool function {name!r} is not available."
    methods = [other for other in known if other.startswith(f"{name}.")]
    near = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(name, methods, n=3, cutoff=0)
    if near:
        return f"{message} Did you mean {' or '.join(map(repr, near))}?"
    return (
        f"{message} There are {', '.join(map(repr, sorted(known)))}." if 0 < len(known) <= MAX_LISTED_TOOLS else message
    )


def _without_method(name: str, known: Collection[str]) -> str | None:
    """Return the tool in `tool.method` if it has no methods; None otherwise."""
    tool, dot, _ = name.rpartition(".")
    while dot and tool not in known:
        tool, dot, _ = tool.rpartition(".")
    has_methods = any(other.startswith(f"{tool}.") for other in known)
    return tool if dot and not has_methods else None
