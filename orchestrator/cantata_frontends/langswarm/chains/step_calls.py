"""The calls of steps: the fields of their nodes that name the callee and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from cantata.bounds import MAX_DURATION_S
from cantata.config.faults import shown
from cantata.flows.definitions import OutputSchema
from cantata.values import JsonValue
from cantata_frontends.langswarm.agent_reader import read_tool_list
from cantata_frontends.langswarm.chains.conditions import condition
from cantata_frontends.langswarm.chains.inputs import Schema
from cantata_frontends.langswarm.chains.navigation import Navigation
from cantata_frontends.langswarm.chains.node_emitter import Fields
from cantata_frontends.langswarm.chains.reference_expressions import (
    USER_INPUT,
    Rendered,
    Scope,
    UnreadableError,
    check_key,
    is_reference,
    literal,
    render,
    undeclared,
    unresolved,
)
from cantata_frontends.langswarm.chains.steps import ChainStep
from cantata_frontends.langswarm.config_part import ConfigPart, either
from cantata_frontends.langswarm.symbol_table import SymbolTable, defined_in


@dataclass(frozen=True)
class CallBuilder:
    """Builds the fields of the nodes of one workflow's steps."""

    symbols: SymbolTable
    chain: str
    retry: int = 0
    """The default number of retries."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Changes of every agent of the chain."""
    at_once: bool = False
    """Whether loops run all items in parallel by default."""

    def fields(self, step: ChainStep, scope: Scope, navigation: Navigation | None, schema: JsonValue = None) -> Fields:
        """Return the fields of a step's node, without what comes next."""
        fields = _KINDS[step.kind](self, step, scope)
        if step.kind == "agent":
            fields["name"] = self._agent(step, navigation, schema)
        if seconds := step.at("timeout").number(least=0.001, most=MAX_DURATION_S):
            fields["timeout"] = seconds
        if step.kind in ("agent", "function", "tool", "transform"):
            retry = retries_of(step.part) if step.has("retry") or step.has("retry_policy") else self.retry
            fields |= {"retry": retry} if retry else {}
        return fields

    # --- agents -------------------------------------------------------------------------------------------------------

    def _agent(self, step: ChainStep, navigation: Navigation | None, schema: JsonValue) -> str:
        """Return the agent that a step calls, or a variant of it."""
        part = step.at("agent")
        name = part.text()
        if not part.is_known(name, self.symbols.agents, "agent"):
            return name
        changes: dict[str, object] = dict(self.changes)
        if step.has("no_mcp"):
            inner = step.at("no_mcp")
            inner.check_keys(("tools",))
            tools, limit = read_tool_list(inner.at("tools"), self.symbols)
            changes |= {"tools": tools, **({"max_tool_rounds": limit} if limit else {})}
            if not inner.has("tools"):
                inner.fault("'no_mcp' needs 'tools': the tools that the agent may call in this step")
        if step.has("tools"):
            own = changes.get("tools", self.symbols.agents[name].tools)
            changes["tools"] = list(
                dict.fromkeys([*cast("list[str]", own), *read_tool_list(step.at("tools"), self.symbols)[0]])
            )
        if navigation is not None and navigation.asks:
            changes |= navigation.changes()
        elif isinstance(schema, dict):
            changes["output"] = OutputSchema.model_validate({"schema": schema})
        return self.symbols.variant(name, f"{self.chain}.{step.id}", changes)

    def _asked(self, step: ChainStep, scope: Scope) -> Fields:
        for name, each in step.at("args").entries():
            if name != "steps" or not step.is_true("is_fan_in"):
                each.fault(f"{name!r} has no effect on a step with an agent; put it in 'input'")
        part = step.at("input")
        if part.value is None:
            return {"kind": "agent", "input_map": {"input": f"not_null({scope.before}, '')"}}
        if isinstance(part.value, dict):
            return {"kind": "agent", **_given(dict(part.entries()), scope)}
        if isinstance(part.value, list) and all(isinstance(name, str) and scope.knows(name) for name in part.value):
            return {"kind": "agent", "input_map": {str(name): scope.expression(str(name)) for name in part.value}}
        rendered = _rendered(part, scope)
        if rendered.expression is None:
            return {"kind": "agent", "input": {"input": rendered.value}}
        return {"kind": "agent", "input_map": {"input": f"not_null({rendered.expression}, '')"}}

    # --- tools and functions --------------------------------------------------------------------------------------------

    def _tool(self, step: ChainStep, scope: Scope) -> Fields:
        part = step.at("tool")
        name = part.text()
        if step.has("method"):
            name = f"{name}.{step.at('method').text()}"
        names = self.symbols.resolve_tool(part, name, is_called=True) if name else []
        if len(names) > 1:
            part.fault(
                f"{name!r} has several methods; choose one in 'method': {', '.join(each.partition('.')[2] for each in names)}"
            )
        return {"kind": "tool", "name": (names or [name])[0], **self._arguments(step, scope, (names or [""])[0])}

    def _function(self, step: ChainStep, scope: Scope) -> Fields:
        part = step.at("function")
        tool = self._script(part.text(), step) if step.has("script") else self.symbols.function(part)
        return {"kind": "tool", "name": tool or part.text(), **self._arguments(step, scope, tool or "")}

    def _script(self, name: str, step: ChainStep) -> str | None:
        """Return the tool of a function that the step itself defines; None with a fault."""
        part = step.at("script")
        text = part.text()
        try:
            if name in defined_in(text):
                return self.symbols.script(name, part, f"{self.chain}.{step.id}")
        except (SyntaxError, ValueError) as error:
            part.fault(f"the script is not valid Python: {error}")
            return None
        part.fault(f"the script does not define the function {name!r}")
        return None

    def _transform(self, step: ChainStep, scope: Scope) -> Fields:
        """Return the fields of a transform: a function of the input, or a value with references."""
        part = step.at("transform")
        function = (
            step.at("function") if step.has("function") else part.at("function") if part.has("function") else None
        )
        if function is None and isinstance(part.value, str) and "${" not in part.value:
            function = part
        if function is None:
            if part.value is None:
                step.part.fault("a transform needs a 'function', or a value with references")
            if step.has("input"):
                step.at("input").warn(
                    "'input' has no effect on a transform that is a value; use a reference in the value"
                )
            return {"kind": "tool", "name": self.symbols.value_tool(), **_given({"value": part}, scope)}
        if part.has("function"):
            part.check_keys(("function",))
        tool = self.symbols.function(function)
        return {"kind": "tool", "name": tool or "", **self._arguments(step, scope, tool or "", default=True)}

    def _arguments(self, step: ChainStep, scope: Scope, tool: str, *, default: bool = False) -> Fields:
        """Return the arguments of a function or tool: mappings by name, anything else as its first argument."""
        given: dict[str, ConfigPart] = {}
        for key in ("input", "args"):
            part = step.at(key)
            if isinstance(part.value, dict):
                given |= {
                    name: each for name, each in part.entries() if not (name == "steps" and step.is_true("is_fan_in"))
                }
            elif part.value is not None or (default and key == "input"):
                name = (self.symbols.first_parameter(tool) if tool in self.symbols.tools else None) or "input"
                given[name] = part if part.value is not None else replace(part, value="${previous_output}")
        return _given(given, scope)

    # --- the others -------------------------------------------------------------------------------------------------------

    def _invoke(self, step: ChainStep, scope: Scope) -> Fields:
        part = step.at("invoke_workflow")
        name = part.text()
        declared = self.symbols.chains[name] if part.is_known(name, self.symbols.chains, "workflow") else None
        given = step.at("input")
        fields: Fields = {"kind": "chain", "name": name}
        user_input = dict.fromkeys(USER_INPUT, '$."input"."user_input"')
        if isinstance(given.value, dict):
            named = _given(dict(given.entries()), scope)
            static = cast(Fields, named.get("input", {}))
            if declared:
                declared.check(dict(given.entries()), static, given)
            mapped = {key: text for key, text in user_input.items() if key not in static}
            return {**fields, "input": static, "input_map": {**mapped, **cast(Fields, named.get("input_map", {}))}}
        if declared:
            declared.check({}, {}, step.part)
        text = scope.before if given.value is None else _rendered(given, scope).text
        return {**fields, "input_map": dict.fromkeys(USER_INPUT, text)}

    def check(self, schema: Schema) -> Fields:
        """Return the fields of the node that validates the workflow's input."""
        return {
            "kind": "tool",
            "name": self.symbols.check_tool(),
            "input": {"schema": schema},
            "input_map": {"given": '$."input"'},
        }

    def _loop(self, step: ChainStep, scope: Scope) -> Fields:
        part = step.at("loop")
        part.check_keys(("for_each", "body", "var", "max"))
        if not part.has("for_each"):
            part.fault("a loop needs 'for_each': a list, or a reference to one")
        elif not isinstance(part.at("for_each").value, list) and not is_reference(part.at("for_each").value):
            part.at("for_each").fault(
                f"expected a list, or a reference to one, found {shown(part.at('for_each').value)}"
            )
        items = _rendered(part.at("for_each"), scope).text
        if limit := part.at("max").count(least=1):
            items = f"({items})[:{limit}]"
        at_once = step.is_true("async") if step.has("async") else self.at_once
        return {"kind": "map", "items_path": items, **({} if at_once else {"max_concurrency": 1})}

    def _condition(self, step: ChainStep, scope: Scope) -> Fields:
        part = step.at("condition")
        if part.value is None:
            step.part.fault("'true_step' and 'false_step' need a 'condition'")
            return {"kind": "branch", "condition": literal(False)}
        return {"kind": "branch", "condition": read_condition(part, scope)}

    def _approval(self, step: ChainStep, scope: Scope) -> Fields:
        default = step.at("default").value if step.has("timeout") else None
        if step.has("default") and not step.has("timeout"):
            step.at("default").warn("'default' has no effect without 'timeout', after which it is the output")
        part = step.at("approval")
        text = part.value if isinstance(part.value, str) else ""
        if not isinstance(part.value, str | None) and part.value is not True:
            part.fault(f"expected a text that describes what to approve, found {shown(part.value)}")
        if "${" in text:
            part.fault("the text of an approval has no references; let the step before it tell the details")
        return {"kind": "wait", "default": default, **({"input": {"prompt": text}} if text else {})}


_KINDS: Mapping[str, Callable[[CallBuilder, ChainStep, Scope], Fields]] = {
    "agent": CallBuilder._asked,
    "tool": CallBuilder._tool,
    "function": CallBuilder._function,
    "transform": CallBuilder._transform,
    "invoke_workflow": CallBuilder._invoke,
    "loop": CallBuilder._loop,
    "condition": CallBuilder._condition,
    "approval": CallBuilder._approval,
}


def retries_of(part: ConfigPart) -> int:
    """Return the retries of a step or a chain: `retry: 2`, or `retry_policy: {max_retries: 2}`."""
    retry = either(part, "retry", "retry_count", "retry_policy")
    retry.check_keys(("max_retries",))
    return (retry.at("max_retries") if isinstance(retry.value, dict) else retry).count() or 0


def read_condition(part: ConfigPart, scope: Scope) -> str:
    """Return the expression of a condition, or of all in a list; a false one, with a fault, if it cannot be read."""
    if isinstance(part.value, list):
        return " && ".join(f"({read_condition(each, scope)})" for each in part.items()) or literal(True)
    if isinstance(part.value, bool):
        return literal(part.value)
    try:
        found = condition(part.text(), scope)
        _warn_of_nulls(part, scope)
        return found
    except UnreadableError as error:
        part.fault(str(error))
        return literal(False)


def _given(parts: Mapping[str, ConfigPart], scope: Scope) -> Fields:
    """Return named values as a node's `input` (constants) and `input_map` (values with references)."""
    for name, part in parts.items():
        try:
            check_key(name)
        except UnreadableError as error:
            part.fault(str(error))
    rendered = {name: _rendered(part, scope) for name, part in parts.items()}
    static: dict[str, JsonValue] = {name: each.value for name, each in rendered.items() if each.expression is None}
    mapped: dict[str, JsonValue] = {
        name: each.expression for name, each in rendered.items() if each.expression is not None
    }
    return {**({"input": static} if static else {}), **({"input_map": mapped} if mapped else {})}


def _rendered(part: ConfigPart, scope: Scope) -> Rendered:
    try:
        rendered = render(part.value, scope)
        for name in unresolved(part.value, scope):
            part.warn(f"{name!r} names nothing here, so it stays as it is")
        _warn_of_nulls(part, scope)
        return rendered
    except UnreadableError as error:
        _innermost_fault(part, scope).fault(str(error))
        return Rendered()


def _innermost_fault(part: ConfigPart, scope: Scope) -> ConfigPart:
    """Return the innermost part that cannot be read."""
    for child in _children(part):
        try:
            render(child.value, scope)
        except UnreadableError:
            return _innermost_fault(child, scope)
    return part


def _warn_of_nulls(part: ConfigPart, scope: Scope) -> None:
    """Warn of the references in a part, which can be rendered, whose value is null."""
    for name in undeclared(part.value, scope):
        part.warn(
            f"{name!r} is always null, unless a caller passes it: no step has this name, and 'inputs' do not declare it"
        )
    for child in _children(part):
        _warn_of_nulls(child, scope)


def _children(part: ConfigPart) -> list[ConfigPart]:
    if isinstance(part.value, dict):
        return [part.at(key) for key in part.value]
    return part.items() if isinstance(part.value, list) else []
