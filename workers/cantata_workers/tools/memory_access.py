"""Memory of steps: memory commands in texts, memories named by prompts, and the memory bank of a tool's context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from pydantic import PrivateAttr

from cantata.errors import ConfigError, StepError
from cantata.features.memory.memory_store import MemoryStore
from cantata.flows.expressions import templates
from cantata.flows.graph import Outcome
from cantata.flows.turns import memory_commands
from cantata.flows.turns.memory_commands import GetCommand, ListCommand, MemoryCommand, StoreCommand
from cantata.ledger.records import Begun
from cantata.values import ToolContext
from cantata_workers.process.step_context import StepContext, as_compact_text, handles, text_input

MAX_COMMANDS = 1000
"""Memory commands in one text."""
MEMORY = "memory."
"""The prefix of placeholders that name a memory: `{memory.namespace.key}`."""


class WorkerToolContext(ToolContext):
    """The ToolContext of a step in a worker, with the memory bank of the run's tenant."""

    _bank: MemoryStore = PrivateAttr()

    @classmethod
    def of(cls, context: StepContext) -> WorkerToolContext:
        """Return the context for a tool that this step calls."""
        begun = context.begun
        tool_context = cls(run_id=begun.run_id, step_id=begun.step_id, attempt=begun.attempt, session=session_of(begun))
        tool_context._bank = bank_of(context)
        return tool_context

    @property
    def memory(self) -> MemoryStore:
        """The memories of the run's tenant."""
        return self._bank


def bank_of(context: StepContext) -> MemoryStore:
    """Return the memory bank of the run's tenant."""
    return MemoryStore(
        context.process.ledger, tenant=context.begun.tenant, limits=context.definitions.limits, of_run=True
    )


def session_of(begun: Begun) -> str | None:
    """Return the session that a turn belongs to; None without one."""
    return unquote(begun.session.partition("/")[2]) or None


@handles("agent.memory")
def agent_memory(context: StepContext) -> Outcome:
    """Execute the memory commands in the input text, in order; each command line is replaced by its answer."""
    bank, namespace = bank_of(context), context.text_param("namespace")
    lines = memory_commands.parse(text_input(context))
    commands = len(lines) - sum(isinstance(line, str) for line in lines)
    if commands > MAX_COMMANDS:
        message = (
            f"the text has {commands:,} memory commands, each of which is a call to Redis; {MAX_COMMANDS:,} are allowed"
        )
        raise StepError(message, code="too_many_commands")
    return Outcome(
        output="\n".join(_answers(lines, bank, namespace, max_chars=context.definitions.limits.output_bytes))
    )


def _answers(
    lines: Iterable[str | MemoryCommand], bank: MemoryStore, namespace: str, *, max_chars: int
) -> Iterator[str]:
    """Yield the lines with commands replaced by answers. Raises StepError as soon as they exceed the size of an output."""
    for line in lines:
        answer = line if isinstance(line, str) else _execute(line, bank, namespace)
        max_chars -= len(answer)
        if max_chars < 0:
            raise StepError(
                "the answers to its memory commands are too large (limits.output_bytes)", code="output_too_large"
            )
        yield answer


def recall(context: StepContext, texts: Iterable[str]) -> dict[str, str | None]:
    """Return the memories that placeholders of templates name, as text; None for those that do not exist.

    The session's memories win over the tenant's.
    """
    names = {
        name: _address(name)
        for text in texts
        if MEMORY in text
        for name in templates.names(text)
        if name.startswith(MEMORY)
    }
    wanted = {name: address for name, address in names.items() if address}
    if not wanted:
        return {}
    found = bank_of(context).of(session=session_of(context.begun)).retrieve_each(wanted.values())
    return {name: as_compact_text(found[address]) if address in found else None for name, address in wanted.items()}


def _address(name: str) -> tuple[str, str] | None:
    """Return the namespace and the key that a placeholder names; the key may have dots."""
    namespace, _, key = name.removeprefix(MEMORY).partition(".")
    return (namespace, key) if namespace and key else None


def _execute(command: MemoryCommand, bank: MemoryStore, namespace: str) -> str:
    try:
        match command:
            case StoreCommand(key, value):
                bank.store_memory(key, value, namespace)
                return memory_commands.store_reply(key)
            case GetCommand(key):
                found = bank.retrieve_each([(namespace, key)])
                return memory_commands.get_reply(key, as_compact_text(found[namespace, key]) if found else None)
            case ListCommand():
                return memory_commands.list_reply(bank.list_memories(namespace))
            case malformed:
                return memory_commands.error_reply(malformed.fault)
    except ConfigError as error:  # such as a key that is too long
        return memory_commands.error_reply("; ".join(fault.message for fault in error.faults))
