"""The key `navigation`: an agent's answer, or rules, choose the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from cantata.bounds import MAX_DURATION_S
from cantata.flows.definitions import OutputSchema
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.conditions import contains, equals, is_empty, negated
from cantata_frontends.langswarm.chains.output_routes import ChoiceRoute, Route, ToStep
from cantata_frontends.langswarm.chains.reference_expressions import Scope, UnreadableError, literal, parts_of
from cantata_frontends.langswarm.chains.steps import ChainStep
from cantata_frontends.langswarm.config_part import ConfigPart, either

_MODES = ("manual", "conditional", "hybrid")
_KEYS = (
    "mode",
    "available_steps",
    "steps",
    "rules",
    "fallback_step",
    "prompt_template",
    "max_attempts",
    "timeout_seconds",
)
_PROMPT = (
    "Then choose the step that comes next, as `step` of your answer; `response` is what you have to say. The steps:"
)

_ORDERS = ("gt", "lt", "gte", "lte")
_OPERATORS: Mapping[str, Callable[[str, JsonValue], str]] = {
    "eq": lambda left, value: f"({equals(left, value)})",
    "ne": lambda left, value: negated(equals(left, value)),
    "gt": lambda left, value: f"to_number({left}) > {literal(value)}",
    "lt": lambda left, value: f"to_number({left}) < {literal(value)}",
    "gte": lambda left, value: f"to_number({left}) >= {literal(value)}",
    "lte": lambda left, value: f"to_number({left}) <= {literal(value)}",
    "contains": lambda left, value: contains(left, literal(value)),
    "in": lambda left, value: contains(literal(value), left),
    "exists": lambda left, value: is_empty(left) if value is False else negated(is_empty(left)),
}


@dataclass(frozen=True)
class Navigation:
    """The steps to choose among, and the way of the choice."""

    options: Mapping[str, str]
    """Step → its description."""
    rules: Sequence[tuple[str, str]]
    """(condition, step) pairs; the first condition that holds chooses its step."""
    asks: bool
    """Whether the agent chooses where no rule does."""
    fallback: str | None
    trials: int | None
    timeout_s: float | None
    prompt: str | None

    def changes(self) -> dict[str, object]:
        """Return the changes of an agent that chooses: its prompt lists the steps, and its answer names one."""
        options = "\n".join(f"- {name}: {text}" if text else f"- {name}" for name, text in self.options.items())
        if self.prompt is None:
            prompt = f"{{input}}\n\n{_PROMPT}\n{options}"
        else:
            prompt = self.prompt.replace("{available_steps}", options).replace("{context}", "{input}")
        schema = {
            "type": "object",
            "properties": {"step": {"enum": [*self.options]}, "response": {"type": "string"}},
            "required": ["step"],
        }
        trials = {} if self.trials is None else {"trials": self.trials}
        timeout = {} if self.timeout_s is None else {"timeout_s": self.timeout_s}
        return {
            "instructions": [prompt],
            "output": OutputSchema.model_validate({"schema": schema, **trials}),
            **timeout,
        }

    def routes(self, value: str) -> tuple[Route, ...]:
        """Return the routes from a step with this output."""
        routes: tuple[Route, ...] = (ToStep(self.fallback),) if self.fallback else ()
        if self.asks:
            options = [*self.options]
            if not routes:  # the answer is one of them, so the last needs no condition
                routes = (ToStep(options.pop()),)
            cases = tuple((f'{value}."step" == {literal(option)}', (ToStep(option),)) for option in options)
            routes = (ChoiceRoute(cases, routes),) if cases else routes
        for test, target in reversed(self.rules):
            routes = (ChoiceRoute(((test, (ToStep(target),)),), routes),)
        return routes


def read_navigation(step: ChainStep, steps: Mapping[str, ChainStep], value: str) -> Navigation | None:
    """Read the navigation of a step; `value` is the expression of its output. None with a fault."""
    part = step.at("navigation")
    part.check_keys(_KEYS)
    mode = part.at("mode").text() if part.has("mode") else "manual"
    if mode not in _MODES:
        why = "; random choices are not available" if mode == "weighted" else did_you_mean(mode, _MODES)
        part.at("mode").fault(f"there is no mode {mode!r}{why}")
    options = dict(_options(either(part, "available_steps", "steps"), steps))
    rules = _rules(part.at("rules"), steps, value) if mode != "manual" else []
    if mode == "manual" and part.has("rules"):
        part.at("rules").warn(
            "'rules' have no effect in mode 'manual'; in mode 'hybrid' they come before the agent's choice"
        )
    asks = mode != "conditional"
    if asks and not options:
        part.fault("name the steps to choose among in 'available_steps'")
        return None
    if not asks and not rules:
        part.fault("mode 'conditional' needs 'rules'")
    fallback = part.at("fallback_step").text() if part.has("fallback_step") else None
    if fallback is not None and not part.at("fallback_step").is_known(fallback, steps, "step"):
        fallback = None
    trials = part.at("max_attempts").count(least=1)
    return Navigation(
        options,
        rules,
        asks,
        fallback,
        None if trials is None else trials - 1,
        part.at("timeout_seconds").number(least=0.001, most=MAX_DURATION_S),
        part.at("prompt_template").text() if part.has("prompt_template") else None,
    )


def _options(part: ConfigPart, steps: Mapping[str, ChainStep]) -> list[tuple[str, str]]:
    found = []
    for item in part.items():
        name = item.at("id").text() if isinstance(item.value, dict) else item.text()
        item.check_keys(("id", "name", "description"))
        if name and item.is_known(name, steps, "step"):
            described = item.first("description", "name") or steps[name].part.first("description", "name")
            found.append((name, described.text() if described else ""))
    return found


def _rules(part: ConfigPart, steps: Mapping[str, ChainStep], value: str) -> list[tuple[str, str]]:
    found: list[tuple[float, str, str]] = []
    for item in part.items():
        item.check_keys(("conditions", "target_step", "priority", "description"))
        target = item.at("target_step").text()
        if not item.at("target_step").is_known(target, steps, "step"):
            continue
        tests = [test for each in item.at("conditions").items() if (test := _test(each, value))]
        found.append(
            (
                item.at("priority").number(least=-1e9) or 0,
                " && ".join(f"({test})" for test in tests) or literal(True),
                target,
            )
        )
    return [(test, target) for _, test, target in sorted(found, key=lambda rule: -rule[0])]


def _test(part: ConfigPart, value: str) -> str | None:
    part.check_keys(("field", "operator", "value", "description"))
    operator = part.at("operator").text() if part.has("operator") else "eq"
    if not part.at("operator").is_known(operator, _OPERATORS, "operator"):
        return None
    is_given = part.has("value") or (operator not in _ORDERS and isinstance(part.value, dict) and "value" in part.value)
    if operator != "exists" and not is_given:
        part.fault(f"'value' is missing: what {part.at('field').value!r} is compared with")
    constant = part.at("value").number(least=-inf) if operator in _ORDERS else part.at("value").value
    try:
        path = parts_of(part.at("field").text())
    except UnreadableError as error:
        part.at("field").fault(str(error))
        return None
    scope = Scope(steps={"output": value, "response": value})
    if path[0] == "context":
        part.at("field").fault(
            "a rule refers to the output of its own step, such as 'output.priority'; use 'output.to' for anything else"
        )
    name = part.at("field").text() if path[0] == "output" else f"output.{part.at('field').text()}"
    return _OPERATORS[operator](scope.expression(name), constant)
