"""The configuration in a Diskurs folder: a `config.yml` and the folders of its agents become definitions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import faults_of, in_order, unknown_keys
from cantata.config.formats import Configuration
from cantata.config.source_map import value_at
from cantata.errors import ConfigError, Fault, without_warnings
from cantata.flows.definitions import Definitions
from cantata.text.suggestions import hint
from cantata_frontends.diskurs import components, schema
from cantata_frontends.diskurs.agent_entries import agents_of
from cantata_frontends.diskurs.code_text import import_faults
from cantata_frontends.diskurs.conversation_config import ConversationConfig
from cantata_frontends.diskurs.files import DiskursConfigReader, FolderFiles
from cantata_frontends.diskurs.handovers import extension_of
from cantata_frontends.diskurs.spelling import in_camel_case, with_variables


def read_folder(
    path: Path, document: Document | None, *, read: Callable[[Path], Document], environment: Mapping[str, str]
) -> Configuration:
    """Read a `config.yml` with the folders of its agents. Raises ConfigError with every fault."""
    folder = (path if path.is_dir() else path.parent).absolute()
    document, twice = in_camel_case(document or read(path))
    document, unset = with_variables(document, environment)
    reader = DiskursConfigReader(document, FolderFiles(folder), [*twice, *unset])
    _drop_unknown_keys(reader)
    conversation = _conversation_config(reader)
    for file in sorted(reader.files.code_files):
        reader.faults += [
            Fault(fault, f"{reader.files.name(file)}, line {line}") for line, fault in import_faults(file)
        ]
    faults = in_order(reader.faults)
    if conversation is None or without_warnings(faults):
        raise ConfigError(faults, source=document.source)
    definitions = Definitions(folder=str(folder), extension=extension_of(conversation))
    return Configuration(definitions, description="of a Diskurs folder", faults=faults)


_WITHOUT_EFFECT = {"toolExecutorType", "dispatcherType", "conversationType", "conversation"}
"""A key that resembles one of these changes nothing if it is ignored."""


def _drop_unknown_keys(reader: DiskursConfigReader) -> None:
    """Warn of keys that Diskurs ignores too, and drop them; a key that resembles a known one stays, as a fault."""
    for path, near in unknown_keys(reader.document.data, schema.DiskursFile).items():
        if near is None or near in _WITHOUT_EFFECT:
            reader.warn(path, f"unknown key {path[-1]!r} has no effect{hint(near)}")
            section: Any = functools.reduce(value_at, path[:-1], reader.document.data)
            del section[path[-1]]


def _conversation_config(reader: DiskursConfigReader) -> ConversationConfig | None:
    """Return the agents and their components; None if the file is not valid. Every section is checked even if others have faults."""
    config = _config(reader)
    agents, modules = agents_of(reader), components.modules_of(reader)
    llms, tools = components.llms_of(reader), components.tools_of(reader, modules)
    dependencies = components.dependencies_of(reader, modules, tools)
    if config is None:
        return None
    reader.check_known(("firstContact",), config.first_contact, reader.named("agents"), "agent")
    return ConversationConfig(
        first_contact=config.first_contact,
        agents=agents,
        llms=llms,
        tools=tools,
        dependencies=dependencies,
        modules=modules,
        memory=components.memory_of(reader, config.longterm_memory, agents),
        keeps_memory=config.conversation_store.is_persistent,
    )


def _config(reader: DiskursConfigReader) -> schema.DiskursFile | None:
    try:
        return schema.DiskursFile.model_validate(reader.document.data)
    except ValidationError as error:
        reader.faults += faults_of(error, reader.document, schema.DiskursFile)
        return None
