"""LangSwarm's files as a format of configurations: their agents and tools become definitions, each workflow a chain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.faults import in_order
from cantata.config.formats import Configuration
from cantata.errors import ConfigError, Fault, without_warnings
from cantata.frontends.langswarm.agent_reader import AgentReader, read_memory_flag
from cantata.frontends.langswarm.config_part import ConfigPart
from cantata.frontends.langswarm.files import ConfigSources, ReadDocument, files_in, gather, is_langswarm
from cantata.frontends.langswarm.symbol_table import SymbolTable
from cantata.frontends.langswarm.vocabulary import FILES
from cantata.frontends.langswarm.workflows import arrows
from cantata.frontends.langswarm.workflows.inputs import read_inputs
from cantata.frontends.langswarm.workflows.workflow import compile_workflow
from cantata.models.definitions import Chain, Definitions

files = FILES

Locations = Mapping[str, Mapping[str, ConfigPart]]
"""Chain → node → the part of a file that it comes from."""


def detects(path: Path, document: Document | None) -> bool:
    """Return whether a folder has LangSwarm's files, or a file is one of them."""
    return bool(files_in(path)) if document is None else not path.is_dir() and is_langswarm(document.data)


def load(path: Path, document: Document | None, *, read: ReadDocument, environment: Mapping[str, str]) -> Configuration:
    """Read a folder, or a file with those beside it; functions are imported from the folder. Raises ConfigError with every fault."""
    folder = path if document is None else path.parent
    beside = files_in(folder)
    paths, folder = beside if document is None or path in beside else [path], folder.absolute()
    sources = gather(paths, folder, read)
    symbols = SymbolTable(folder)
    memory = [read_memory_flag(part) for part in sources.parts["memory"]]
    reader = AgentReader(symbols, environment, memory=memory[0] if memory else None)
    for name, part in sources.named("tools"):
        reader.tool(name, part)
    for name, part in sources.named("agents"):
        reader.agent(name, part)
    chains, locations = _compile_workflows(sources, symbols)
    faults = sources.faults_in_order()
    if without_warnings(faults):
        raise ConfigError(faults, source=str(paths[0] if len(paths) == 1 else folder))
    definitions = Definitions(folder=str(folder), agents=symbols.agents, tools=symbols.tools, chains=chains)
    return Configuration(definitions, partial(_in_files, locations), "of LangSwarm's files", faults)


def _compile_workflows(sources: ConfigSources, symbols: SymbolTable) -> tuple[dict[str, Chain], Locations]:
    workflows = list(_workflows(sources))
    symbols.workflows |= {name: read_inputs(part) for name, part in workflows}
    chains: dict[str, Chain] = {}
    locations: dict[str, Mapping[str, ConfigPart]] = {}
    for name, part in workflows:
        unfolded = _unfolded(part, symbols)
        chain, locations[name] = compile_workflow(name, unfolded, symbols) if unfolded else (None, {})
        if chain is not None:
            chains[name] = chain
        if name in symbols.agents:
            part.fault(f"{name!r} is also the name of an agent; rename the workflow")
    return chains, locations


def _unfolded(part: ConfigPart, symbols: SymbolTable) -> ConfigPart | None:
    """Return a workflow as a mapping or list of steps, also if it is written as arrows; None with faults."""
    if not arrows.is_arrow(part.value):
        return part
    before = len(without_warnings(part.faults))
    steps = arrows.unfold(part, arrows.ArrowNames(symbols.agents, symbols.tool_names, symbols.workflows))
    return replace(part, value={"steps": steps}) if len(without_warnings(part.faults)) == before else None


def _workflows(sources: ConfigSources) -> Iterator[tuple[str, ConfigPart]]:
    """Yield the workflows of all files in all of their forms, each a mapping with steps or a text of arrows."""
    taken: dict[str, ConfigPart] = {}
    for part in sources.parts["workflows"]:
        for name, each in _shaped(part):
            if name in taken:
                each.fault(f"the workflow {name!r} is defined twice; it is {taken[name].location_from(each)} too")
            taken[name] = each
            yield name, each


def _shaped(part: ConfigPart) -> Iterator[tuple[str, ConfigPart]]:
    if arrows.is_arrow(part.value):
        yield "workflow_1", part
    elif isinstance(part.value, dict):
        for name, each in part.entries():
            yield from _under(name, each)
    elif isinstance(part.value, list):
        for number, item in enumerate(part.items(), 1):
            yield from _listed(item, number)
    else:
        part.fault("expected workflows: a mapping, a list, or arrows such as 'analyst -> writer -> user'")


def _under(name: str, part: ConfigPart) -> Iterator[tuple[str, ConfigPart]]:
    """Yield the workflows under a name: steps, arrows, or workflows with names of their own; the name then refers to the first of them."""
    if arrows.is_arrow(part.value) or (isinstance(part.value, dict) and "steps" in part.value):
        yield name, part
    elif isinstance(part.value, list) and any(isinstance(item.value, dict) and "steps" in item.value for item in part.items()):
        found = [each for number, item in enumerate(part.items(), 1) for each in _listed(item, number)]
        yield from found
        if found and name not in [own for own, _ in found]:
            yield name, found[0][1]
    elif isinstance(part.value, list):
        are_names = len(part.value) > 1 and all(isinstance(each, str) for each in part.value)
        yield name, replace(part, value=" -> ".join(map(str, part.value))) if are_names else part
    else:
        part.fault("expected a workflow: a mapping with 'steps', a list of steps, or arrows such as 'analyst -> writer -> user'")


def _listed(part: ConfigPart, number: int) -> Iterator[tuple[str, ConfigPart]]:
    """Yield a workflow of a list: with its own id, or arrows."""
    if arrows.is_arrow(part.value):
        yield f"workflow_{number}", part
    elif isinstance(part.value, dict) and part.has("id"):
        yield part.at("id").text(), part
    elif isinstance(part.value, dict) and len(part.value) == 1 and "steps" not in part.value:
        name, each = next(part.entries())
        yield from _under(name, each)
    else:
        part.fault("a workflow of a list needs an 'id'")


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
        elif not (message := _of_steps(fault.message)).endswith(f": only {node!r} could start it"):  # its condition's fault says so
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
    return re.sub(r"('[^']+')(, \1)+", r"\1", re.sub(r"\bnode(s?)\b", r"step\1", message))
