"""The configuration in LangSwarm's files: their agents and tools become definitions, each entry of `workflows:` a chain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.faults import in_order
from cantata.config.formats import Configuration
from cantata.errors import ConfigError, Fault, without_warnings
from cantata.flows.chains import checks
from cantata.flows.definitions import Chain, Definitions
from cantata_frontends.langswarm.agent_reader import AgentReader, read_memory_flag
from cantata_frontends.langswarm.chains.arrows import ArrowNames, unfold
from cantata_frontends.langswarm.chains.chain import compile_chain
from cantata_frontends.langswarm.chains.inputs import read_inputs
from cantata_frontends.langswarm.config_part import ConfigPart, either
from cantata_frontends.langswarm.files import ConfigSources, ReadDocument, files_in, gather
from cantata_frontends.langswarm.symbol_table import SymbolTable
from cantata_frontends.langswarm.vocabulary import CHAIN_KEYS

_OF_ONE_STEP = ("agent", "agent_id", "tool_ids")

Locations = Mapping[str, Mapping[str, ConfigPart]]
"""Chain → node → the part of a file that it comes from."""


def read_files(
    path: Path, document: Document | None, *, read: ReadDocument, environment: Mapping[str, str]
) -> Configuration:
    """Read a folder, or a file with those beside it; functions are imported from the folder.

    A chain with faults is refused when it is called; the others run. Raises ConfigError with every fault if another part has one.
    """
    folder = path if document is None else path.parent
    beside = files_in(folder)
    paths, folder = beside if document is None or path in beside else [path], folder.absolute()
    sources = gather(paths, folder, read, is_file=document is not None)
    sources.main = path.name if paths == [path] else ""
    symbols = SymbolTable(folder)
    memory = [read_memory_flag(part) for part in sources.parts["memory"]]
    reader = AgentReader(symbols, environment, memory=memory[0] if memory else None)
    for name, part in sources.named("tools"):
        reader.tool(name, part)
    for name, part in sources.named("agents"):
        reader.agent(name, part)
    chains = list(_chains(sources))
    others = without_warnings(sources.faults)
    for name, part in chains:
        symbols.chains[name] = read_inputs(
            replace(part, faults=[])
        )  # all of them first, because chains call each other
    compiled = [_compiled(name, part, symbols) for name, part in chains]
    if others:
        raise ConfigError(
            sources.faults_in_order(), source=str(folder if sources.several and not sources.main else paths[0])
        )
    definitions = _sound(Definitions(folder=str(folder), agents=symbols.agents, tools=symbols.tools), compiled)
    sources.faults += [fault for each in compiled for fault in each.faults if fault not in sources.faults]
    return Configuration(definitions, description="of LangSwarm's files", faults=sources.faults_in_order())


@dataclass
class _Compiled:
    """The name of a chain, the chain if it has no faults, the parts of the file that its nodes come from, and its faults."""

    name: str
    chain: Chain | None
    locations: Mapping[str, ConfigPart]
    faults: list[Fault]


def _compiled(name: str, part: ConfigPart, symbols: SymbolTable) -> _Compiled:
    before = len(part.faults)
    read_inputs(part)
    if name in symbols.agents:
        part.fault(f"{name!r} is also the name of an agent; rename the workflow")
    steps = _with_steps(part, ArrowNames(symbols.agents, symbols.tool_names, symbols.chains))
    chain, locations = compile_chain(name, steps, symbols) if steps else (None, {})
    return _Compiled(name, chain, locations, list(dict.fromkeys(without_warnings(part.faults[before:]))))


def _with_steps(part: ConfigPart, names: ArrowNames) -> ConfigPart | None:
    """Return a chain as a mapping or list of steps, whatever its form; None with a fault."""
    arrows = either(part, "workflow", "simple") if part.first("workflow", "simple") else None
    if part.has("steps") or arrows is not None:
        if part.has("steps") and arrows is not None:
            arrows.fault("a workflow has either 'steps' or arrows; write one of them")
        for key in filter(part.has, _OF_ONE_STEP):
            part.at(key).warn(
                f"{key!r} has no effect beside {'steps' if part.has('steps') else 'arrows'!r}, which name their agents and tools"
            )
    short = arrows or (part.at("steps") if part.has("steps") else part)
    if isinstance(short.value, list) and short.value and all(isinstance(each, str) for each in short.value):
        short = replace(short, value=" -> ".join(map(str, short.value)))
    others = (
        {key: value for key, value in part.value.items() if key not in ("workflow", "simple")}
        if isinstance(part.value, dict)
        else {}
    )
    if isinstance(short.value, str):
        before = len(without_warnings(part.faults))
        steps = unfold(short, names)
        return replace(part, value={**others, "steps": steps}) if len(without_warnings(part.faults)) == before else None
    if isinstance(part.value, list) or part.has("steps"):
        return part
    agent = either(part, "agent", "agent_id")
    if agent.value is not None:
        step = {"agent": agent.value, "tools": part.at("tool_ids").value}
        return replace(part, value={**{key: others[key] for key in others if key not in _OF_ONE_STEP}, "steps": [step]})
    part.fault(
        "expected a workflow: a mapping with 'steps', a list of steps, or arrows such as 'analyst -> writer -> user'"
    )
    return None


def _sound(definitions: Definitions, compiled: Sequence[_Compiled]) -> Definitions:
    """Return the definitions with the chains that have no fault, and the faults of the others: their own, then those of planning."""
    while True:
        sound = [each for each in compiled if not each.faults]
        chains = {each.name: each.chain for each in sound if each.chain is not None}
        refused = {each.name: [str(fault) for fault in each.faults] for each in compiled if each.faults}
        definitions = definitions.model_copy(update={"chains": chains, "refused": refused})
        faults = checks.check_chains(definitions)
        if not faults:
            return definitions
        for fault in faults:
            owners = [each for each in sound if fault.where.startswith(f"chains.{each.name}.")]
            for each in owners[:1]:
                each.faults += _in_files({each.name: each.locations}, [fault])
        if all(not each.faults for each in sound):
            raise ConfigError(faults)


def _chains(sources: ConfigSources) -> Iterator[tuple[str, ConfigPart]]:
    """Yield the chains of all files in all of their forms, each a mapping with steps or a text of arrows."""
    taken: dict[str, ConfigPart] = {}
    for part in sources.parts["workflows"]:
        for name, each in _shaped(part):
            if name in taken:
                each.fault(f"the workflow {name!r} is defined twice; it is {taken[name].location_from(each)} too")
            taken[name] = each
            yield name, each


def _shaped(part: ConfigPart) -> Iterator[tuple[str, ConfigPart]]:
    if isinstance(part.value, dict):
        for name, each in part.entries():
            yield from _under(name, each)
    elif isinstance(part.value, list):
        for number, item in enumerate(part.items(), 1):
            yield from _listed(item, f"workflow_{number}")
    else:
        yield "workflow_1", part


def _under(name: str, part: ConfigPart) -> Iterator[tuple[str, ConfigPart]]:
    """Yield the chains under a name: one, or chains with names of their own; the name then refers to the first of them."""
    items = part.items() if isinstance(part.value, list) else []
    if not any(isinstance(item.value, dict) and "steps" in item.value for item in items):
        yield name, part
        return
    found = [
        each
        for number, item in enumerate(items, 1)
        for each in _listed(item, name if len(items) == 1 else f"{name}_{number}")
    ]
    yield from found
    if name not in [own for own, _ in found]:
        yield name, found[0][1]


def _listed(part: ConfigPart, position: str) -> Iterator[tuple[str, ConfigPart]]:
    """Yield a chain of a list: by its own id or name, as the only key of a mapping, or by its position."""
    own = part.first("id", "name")
    if own is not None:
        yield own.text(), part
    elif isinstance(part.value, dict) and len(part.value) == 1 and CHAIN_KEYS.isdisjoint(part.value):
        name, each = next(part.entries())
        yield from _under(name, each)
    else:
        yield position, part


# --- faults of planning ---------------------------------------------------------------------------------------------

_AUXILIARY_SUFFIX = re.compile(r"\.(when|if|rollback|skip)(-\d+)?(?=')")
"""The suffixes of auxiliary nodes of a step."""


def _in_files(locations: Locations, faults: Sequence[Fault]) -> list[Fault]:
    """Return faults that planning found in chains, with the locations of the steps in the files."""
    found: list[Fault] = []
    for fault in faults:
        node, part = _place(locations, fault)
        if part is None:
            found.append(fault)
        elif not (message := _of_steps(fault.message)).endswith(
            f": only {node!r} could start it"
        ):  # its condition's fault says so
            part.fault(message)
            found.append(part.faults.pop())
    return in_order(dict.fromkeys(found))


def _place(locations: Locations, fault: Fault) -> tuple[str, ConfigPart | None]:
    for chain, nodes in locations.items():
        for node, part in nodes.items():
            if f"chains.{chain}." in fault.where and (f" '{node}'" in fault.where or f" '{node}." in fault.where):
                return node, part
    return "", None


def _of_steps(message: str) -> str:
    """Return a message of planning about nodes, in terms of steps."""
    message = _AUXILIARY_SUFFIX.sub("", message).replace("'next_node'", "'output.to'").replace("branch", "condition")
    message = re.sub(r"^(the )?chain(s?) '", r"\1workflow\2 '", message)
    return re.sub(r"('[^']+')(, \1)+", r"\1", re.sub(r"\bnode(s?)\b", r"step\1", message))
