"""Checks of a single node of a chain: its id, its fields, the name that it calls, its expressions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from cantata.flows.chains.graph_of_nodes import expressions
from cantata.flows.chains.step_ids import MAX_NODE_ID, RESERVED
from cantata.flows.chains.steps_of_nodes import SECTIONS, section_of, tools_in
from cantata.flows.definitions import Definitions
from cantata.flows.json_schemas import Allowance, schema_faults
from cantata.flows.waits import WaitOptions
from cantata.flows.wire import ChainNode, fault_of_kind
from cantata.text.suggestions import hint, nearest

_CALL = frozenset({"name", "input", "input_map", "next_node", "on_error", "deps", "retry", "timeout"})
_FIELDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(SECTIONS, _CALL),
    "branch": frozenset({"condition", "true_node", "false_node", "next_node", "on_error", "deps", "max_iterations"}),
    "map": frozenset({"items_path", "map_node", "next_node", "on_error", "deps", "max_concurrency"}),
    "wait": frozenset({"input", "timeout", "default", "next_node", "deps", *WaitOptions.model_fields}),
}
"""Kind → the fields that have an effect."""

_UNSET = {name: (field.get_default(call_default_factory=True), "") for name, field in ChainNode.model_fields.items()}
_NEEDLESS = {kind: [name for name in _UNSET if name not in ("node_id", "kind") and name not in fields] for kind, fields in _FIELDS.items()}

_NEEDED: Mapping[str, Mapping[str, str]] = {
    "branch": {"condition": 'an expression, such as "length(read.items) > `3`"'},
    "map": {"items_path": "an expression that gives a list, such as 'read.items'", "map_node": "the node to run for each item"},
}
_FAULTY = ", which has faults: "
_MAX_ODD_CHARACTERS = 5  # invalid characters of an id that are reported
_MAX_GUESSES = 20  # each compares with every known id, and there may be 10,000 of both

Faults = Iterator[tuple[str, str]]
"""Field and message."""


class Nearest:
    """Suggestions for unknown words."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = list(known)
        self._guesses: dict[str, str | None] = {}

    def of(self, word: str) -> str | None:
        """Return the known word most similar to this one, if one is similar enough and the limit of guesses is not reached."""
        if word not in self._guesses and len(self._guesses) < _MAX_GUESSES and len(word) <= MAX_NODE_ID:
            self._guesses[word] = nearest(word, self._known)
        return self._guesses.get(word)

    def hint(self, word: str) -> str:
        """Return the suggestion as the end of a message."""
        return hint(self.of(word))


def faults_of(node: ChainNode, definitions: Definitions, unreadable: Mapping[str, str], allowance: Allowance) -> Faults:
    """Yield the faults of a node; `unreadable` has the reasons for expressions that cannot be parsed."""
    yield from _id_faults(node.node_id)
    if node.kind in _OF_KIND:
        yield from _needless(node)
        yield from _missing(node)
        yield from _OF_KIND[node.kind](node, definitions)
    else:
        yield "kind", fault_of_kind(node.kind) or ""
    for fault in schema_faults(node.answer_schema, allowance) if node.answer_schema is not None else ():
        yield ".".join(filter(None, ("answer_schema", fault.place))), f"this is not a valid JSON Schema: {fault.message}"
    for field, text in expressions(node):
        if text in unreadable and (text or node.input_map):  # a missing field is reported already
            yield field, unreadable[text]


def _id_faults(node_id: str) -> Faults:
    if not node_id:
        yield "node_id", "the id is empty"
    if len(node_id) > MAX_NODE_ID:
        yield "node_id", f"the id has {len(node_id)} characters; {MAX_NODE_ID} are allowed"
    odd = [character for character in sorted(set(node_id)) if character in RESERVED or not character.isprintable()]
    for character in odd[:_MAX_ODD_CHARACTERS]:
        yield "node_id", f"the id contains {character!r}, which is not allowed: use letters, digits, '-', '_' and '.'"


def _needless(node: ChainNode) -> Faults:
    for field in _NEEDLESS[node.kind]:
        if getattr(node, field) not in _UNSET[field]:
            yield field, f"has no effect on {_a(node.kind)}{_place_for(field, node.kind)}"


def _place_for(field: str, kind: str) -> str:
    if kind == "map" and field in _CALL:
        return "; put it on its map_node"
    kinds = [other for other, fields in _FIELDS.items() if field in fields]
    return f"; it belongs to {_a(kinds[0])}" if len(kinds) == 1 else ""


def _missing(node: ChainNode) -> Faults:
    for field, what in _NEEDED.get(node.kind, {}).items():
        if not getattr(node, field):
            yield field, f"is missing: {_a(node.kind)} needs {what}"


def _branch_faults(node: ChainNode, definitions: Definitions) -> Faults:
    if not node.true_node and not node.false_node:
        yield "true_node", "is missing: a branch needs 'true_node', 'false_node' or both"
    elif node.true_node and node.false_node and node.next_node:
        yield "next_node", "has no effect: both sides of the branch name their own node"


def _wait_faults(node: ChainNode, definitions: Definitions) -> Faults:
    if node.default is not None and node.timeout is None:
        yield "default", "has no effect without 'timeout', after which it is the output"


def _name_faults(node: ChainNode, definitions: Definitions) -> Faults:
    section = section_of(node.kind, node.name, definitions)
    if section is None:
        yield "name", _unknown(node, definitions)
    elif section in ("teams", "chains", "workflows"):
        for field in ("retry", "timeout"):
            if getattr(node, field):
                yield field, f"has no effect on a {section.removesuffix('s')}; put it on what the {section.removesuffix('s')} runs"


def _unknown(node: ChainNode, definitions: Definitions) -> str:
    sections = SECTIONS[node.kind]
    place = " or ".join(filter(None, (", ".join(map(repr, sections[:-1])), repr(sections[-1]))))
    if not node.name:
        return f"is missing: {_a(node.kind)} needs a name under {place}"
    if any(node.name in tools_in(section, definitions) for section in sections):
        return f"{node.name!r} is an MCP server; name one of its tools, as '{node.name}.<tool>'"
    if "chains" in sections and node.name in definitions.refused:
        fault = definitions.refused[node.name][0]
        return f"calls {node.name!r}{_FAULTY}{fault.partition(_FAULTY)[2] or fault}"
    known = [known for section in sections for known in _known(section, node.name, definitions)]
    return f"{node.name!r} is not under {place}{_elsewhere(node, definitions) or _guess(node.name, known)}"


def _known(section: str, name: str, definitions: Definitions) -> Iterator[str]:
    """Yield the names in a section; of a server, the tool that the name may mean."""
    method = name.rpartition(".")[2] if "." in name else "<tool>"
    tools = tools_in(section, definitions)
    yield from (f"{each}.{method}" if each in tools and tools[each].mcp else each for each in getattr(definitions, section))


def _elsewhere(node: ChainNode, definitions: Definitions) -> str:
    kind = next((kind for kind in reversed(list(SECTIONS)) if section_of(kind, node.name, definitions)), None)
    return f"; it is under {section_of(kind, node.name, definitions)!r}: make the kind {kind!r}" if kind else ""


def _guess(name: str, known: Collection[str]) -> str:
    if not known:
        return "; nothing is"
    return Nearest(known).hint(name) or f"; known are {', '.join(map(repr, known))}"


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


_OF_KIND: Mapping[str, Callable[[ChainNode, Definitions], Faults]] = {
    **dict.fromkeys(SECTIONS, _name_faults),
    "branch": _branch_faults,
    "map": lambda node, definitions: iter(()),
    "wait": _wait_faults,
}
