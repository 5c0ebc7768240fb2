"""Reads where a step's output goes: `output.to` in all its forms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from cantata.config.faults import did_you_mean
from cantata.frontends.langswarm.config_part import ConfigPart
from cantata.frontends.langswarm.workflows.conditions import any_of, condition, equals, is_empty, negated
from cantata.frontends.langswarm.workflows.references import Scope, UnreadableError, literal, render

USER = "user"


@dataclass(frozen=True)
class ToUser:
    """The output is the workflow's answer, or one of several."""


@dataclass(frozen=True)
class ToStep:
    """A step comes next."""

    step: str


@dataclass(frozen=True)
class Invoke:
    """A workflow is given the output; if it is waited for, what it answers is an answer here too."""

    workflow: str
    waits: bool


@dataclass(frozen=True)
class ChoiceRoute:
    """One of several ways is taken: that of the case that holds, as one at most does, or the one besides."""

    cases: tuple[tuple[str, tuple[Route, ...]], ...]
    """Conditions, and where each leads."""
    otherwise: tuple[Route, ...]

    @property
    def ways(self) -> list[tuple[str, tuple[Route, ...]]]:
        """All ways, each with the condition on which it is taken."""
        return [(f"({test})", then) for test, then in self.cases] + [(self._none_holds, self.otherwise)]

    @property
    def _none_holds(self) -> str:
        return negated(any_of([f"({test})" for test, _ in self.cases]))


Route = ToUser | ToStep | Invoke | ChoiceRoute


@dataclass(frozen=True)
class Targets:
    """What outputs may go to."""

    steps: Collection[str]
    agents: Mapping[str, str]
    """Agent → the first step that asks it."""
    workflows: Collection[str]

    def read(self, part: ConfigPart, scope: Scope) -> tuple[Route, ...]:
        """The ways on from a step; `scope.before` is its output."""
        return tuple(route for item in part.items() for route in self._route(item, scope))

    def _route(self, part: ConfigPart, scope: Scope) -> Iterator[Route]:
        if isinstance(part.value, dict):
            yield from self._mapping(part, scope)
        elif target := part.text():
            yield from self._named(part, target)

    def _named(self, part: ConfigPart, target: str) -> Iterator[Route]:
        if target == USER:
            yield ToUser()
        elif target in self.steps:
            yield ToStep(target)
        elif target in self.agents:
            yield ToStep(self.agents[target])
        else:
            part.fault(f"there is no step {target!r}{did_you_mean(target, [*self.steps, *self.agents, USER])}")

    def _mapping(self, part: ConfigPart, scope: Scope) -> Iterator[Route]:
        form = next((form for form in _FORMS if part.has(form)), None)
        if form is None:
            part.fault(f"expected one of the keys {', '.join(map(repr, _FORMS))}")
            return
        part.check_keys(_FORMS[form])
        match form:
            case "step":
                if part.has("await") and not part.at("await").boolean():
                    part.at("await").fault("a step is always waited for; to go on without it, leave it out of what comes after")
                yield from self._named(part.at("step"), part.at("step").text())
            case "invoke":
                yield from self._invoked(part)
            case "condition":
                inner = part.at("condition")
                if not isinstance(inner.value, dict):
                    inner.fault("expected a mapping with 'if', 'switch' or 'exists'")
                elif not any(map(inner.has, _CONDITIONS)):
                    inner.fault("expected one of the keys 'if', 'switch', 'exists'")
                else:
                    yield from self._mapping(inner, scope)
            case "generate_steps":
                part.fault("steps that a model writes are not run; name the steps it may choose among in 'navigation: {available_steps}'")
            case "switch":
                yield from self._switch(part, scope)
            case _:
                test = _expression(part.at(form), scope, condition if form == "if" else _exists)
                if test is not None:
                    yield ChoiceRoute(((test, self.read(part.at("then"), scope)),), self.read(part.at("else"), scope))

    def _invoked(self, part: ConfigPart) -> Iterator[Route]:
        name = part.at("invoke").text()
        if name in self.workflows:
            yield Invoke(name, part.has("await") and part.at("await").boolean())
        elif name:
            part.at("invoke").fault(f"there is no workflow {name!r}{did_you_mean(name, self.workflows)}")

    def _switch(self, part: ConfigPart, scope: Scope) -> Iterator[Route]:
        """The case that the value says; none says what another does, so each is asked for alone."""
        value = _expression(part.at("switch"), scope, _value)
        cases: dict[str, tuple[Route, ...]] = {}
        for key, case in part.at("cases").entries():
            word = key.lower() if key.lower() in ("true", "false") else key
            if word in cases:
                case.fault(f"the case {key!r} says again what one above it says")
            cases[word] = self.read(case, scope)
        otherwise = self.read(part.at("default"), scope)
        if not cases:
            part.fault("'switch' needs 'cases': a mapping of values to steps")
        elif value is not None:
            yield ChoiceRoute(tuple((_is(value, key), then) for key, then in cases.items()), otherwise)


_CONDITIONS = ("if", "switch", "exists")
_FORMS: Mapping[str, Collection[str]] = {
    "step": ("step", "await"),
    "invoke": ("invoke", "await"),
    "generate_steps": ("generate_steps", "limit", "return_to"),
    "condition": ("condition",),
    "if": ("if", "then", "else"),
    "switch": ("switch", "cases", "default"),
    "exists": ("exists", "then", "else"),
}


def _expression(part: ConfigPart, scope: Scope, read: Callable[[str, Scope], str]) -> str | None:
    try:
        return read(part.text(), scope)
    except UnreadableError as error:
        part.fault(str(error))
        return None


def _exists(text: str, scope: Scope) -> str:
    return negated(is_empty(_value(text, scope)))


def _value(text: str, scope: Scope) -> str:
    found = render(text, scope)
    if found.expression is None:
        raise UnreadableError(f"{text!r} is the same in every run; write ${{...}} for what a step gave")
    return found.expression


def _is(value: str, key: str) -> str:
    """The condition that a value, written out, is what a case says."""
    if key.lower() in ("true", "false"):
        return equals(value, key)
    return f"{value} != `null` && to_string({value}) == {literal(key)}"
