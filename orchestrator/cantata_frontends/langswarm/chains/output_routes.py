"""Routes of a step's output: `output.to` in all of its forms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from cantata_frontends.langswarm.chains.conditions import any_of, condition, equals, is_empty, negated
from cantata_frontends.langswarm.chains.reference_expressions import Scope, UnreadableError, literal, render
from cantata_frontends.langswarm.config_part import ConfigPart

USER = "user"


@dataclass(frozen=True)
class ToUser:
    """The output is the workflow's answer, or one of several."""


@dataclass(frozen=True)
class ToStep:
    """A step that comes next."""

    step: str


@dataclass(frozen=True)
class Invoke:
    """A chain that receives the output; if `waits`, its answer is also an answer of this chain."""

    chain: str
    waits: bool


@dataclass(frozen=True)
class ChoiceRoute:
    """A choice among routes: those of the case that holds, at most one, or the others."""

    cases: tuple[tuple[str, tuple[Route, ...]], ...]
    """Conditions with their routes."""
    otherwise: tuple[Route, ...]

    @property
    def ways(self) -> list[tuple[str, tuple[Route, ...]]]:
        """All routes, each with its condition."""
        cases = [(f"({test})", then) for test, then in self.cases]
        return [*cases, (negated(any_of([test for test, _ in cases])), self.otherwise)]


Route = ToUser | ToStep | Invoke | ChoiceRoute


@dataclass(frozen=True)
class Targets:
    """The possible targets of outputs."""

    steps: Collection[str]
    agents: Mapping[str, str]
    """Agent → the first step that calls it."""
    chains: Collection[str]

    def read(self, part: ConfigPart, scope: Scope) -> tuple[Route, ...]:
        """Return the routes of a step; `scope.before` is its output."""
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
            part.is_known(target, [*dict.fromkeys([*self.steps, *self.agents, USER])], "step")

    def _mapping(self, part: ConfigPart, scope: Scope) -> Iterator[Route]:
        form = next((form for form in _FORMS if part.has(form)), None)
        if form is None:
            part.fault(f"expected one of the keys {', '.join(map(repr, _FORMS))}")
            return
        part.check_keys(_FORMS[form])
        match form:
            case "step":
                if part.at("await").boolean() is False:
                    part.at("await").fault(
                        "'await: false' is not available for a step: the workflow always waits for it"
                    )
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
                part.fault(
                    "generated steps are not available; list the steps to choose among in 'navigation: {available_steps}'"
                )
            case "switch":
                yield from self._switch(part, scope)
            case _:
                test = _expression(part.at(form), scope, condition if form == "if" else _exists)
                if test is not None:
                    yield ChoiceRoute(((test, self.read(part.at("then"), scope)),), self.read(part.at("else"), scope))

    def _invoked(self, part: ConfigPart) -> Iterator[Route]:
        name = part.at("invoke").text()
        if name and part.at("invoke").is_known(name, self.chains, "workflow"):
            yield Invoke(name, bool(part.at("await").boolean()))

    def _switch(self, part: ConfigPart, scope: Scope) -> Iterator[Route]:
        """Yield the choice of a switch; its cases exclude each other, so each is tested alone."""
        value = _expression(part.at("switch"), scope, _value)
        cases: dict[str, tuple[Route, ...]] = {}
        for key, case in part.at("cases").entries():
            word = key.lower() if key.lower() in ("true", "false") else key
            if word in cases:
                case.fault(f"the case {key!r} repeats one above it")
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
        raise UnreadableError(f"{text!r} is the same in every run; write ${{...}} for the output of a step")
    return found.expression


def _is(value: str, key: str) -> str:
    """Return the condition that a value, as text, equals a case."""
    if key.lower() in ("true", "false"):
        return equals(value, key)
    return f"{value} != `null` && to_string({value}) == {literal(key)}"
