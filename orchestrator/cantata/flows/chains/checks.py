"""Checks of chains: each node, then the whole: references between nodes, cycles, loops, reachability, answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain as chain_of
from itertools import islice

from cantata.errors import MAX_FAULTS, Fault, first_of
from cantata.flows.chains import declared_inputs
from cantata.flows.chains.declared_inputs import ReadableNames, call_faults
from cantata.flows.chains.graph_of_nodes import MAX_KNOWN, MAX_LINKS, ON_ERROR_WORDS, ChainKey, Link, expressions, leads
from cantata.flows.chains.loops import MAX_LOOP_DEPTH, outline, shortest_links
from cantata.flows.chains.step_ids import MAX_NODE_ID, RESERVED
from cantata.flows.chains.steps_of_nodes import SECTIONS, section_of, tools_in
from cantata.flows.definitions import Chain, Definitions
from cantata.flows.expressions.expressions import ExpressionError, parse
from cantata.flows.graphs import cycles, reach, shortest_cycle
from cantata.flows.json_schemas import Allowance, schema_faults
from cantata.flows.waits import WaitOptions
from cantata.flows.wire import NODE_KINDS, ChainNode, ChainRequest, fault_of_kind
from cantata.text.suggestions import Nearest
from cantata.values import JsonValue

Found = Iterator[tuple[str, Fault]]
"""Pairs of an error code and a fault."""

Faults = Iterator[tuple[str, str]]
"""Field and message."""

_BODY_KINDS = ("tool", "skill", "agent", "chain", "workflow", "proc", "map")
_MAX_SHOWN_NODES = 8  # nodes of a cycle in a message


_CALL = frozenset({"name", "input", "input_map", "next_node", "on_error", "deps", "retry", "timeout"})
_FIELDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(SECTIONS, _CALL),
    "branch": frozenset({"condition", "true_node", "false_node", "next_node", "on_error", "deps", "max_iterations"}),
    "map": frozenset({"items_path", "map_node", "next_node", "on_error", "deps", "max_concurrency"}),
    "wait": frozenset({"input", "timeout", "default", "next_node", "deps", *WaitOptions.model_fields}),
}
"""Kind → the fields that have an effect."""

_UNSET = {name: (field.get_default(call_default_factory=True), "") for name, field in ChainNode.model_fields.items()}
_NEEDLESS = {
    kind: [name for name in _UNSET if name not in ("node_id", "kind") and name not in fields]
    for kind, fields in _FIELDS.items()
}

_NEEDED: Mapping[str, Mapping[str, str]] = {
    "branch": {"condition": 'an expression, such as "length(read.items) > `3`"'},
    "map": {
        "items_path": "an expression that gives a list, such as 'read.items'",
        "map_node": "the node to run for each item",
    },
}
_FAULTY = ", which has faults: "
_MAX_ODD_CHARACTERS = 5  # invalid characters of an id that are reported


def check(request: ChainRequest, definitions: Definitions, *, is_draft: bool = False) -> tuple[list[Fault], str]:
    """Return the faults of a request and of the chains that it runs, and their common error code, or bad_request.

    The input of a draft is not checked if it is empty: it may be given later.
    """
    given = None if is_draft and not request.initial_input else request.initial_input
    if (
        given is not None and not request.inputs
    ):  # so the nodes are checked with the names of the input, not with its values
        key = ChainKey(request, definitions, given)
        if key.is_small:
            faults, code = _known_faults(key)
            return list(faults), code
    return _check(request, definitions, given)


@lru_cache(maxsize=MAX_KNOWN)
def _known_faults(key: ChainKey) -> tuple[list[Fault], str]:
    request = key.request()
    return _check(request, key.definitions, request.initial_input)


def _check(
    request: ChainRequest, definitions: Definitions, given: Mapping[str, JsonValue] | None
) -> tuple[list[Fault], str]:
    chain = _Chain(request.nodes, request.entry_node, definitions, "", request.inputs, given)
    calls = {name: _called(named.nodes, definitions) for name, named in definitions.chains.items()}
    named = _named(sorted(reach(_called(request.nodes, definitions), calls)), definitions)
    found = list(islice(chain_of(chain.faults(), named), MAX_FAULTS + 1))
    codes = {code for code, _ in found}
    return first_of(fault for _, fault in found), codes.pop() if len(codes) == 1 else "bad_request"


def check_chains(definitions: Definitions) -> list[Fault]:
    """Return the faults of the named chains."""
    return first_of(fault for _, fault in _named(definitions.chains, definitions))


def check_schedules(definitions: Definitions) -> list[Fault]:
    """Return the faults of the inputs that schedules give to their chains."""
    found = []
    for name, schedule in definitions.schedules.items():
        chain = definitions.chains.get(schedule.chain) if isinstance(schedule.chain, str) else None
        declared = declared_inputs.sound(chain.inputs) if chain else None
        faults = declared.faults(schedule.input) if declared else ()
        found += [Fault(message, f"schedules.{name}.input.{each}") for each, message in faults]
    return first_of(found)


def _named(names: Iterable[str], definitions: Definitions) -> Found:
    names = list(names)
    for name in names:
        chain = definitions.chains[name]
        yield from _Chain(chain.nodes, chain.entry_node, definitions, f"chains.{name}.", chain.inputs, None).faults()
        yield from _answer_faults(name, chain)
    calls = {name: _called(definitions.chains[name].nodes, definitions) for name in names}
    for group in cycles(names, calls):
        cycle = shortest_cycle(group[0], calls)
        nodes = definitions.chains[cycle[0]].nodes
        place, node = next((i, node) for i, node in enumerate(nodes) if _calls(node, cycle[1], definitions))
        is_own = len(set(cycle)) == 1
        message = f"chain {cycle[0]!r} runs itself" if is_own else f"the chains {_way(cycle)} run each other in a cycle"
        yield "chain_cycle", Fault(message, f"chains.{cycle[0]}.nodes[{place}] {node.node_id!r}.name")


def _answer_faults(name: str, chain: Chain) -> Found:
    nodes = frozenset(node.node_id for node in chain.nodes)
    names = ReadableNames(nodes, declared_inputs.sound(chain.inputs), None)
    for answer, text in chain.answers.items():
        try:
            messages = list(names.faults(parse(text, nodes)))
        except ExpressionError as error:
            messages = [str(error)]
        yield from (("bad_request", Fault(message, f"chains.{name}.answers.{answer}")) for message in messages)


def _called(nodes: Iterable[ChainNode], definitions: Definitions) -> list[str]:
    return list(dict.fromkeys(node.name for node in nodes if _calls(node, node.name, definitions)))


def _calls(node: ChainNode, chain: str, definitions: Definitions) -> bool:
    return node.name == chain and section_of(node.kind, chain, definitions) == "chains"


def _way(nodes: Sequence[str]) -> str:
    shown = list(map(repr, nodes))
    if len(shown) > _MAX_SHOWN_NODES:
        shown[_MAX_SHOWN_NODES // 2 : -_MAX_SHOWN_NODES // 2] = ["..."]
    return " → ".join(shown)


class _Chain:
    """The checks of one chain."""

    def __init__(
        self,
        nodes: Sequence[ChainNode],
        entry: str,
        definitions: Definitions,
        prefix: str,
        declared: Mapping[str, JsonValue],
        given: Mapping[str, JsonValue] | None,
    ) -> None:
        self._nodes = nodes
        self._entry = entry
        self._definitions = definitions
        self._prefix = prefix
        self._fits = len(nodes) <= definitions.limits.max_nodes
        self._places = {nodes[place].node_id: place for place in reversed(range(len(nodes)))}
        self._nearest = Nearest(self._places)
        self._outline = outline(nodes if self._fits else [], self._meant(entry) or entry, self._meant)
        self._bodies = self._outline.nodes.bodies
        self._declared = declared
        self._allowance = Allowance()  # of all schemas and validations of the request
        self._names = ReadableNames(self._places.keys(), declared_inputs.sound(declared, self._allowance), given)

    def faults(self) -> Found:
        """Yield all faults: of each node, then of the whole chain."""
        if not self._fits or not self._nodes:
            yield "bad_request", Fault(self._count_fault(), f"{self._prefix}nodes")
            return
        if len(self._outline.nodes.links) > MAX_LINKS:
            yield (
                "bad_request",
                Fault(
                    f"there are more than {MAX_LINKS:,} links between nodes; split the chain", f"{self._prefix}nodes"
                ),
            )
            return
        yield from self._input_faults()
        unreadable = self._outline.nodes.unreadable
        for place, node in enumerate(self._nodes):
            called = call_faults(node, self._definitions, self._allowance)
            own = (*faults_of(node, self._definitions, unreadable, self._allowance), *self._name_faults(node), *called)
            for field, message in (*own, *self._place_faults(place, node)):
                yield "bad_request", self._fault(place, field, message)
        yield from self._entry_faults()
        yield from self._map_cycles()
        yield from self._cycles()
        yield from self._unreached()

    def _count_fault(self) -> str:
        if not self._nodes:
            return "there are no nodes"
        limit = self._definitions.limits.max_nodes
        return f"{len(self._nodes)} nodes are more than the {limit} allowed; split the chain, or raise limits.max_nodes"

    def _meant(self, node_id: str) -> str | None:
        return node_id if node_id in self._places else self._nearest.of(node_id)

    def _fault(self, place: int, field: str, message: str) -> Fault:
        node_id = self._nodes[place].node_id
        return Fault(message, f"{self._prefix}nodes[{place}] {node_id!r}{f'.{field}' if field else ''}")

    def _input_faults(self) -> Found:
        for place, message in declared_inputs.declaration_faults(self._declared, self._allowance):
            yield "bad_request", Fault(message, ".".join(filter(None, (f"{self._prefix}inputs", place))))
        declared, given = self._names.declared, self._names.given
        for name, message in declared.faults(given, self._allowance) if declared and given is not None else ():
            yield "bad_request", Fault(message, f"initial_input.{name}" if name else "initial_input")

    # --- a node among the others --------------------------------------------------------------------------------------

    def _place_faults(self, place: int, node: ChainNode) -> Faults:
        first = self._places[node.node_id]
        if first != place:
            yield "node_id", f"the id is also that of nodes[{first}]"
        for field, target in dict.fromkeys((field, target) for field, target, _ in leads(node)):
            yield from self._target_faults(field, target)
            if target in self._bodies and node.node_id not in self._bodies:
                yield (
                    field,
                    f"node {target!r} is the map_node of {self._bodies[target]!r}; lead to {self._bodies[target]!r} instead",
                )
        for source in node.deps:
            yield from self._target_faults("deps", source)
        if node.kind == "map" and node.map_node:
            yield from self._target_faults("map_node", node.map_node)
            yield from self._body_faults(node, node.map_node)
        if node.node_id in self._bodies:
            yield from self._needless_on_body(node)

    def _name_faults(self, node: ChainNode) -> Faults:
        for field, text in expressions(node):
            expression = self._outline.nodes.readable.get(text)
            for message in self._names.faults(expression, in_map=node.node_id in self._bodies) if expression else ():
                yield field, message

    def _target_faults(self, field: str, target: str) -> Faults:
        if target not in self._places:
            word = Nearest(ON_ERROR_WORDS).hint(target) if field == "on_error" else ""
            yield field, f"node {target!r} is not in the chain{word or self._nearest.hint(target)}"

    def _body_faults(self, node: ChainNode, target: str) -> Faults:
        owner = self._bodies.get(target, node.node_id)
        if owner != node.node_id:
            yield "map_node", f"node {target!r} is the map_node of {owner!r} already; give each map its own"
        body = self._nodes[self._places[target]] if target in self._places else None
        if body and body.kind in NODE_KINDS and body.kind not in _BODY_KINDS:
            yield (
                "map_node",
                f"node {target!r} is of kind {body.kind!r}; a map runs nodes of kind {', '.join(map(repr, _BODY_KINDS))}",
            )

    def _needless_on_body(self, node: ChainNode) -> Faults:
        owner = self._bodies[node.node_id]
        jumps = node.on_error not in ON_ERROR_WORDS
        for field, is_set in (("next_node", node.next_node), ("deps", node.deps), ("on_error", jumps)):
            if is_set:
                yield field, f"has no effect on the map_node of {owner!r}; put it on {owner!r}"

    # --- the whole ------------------------------------------------------------------------------------------------------

    def _entry_faults(self) -> Found:
        message = ""
        if not self._entry:
            message = f"is missing: name the node to start with, such as {self._nodes[0].node_id!r}"
        elif self._entry not in self._places:
            message = f"node {self._entry!r} is not in the chain{self._nearest.hint(self._entry)}"
        elif self._entry in self._bodies:
            message = f"node {self._entry!r} is the map_node of {self._bodies[self._entry]!r}; start with {self._bodies[self._entry]!r}"
        if message:
            yield "bad_entry", Fault(message, f"{self._prefix}entry_node")

    def _map_cycles(self) -> Found:
        runs = {owner: [body] for body, owner in self._bodies.items()}
        for group in cycles(runs, runs):
            cycle = shortest_cycle(min(group, key=self._places.__getitem__), runs)
            message = f"the maps {_way(cycle)} run each other in a cycle"
            yield "chain_cycle", self._fault(self._places[cycle[0]], "map_node", message)
        for node_id in runs.keys() - self._bodies.keys():
            if len(reach([node_id], runs)) > MAX_LOOP_DEPTH + 1:
                message = f"more than {MAX_LOOP_DEPTH} maps are nested in it; make the inner ones a chain of their own"
                yield "bad_request", self._fault(self._places[node_id], "map_node", message)

    def _cycles(self) -> Found:
        loops = self._outline.loops
        yield from (self._cycle_fault(cycle) for cycle in loops.cycles)
        for loop, strays in loops.strays():
            if loop.branch in strays:
                yield self._cycle_fault(shortest_links(loop.branch, [loop.link, *loop.links]))
                continue
            message = f"it is in the loop that {loop.branch!r} closes, but no node of the loop starts it; lead to it with 'next_node'"
            yield from (
                ("chain_cycle", self._fault(place, "", message))
                for place in sorted(map(self._places.__getitem__, strays))
            )
        for back in loops.too_deep:
            message = f"the loop is inside more than {MAX_LOOP_DEPTH} others; make the inner ones a chain of their own"
            yield "bad_request", self._fault(self._places[back.source], back.field, message)

    def _cycle_fault(self, cycle: Sequence[Link]) -> tuple[str, Fault]:
        way = _way([cycle[0].source, *(link.target for link in cycle)])
        message = f"nodes {way} form a cycle; only a branch may point back, and its other side must leave the loop"
        return "chain_cycle", self._fault(self._places[cycle[-1].owner], cycle[-1].field, message)

    def _unreached(self) -> Found:
        if self._outline.entry not in self._places:
            return
        reached = self._outline.reached()
        for node_id in self._outline.nodes.steps:
            if node_id not in reached:
                yield "bad_request", self._fault(self._places[node_id], "", self._why_unreached(node_id))

    def _why_unreached(self, node_id: str) -> str:
        sources = dict.fromkeys(link.source for link in self._outline.into.get(node_id, ()))
        if sources:
            return (
                f"cannot be reached from the entry {self._entry!r}: only {', '.join(map(repr, sources))} could start it"
            )
        return "cannot be reached: it is not the entry, has no deps, and no node leads to it"


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
        yield (
            ".".join(filter(None, ("answer_schema", fault.place))),
            f"this is not a valid JSON Schema: {fault.message}",
        )
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
                yield (
                    field,
                    f"has no effect on a {section.removesuffix('s')}; put it on what the {section.removesuffix('s')} runs",
                )


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
    yield from (
        f"{each}.{method}" if each in tools and tools[each].mcp else each for each in getattr(definitions, section)
    )


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
