"""Checks of agents' entries beyond their form: the keys fit the agent's type, and the names refer to something."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic.alias_generators import to_camel

from cantata.config.source_map import KeyPath
from cantata.frontends.diskurs import schema
from cantata.frontends.diskurs.conversation_config import FINALIZERS
from cantata.frontends.diskurs.diskurs_config import DiskursConfigReader

_WITHOUT_MODEL = ("conductor", "heuristic", "heuristic_finalizer")


def check_agent(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    """Record the faults of an agent's own keys."""
    check_keys(reader, path, entry, schema.AGENT_KEYS[entry.type], f"an agent of type {entry.type!r}")
    _check_names(reader, path, entry)
    if entry.type == "conductor":
        _check_conductor(reader, path, entry)
    else:
        _check_topics(reader, path, entry)


def check_handover_cycles(reader: DiskursConfigReader, entries: Mapping[int, schema.AgentEntry]) -> None:
    """Record agents that hand a conversation to each other in an endless cycle: no bound counts these handovers."""
    following = {each.name: each.supervisor if each.type == "conductor" else next(iter(each.topics), None) for each in entries.values()}
    for i, entry in entries.items():
        for at, name in enumerate(entry.topics):
            _check_predicate_topics(reader, ("agents", i, "topics", at), name, entries)
    reported: set[str] = set()
    for i, entry in entries.items():
        cycle = _cycle_from(entry.name, following)
        if cycle and entry.name not in reported:
            reported.update(cycle)
            names = " → ".join(map(repr, cycle))
            if entry.type == "conductor":
                reader.fault(
                    ("agents", i, "supervisor"),
                    f"the supervisors {names} form a cycle; one of them must make the result",
                )
            else:
                reader.fault(
                    ("agents", i, "topics"),
                    f"the agents {names} form a cycle; one of them must hand over to a conductor",
                )


def _check_predicate_topics(reader: DiskursConfigReader, path: KeyPath, name: str, entries: Mapping[int, schema.AgentEntry]) -> None:
    if any(each.name == name and each.type == "multistep_predicate" and not each.topics for each in entries.values()):
        reader.fault(path, f"{name!r} hands over to no agent: a predicate that is a topic needs 'topics' itself")


def _cycle_from(name: str, following: Mapping[str, str | None]) -> list[str]:
    """Return the cycle through a name, with the name first and last; empty if there is none."""
    cycle = [name]
    while (then := following.get(cycle[-1])) is not None and then not in cycle[1:]:
        cycle.append(then)
        if then == name:
            return cycle
    return []


def check_keys(reader: DiskursConfigReader, path: KeyPath, entry: schema.Section, known: Collection[str], what: str) -> None:
    """Record keys that would have no effect."""
    for key in sorted(entry.model_fields_set.difference(known)):
        own = ", ".join(map(to_camel, sorted(known)))
        reader.fault((*path, to_camel(key)), f"{to_camel(key)!r} has no effect on {what}, whose keys are {own}")


def _check_names(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    if entry.llm is not None:
        reader.check_known((*path, "llm"), entry.llm, reader.names("llms"), "llm")
    elif entry.type not in _WITHOUT_MODEL:
        reader.fault(path, "'llm' is missing: the model of the agent")
    for i, name in enumerate(entry.topics):
        reader.check_known((*path, "topics", i), name, reader.names("agents"), "agent")
    for i, name in enumerate(entry.tools):
        reader.check_known((*path, "tools", i), name, reader.names("tools"), "tool")
    for name in entry.agent_descriptions:
        reader.check_known((*path, "agentDescriptions", name), name, entry.topics, "topic of this conductor")
    _check_kind(reader, (*path, "finalizerName"), entry.finalizer_name, FINALIZERS)
    _check_kind(reader, (*path, "supervisor"), entry.supervisor, {"conductor"})
    _check_kind(reader, (*path, "canFinalizeName"), entry.can_finalize_name, {"multistep_predicate"})


def _check_kind(reader: DiskursConfigReader, path: KeyPath, name: str | None, wanted: Collection[str]) -> None:
    if name is None:
        return
    kinds = dict(zip(reader.names("agents"), reader.names("agents", "type"), strict=True))
    reader.check_known(path, name, kinds, "agent")
    if kinds.get(name, name) not in wanted and name in kinds:
        reader.fault(path, f"{name!r} is of type {kinds[name]!r}, but {' or '.join(map(repr, sorted(wanted)))} is needed here")


def _check_topics(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    if entry.type in FINALIZERS:
        if entry.topics:
            reader.fault((*path, "topics"), "a finalizer hands over to no agent: its answer is the result")
        if not entry.final_properties:
            reader.fault(path, "'finalProperties' is missing: the arguments that are the result")
    elif len(entry.topics) > 1:
        reader.fault((*path, "topics"), f"an agent of type {entry.type!r} hands over to one agent only; conductors choose among several")
    elif not entry.topics and entry.type != "multistep_predicate":
        reader.fault(path, "'topics' is missing: the agent that it hands over to, such as a conductor")


def _check_conductor(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    if not entry.topics:
        reader.fault(path, "'topics' is missing: the agents that the conductor chooses among")
    ends = {"finalizerName": entry.finalizer_name, "supervisor": entry.supervisor, "prompt.finalizeName": entry.prompt.finalize_name}
    given = [key for key, name in ends.items() if name is not None]
    if len(given) > 1:
        reader.fault(path, f"{' and '.join(map(repr, given))} exclude each other: each sets how the conductor ends; keep one of them")
    if entry.llm is None and not entry.rules:
        reader.fault(path, "it has neither 'rules' nor an 'llm', so it could choose no agent")
