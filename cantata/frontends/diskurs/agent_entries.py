"""The agents of a Diskurs configuration."""

from __future__ import annotations

from pathlib import Path

from pydantic.alias_generators import to_camel

from cantata.config.source_map import KeyPath
from cantata.frontends.diskurs import schema
from cantata.frontends.diskurs.conversation_config import BranchCode, CodeReference, ConversationAgent, HandoverRule
from cantata.frontends.diskurs.diskurs_config import DiskursConfigReader
from cantata.frontends.diskurs.entry_checks import check_agent, check_handover_cycles
from cantata.frontends.diskurs.prompts import PromptReader


def agents_of(reader: DiskursConfigReader) -> dict[str, ConversationAgent]:
    """Return the agents whose entries are valid, by name."""
    entries = reader.entries("agents", schema.AgentEntry)
    check_handover_cycles(reader, entries)
    return {entry.name: _agent(reader, ("agents", i), entry) for i, entry in entries.items()}


def _agent(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> ConversationAgent:
    check_agent(reader, path, entry)
    prompt, description = PromptReader(reader, (*path, "prompt"), entry).read()
    return ConversationAgent(
        kind=entry.type, description=description, llm=entry.llm, topics=entry.topics, tools=entry.tools, prompt=prompt,
        max_reasoning_steps=entry.max_reasoning_steps, max_trials=entry.max_trials, max_dispatches=entry.max_dispatches,
        locked_fields=entry.locked_fields, takes_memory=entry.init_prompt_arguments_with_longterm_memory,
        final_properties=entry.final_properties, render_prompt=entry.render_prompt, fallback_to_llm=entry.fallback_to_llm,
        descriptions=entry.agent_descriptions, finalizer=entry.finalizer_name, supervisor=entry.supervisor,
        judge=entry.can_finalize_name, rules=_rules(reader, path, entry), branches=_branches(reader, path, entry),
    )  # fmt: skip


def _rules(reader: DiskursConfigReader, path: KeyPath, entry: schema.AgentEntry) -> list[HandoverRule]:
    rules = []
    for i, rule in enumerate(entry.rules):
        at = (*path, "rules", i)
        reader.check_known((*at, "targetAgent"), rule.target_agent, entry.topics, "topic of this conductor")
        with reader.file_faults((*at, "conditionName")):
            location = reader.files.resolve(rule.location or entry.prompt.location or ".")
            condition = reader.files.first_code(reader.files.candidates(location, ("rules.py", "prompt.py")), rule.condition_name)
            rules.append(HandoverRule(name=rule.name, description=rule.description, condition=condition, target=rule.target_agent))
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
