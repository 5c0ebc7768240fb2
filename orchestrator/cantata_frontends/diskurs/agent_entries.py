"""The agents of a Diskurs configuration, and checks of their entries beyond the form: keys fit the type, names refer to something."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic.alias_generators import to_camel

from cantata.config.source_map import KeyPath, value_at
from cantata_frontends.diskurs import schema
from cantata_frontends.diskurs.conversation_config import (
    FINALIZERS,
    BranchCode,
    CodeReference,
    ConversationAgent,
    HandoverRule,
)
from cantata_frontends.diskurs.files import DiskursConfigReader
from cantata_frontends.diskurs.prompts import PromptReader

_WITHOUT_MODEL = ("conductor", "heuristic", "heuristic_finalizer")


def agents_of(reader: DiskursConfigReader) -> dict[str, ConversationAgent]:
    """Return the agents whose entries are valid, by name."""
    entries = reader.entries("agents", schema.AgentEntry)
    _check_handover_cycles(reader, entries)
    return {entry.name: _agent(reader, ("agents", i), entry) for i, entry in entries.items()}


def _agent(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> ConversationAgent:
    entry = _with_known_keys(reader, path, entry)
    _check_agent(reader, path, entry)
    prompt, description = PromptReader(reader, (*path, "prompt"), entry).read()
    return ConversationAgent(
        kind=entry.type,
        description=description,
        llm=entry.llm,
        topics=entry.topics,
        tools=entry.tools,
        prompt=prompt,
        max_reasoning_steps=entry.max_reasoning_steps,
        max_trials=entry.max_trials,
        max_dispatches=entry.max_dispatches,
        locked_fields=entry.locked_fields,
        takes_memory=entry.init_prompt_arguments_with_longterm_memory,
        final_properties=entry.final_properties,
        render_prompt=entry.render_prompt,
        fallback_to_llm=entry.fallback_to_llm,
        descriptions=entry.agent_descriptions,
        finalizer=entry.finalizer_name,
        supervisor=entry.supervisor,
        judge=entry.can_finalize_name,
        rules=_rules(reader, path, entry),
        branches=_branches(reader, path, entry),
    )


def _with_known_keys(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> schema.AgentEntry:
    """Return the entry without the keys that have no effect on its type or on that of its prompt; they are warnings."""
    given = entry.prompt
    prompt = reader.check_keys(
        (*path, "prompt"), given, schema.PROMPT_KEYS[given.type], f"a prompt of type {given.type!r}"
    )
    known = reader.check_keys(path, entry, schema.AGENT_KEYS[entry.type], f"an agent of type {entry.type!r}")
    return known.model_copy(update={"prompt": prompt})


def _rules(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> list[HandoverRule]:
    rules = []
    for i, rule in enumerate(entry.rules):
        at = (*path, "rules", i)
        reader.check_known((*at, "targetAgent"), rule.target_agent, entry.topics, "topic of this conductor")
        with reader.file_faults((*at, "conditionName")):
            location = reader.files.resolve(rule.location or entry.prompt.location or ".")
            condition = reader.files.first_code(
                reader.files.candidates(location, ("rules.py", "prompt.py")), rule.condition_name
            )
            rules.append(
                HandoverRule(
                    name=rule.name, description=rule.description, condition=condition, target=rule.target_agent
                )
            )
    return rules


def _branches(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> BranchCode | None:
    if entry.type != "parallel_multistep":
        return None
    location: Path | None = None
    with reader.file_faults((*path, "location")):
        location = reader.files.resolve(entry.location or entry.prompt.location or ".")
    if location is None:
        return None
    file = location if location.is_file() else location / "parallelize.py"
    found: dict[str, CodeReference] = {}
    for key in ("branch_conversation_name", "join_conversation_name"):
        with reader.file_faults((*path, to_camel(key))):
            found[key] = reader.files.code(file, getattr(entry, key))
    if len(found) < 2:
        return None
    branch, join = found.values()
    return BranchCode(branch=branch, join=join, invoke_on_final=entry.invoke_on_final)


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_agent(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    """Record the faults of an agent's own keys."""
    _check_names(reader, path, entry)
    if entry.type == "conductor":
        _check_conductor(reader, path, entry)
    else:
        _check_topics(reader, path, entry)


def _check_handover_cycles(reader: DiskursConfigReader, entries: Mapping[int, schema.AgentEntry]) -> None:
    """Record agents that hand a conversation to each other in an endless cycle: no bound counts these handovers."""
    following = {
        each.name: each.supervisor if each.type == "conductor" else next(iter(each.topics), None)
        for each in entries.values()
    }
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


def _check_predicate_topics(
    reader: DiskursConfigReader, path: KeyPath, name: str, entries: Mapping[int, schema.AgentEntry]
) -> None:
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


def _check_names(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    if entry.llm is not None:
        reader.check_known((*path, "llm"), entry.llm, reader.named("llms"), "llm")
    elif entry.type not in _WITHOUT_MODEL:
        reader.fault(path, "'llm' is missing: the model of the agent")
    for i, name in enumerate(entry.topics):
        reader.check_known((*path, "topics", i), name, reader.named("agents"), "agent")
    for i, name in enumerate(entry.tools):
        reader.check_known((*path, "tools", i), name, reader.named("tools"), "tool")
    for name in entry.agent_descriptions:
        reader.check_known((*path, "agentDescriptions", name), name, entry.topics, "topic of this conductor")
    _check_kind(reader, (*path, "finalizerName"), entry.finalizer_name, FINALIZERS)
    _check_kind(reader, (*path, "supervisor"), entry.supervisor, {"conductor"})
    _check_kind(reader, (*path, "canFinalizeName"), entry.can_finalize_name, {"multistep_predicate"})


def _check_kind(reader: DiskursConfigReader, path: KeyPath, name: str | None, wanted: Collection[str]) -> None:
    if name is None:
        return
    kinds = {each: value_at(entry, "type") for each, entry in reader.named("agents").items()}
    reader.check_known(path, name, kinds, "agent")
    if kinds.get(name, name) not in wanted and name in kinds:
        reader.fault(
            path, f"{name!r} is of type {kinds[name]!r}, but {' or '.join(map(repr, sorted(wanted)))} is needed here"
        )


def _check_topics(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    if entry.type in FINALIZERS:
        if entry.topics:
            reader.warn((*path, "topics"), "'topics' has no effect on a finalizer, whose answer is the result")
        if not entry.final_properties:
            reader.fault(path, "'finalProperties' is missing: the arguments that are the result")
    elif len(entry.topics) > 1:
        reader.fault(
            (*path, "topics"),
            f"an agent of type {entry.type!r} hands over to one agent only; conductors choose among several",
        )
    elif not entry.topics and entry.type != "multistep_predicate":
        reader.fault(path, "'topics' is missing: the agent that it hands over to, such as a conductor")


def _check_conductor(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> None:
    if not entry.topics:
        reader.fault(path, "'topics' is missing: the agents that the conductor chooses among")
    ends = {
        "finalizerName": entry.finalizer_name,
        "supervisor": entry.supervisor,
        "prompt.finalizeName": entry.prompt.finalize_name,
    }
    given = [key for key, name in ends.items() if name is not None]
    if len(given) > 1:
        reader.fault(
            path,
            f"{' and '.join(map(repr, given))} exclude each other: each sets how the conductor ends; keep one of them",
        )
    if entry.llm is None and not entry.rules:
        reader.fault(path, "it has neither 'rules' nor an 'llm', so it could choose no agent")
