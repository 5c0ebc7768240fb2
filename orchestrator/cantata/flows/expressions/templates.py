"""Templates: texts with `{placeholders}`, prompt instructions, and sandboxed Jinja."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType

import jinja2
import jinja2.exceptions
import jinja2.meta
import jinja2.nodes
from jinja2.sandbox import SandboxedEnvironment

from cantata.values import JsonValue

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_INPUT = "{input}"


class TemplateError(ValueError):
    """A Jinja template cannot be parsed or rendered; `line` is the line, if it is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with `{name}` replaced for each name in `values`, in one pass.

    All other braces stay, and inserted texts are not scanned again: templates contain JSON, and users type braces.
    """
    return _PLACEHOLDER.sub(lambda gap: values.get(gap[1], gap[0]), template)


def names(template: str) -> list[str]:
    """Return the placeholders of a template, each once."""
    return list(dict.fromkeys(_PLACEHOLDER.findall(template)))


def instruct(instruction: str, text: str, values: Mapping[str, str] | None = None) -> tuple[str, bool]:
    """Return the prompt of an instruction for an input, and whether the instruction uses the input.

    An instruction that ends in `{input}` is followed by a blank line and the input; elsewhere `{input}` is replaced; without `{input}` it
    is the whole prompt. `values` fill its other placeholders.
    """
    gaps = {**(values or {}), "input": text}
    head, placeholder, tail = instruction.rstrip().rpartition(_INPUT)
    if placeholder and not tail:
        return "\n\n".join(part for part in (fill(head.rstrip(), gaps), text) if part), True
    return fill(instruction, gaps), bool(placeholder)


def check(template: str) -> list[str]:
    """Return the names of the templates that a Jinja template includes, imports or extends.

    Raises TemplateError, with the line, for faults that can be found without data: syntax, unknown filters and tests.
    """
    _compiled(template, ())
    found = list(jinja2.meta.find_referenced_templates(_ENVIRONMENT.parse(template)))
    if None in found:
        raise TemplateError("the name of an included template is computed; write the template's name in quotes")
    return [name for name in dict.fromkeys(found) if name is not None]


@lru_cache(maxsize=512)
def undeclared(template: str, parts: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the names that a Jinja template and its parts take from the context.

    Left out are names that they set, give a default, or ask whether they are defined. The template must be one that `check` accepts.
    """
    found: set[str] = set()
    known: set[str] = set()
    for tree in map(_ENVIRONMENT.parse, (template, *parts)):
        found |= jinja2.meta.find_undeclared_variables(tree)
        known |= {node.name for node in tree.find_all(jinja2.nodes.Name) if node.ctx == "store"}
        guards = (node for node in tree.find_all((jinja2.nodes.Filter, jinja2.nodes.Test)) if node.name in _GUARDS)
        known |= {node.node.name for node in guards if isinstance(node.node, jinja2.nodes.Name)}
    return frozenset(found - known)


@lru_cache(maxsize=512)
def computed_with(template: str, parts: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the names that must not be missing: a Jinja template and its parts read what is in them, call them, or calculate with them.

    Left out are names that an `if`, `and` or `or` asks for. The template must be one that `check` accepts.
    """
    trees = [_ENVIRONMENT.parse(text) for text in (template, *parts)]
    asked: list[jinja2.nodes.Node] = []
    for tree in trees:
        asked += [node.test for node in tree.find_all(jinja2.nodes.If)]
        asked += [node.test for node in tree.find_all(jinja2.nodes.CondExpr)]
        asked += [node.left for kind in (jinja2.nodes.And, jinja2.nodes.Or) for node in tree.find_all(kind)]
    guarded = {name for node in asked for name in _names_in(node) - _operands_in(node)}
    return frozenset({name for tree in trees for name in _operands_in(tree)} - guarded)


def _names_in(node: jinja2.nodes.Node) -> set[str]:
    return (
        {node.name} if isinstance(node, jinja2.nodes.Name) else {each.name for each in node.find_all(jinja2.nodes.Name)}
    )


def _operands_in(node: jinja2.nodes.Node) -> set[str]:
    """Return the names whose values cannot be missing in an expression."""
    users = [node, *node.find_all(tuple(_OPERANDS))]
    operands = [getattr(user, key) for user in users for key in _OPERANDS.get(type(user), ())]
    return {operand.name for operand in operands if isinstance(operand, jinja2.nodes.Name)}


_OPERANDS: Mapping[type[jinja2.nodes.Node], tuple[str, ...]] = {
    **dict.fromkeys((jinja2.nodes.Getattr, jinja2.nodes.Getitem, jinja2.nodes.Call), ("node",)),
    **dict.fromkeys((jinja2.nodes.Add, jinja2.nodes.Sub, jinja2.nodes.Mul, jinja2.nodes.Div), ("left", "right")),
    **dict.fromkeys((jinja2.nodes.FloorDiv, jinja2.nodes.Pow), ("left", "right")),
    jinja2.nodes.Mod: ("left",),
}
"""Expression → its parts that cannot be missing."""

_GUARDS = ("default", "d", "defined", "undefined")


def render(template: str, context: Mapping[str, JsonValue], parts: Mapping[str, str] | None = None) -> str:
    """Render a Jinja template with a copy of the context; `parts` are the templates that it includes, by name.

    A missing variable renders as nothing, as Jinja does by default; what is in one is an error. Raises TemplateError with the line.
    """
    compiled = _compiled(template, tuple(sorted((parts or {}).items())))
    try:
        return compiled.render(copy.deepcopy(dict(context)))
    except (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise TemplateError(f"the template cannot be rendered: {error}", _line(error.__traceback__)) from error


class _Sandbox(SandboxedEnvironment):
    def unsafe_undefined(self, obj: object, attribute: str) -> jinja2.Undefined:
        """Return what raises wherever it is used: a missing variable would render as nothing."""
        message = f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe."
        return jinja2.StrictUndefined(message, name=attribute, obj=obj, exc=jinja2.exceptions.SecurityError)


def _environment() -> SandboxedEnvironment:
    # Prompts are not HTML. Unoptimized: the optimizer evaluates constants, so that checking `{{ 'a' * 10**10 }}` would compute it.
    environment = _Sandbox(autoescape=False, optimized=False)
    del environment.filters["random"], environment.globals["lipsum"]  # a step that runs again must get the same prompt
    return environment


_ENVIRONMENT = _environment()


@lru_cache(maxsize=512)  # compiling takes a hundred times as long as rendering
def _compiled(template: str, parts: tuple[tuple[str, str], ...]) -> jinja2.Template:
    environment = _ENVIRONMENT.overlay(loader=jinja2.DictLoader(dict(parts))) if parts else _ENVIRONMENT
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(error.message or "syntax error", error.lineno) from error
    except (
        SyntaxError,
        ValueError,
        RecursionError,
    ) as error:  # from Python, which compiles the code that Jinja generates
        raise TemplateError(f"the template cannot be compiled: {error}") from error


def _line(trace: TracebackType | None) -> int | None:
    """Return the line of the template at which a traceback ends: Jinja inserts frames with the template's line numbers."""
    line = None
    while trace:
        if "__jinja_exception__" in trace.tb_frame.f_globals:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
