"""The request of a fork: that of its source, with changes to the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from cantata.errors import ConfigError
from cantata.flows.chains import checks, expand
from cantata.flows.definitions import Definitions
from cantata.flows.forks import EndedRun
from cantata.flows.graph import START
from cantata.flows.turns import turn_plan
from cantata.flows.waits import ESCALATED_TO
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.values import JsonValue, stored

INPUT = "input"

FORKED_FROM, FORKED_AT = "forked_from", "forked_at"
"""Labels of a fork: the id of its source run; the step it starts from, none for a retry."""


def labels_of(source: EndedRun, from_step: str | None) -> dict[str, str]:
    """Return the labels of a fork."""
    kept = {name: value for name, value in source.labels.items() if name not in (FORKED_FROM, FORKED_AT, ESCALATED_TO)}
    return {**kept, FORKED_FROM: source.run_id, **({FORKED_AT: from_step} if from_step is not None else {})}


def request_of(
    source: EndedRun, from_step: str | None, changes: Mapping[str, JsonValue], definitions: Definitions
) -> tuple[JsonValue, JsonValue]:
    """Return the request of a fork, and its input. Raises ConfigError for changes that the request does not allow.

    Args:
        from_step: The step that the fork starts from; None for a retry.
        changes: Path → value. `input.x.y` is a key of a chain's initial input, or of a workflow's arguments, created if absent;
            `input` is all of it, or a turn's text.
    """
    if source.kind in ("webhook", "batch"):
        if changes:
            raise _refused("what a webhook gets, and the rows of a batch, cannot be changed")
        return source.request, cast("dict[str, JsonValue]", source.request)["text"]
    if source.kind == "chain":
        request = stored(ChainRequest, source.request)
        node = request.nodes[0]
        if (
            is_workflow := len(request.nodes) == 1
            and node.kind == "workflow"
            and not (request.initial_input or node.input_map)
        ):
            if changes and from_step != START:
                raise _refused(
                    f"a workflow in Python gets its input at its start, not at {from_step!r}: fork it from {START!r}"
                )
            request = request.model_copy(
                update={"nodes": [node.model_copy(update={"input": _changed(node.input, changes)})]}
            )
        else:
            request = request.model_copy(update={"initial_input": _changed(request.initial_input, changes)})
        faults, code = checks.check(request, definitions)
        given: JsonValue = expand.input_of(request)
    else:
        turn = stored(TurnRequest, source.request)
        text = _text(turn.text, changes)
        faults, code, given = (
            turn_plan.check_turn(turn.model_copy(update={"text": text}), definitions),
            "bad_request",
            text,
        )
    if faults:
        raise ConfigError(faults, code=code)
    if not changes:
        return source.request, given
    known = cast("dict[str, Any]", source.request)
    if source.kind == "turn":
        return {**known, "text": given}, given
    if is_workflow:
        return {**known, "nodes": [{**known["nodes"][0], "input": request.nodes[0].input}]}, given
    return {**known, "initial_input": given}, given


def _changed(given: Mapping[str, JsonValue], changes: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    whole: dict[str, JsonValue] = {INPUT: dict(given)}
    for path, value in changes.items():
        first, *rest = path.split(".")
        if first != INPUT or not all(rest):
            raise _refused(f"{path!r} cannot be changed; change 'input' or a key of it, such as 'input.x'")
        whole = cast("dict[str, JsonValue]", _put(whole, [first, *rest], value, path))
    changed = whole[INPUT]
    if not isinstance(changed, dict):
        raise _refused(f"the input of a chain is an object, not {changed!r}")
    return changed


def _put(within: JsonValue, keys: list[str], value: JsonValue, path: str) -> JsonValue:
    """Return a value in which the value at the end of a path of keys is replaced."""
    if not keys:
        return value
    if not isinstance(within, dict):
        raise _refused(f"{path!r} leads into {within!r}, which is no object")
    return {**within, keys[0]: _put(within.get(keys[0], {} if len(keys) > 1 else None), keys[1:], value, path)}


def _text(text: str, changes: Mapping[str, JsonValue]) -> str:
    for path, value in changes.items():
        if path != INPUT:
            raise _refused(f"{path!r} cannot be changed; of a turn only 'input', its text, can")
        if not isinstance(value, str):
            raise _refused(f"the input of a turn is a text, not {value!r}")
        text = value
    return text


def _refused(message: str) -> ConfigError:
    return ConfigError(message)
