"""Diskurs folders as a format of configurations: a `config.yml` and the folders of its agents become definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import faults_of, in_order
from cantata.config.formats import Configuration
from cantata.config.source_map import value_at
from cantata.errors import ConfigError, without_warnings
from cantata.frontends.diskurs import components, schema
from cantata.frontends.diskurs.agent_entries import agents_of
from cantata.frontends.diskurs.conversation_config import ConversationConfig
from cantata.frontends.diskurs.files import DiskursConfigReader, FolderFiles
from cantata.frontends.diskurs.handovers import extension_of
from cantata.frontends.diskurs.spelling import in_camel_case, with_variables
from cantata.models.definitions import Definitions

files = ()


def detects(path: Path, document: Document | None) -> bool:
    """Return whether a document is a Diskurs configuration: it has a `firstContact`."""
    return document is not None and any(value_at(document.data, key) is not None for key in ("firstContact", "first_contact"))


def load(path: Path, document: Document | None, *, read: Callable[[Path], Document], environment: Mapping[str, str]) -> Configuration:
    """Read a `config.yml` with the folders of its agents. Raises ConfigError with every fault."""
    folder = (path if path.is_dir() else path.parent).absolute()
    document, twice = in_camel_case(document or read(path))
    document, unset = with_variables(document, environment)
    reader = DiskursConfigReader(document, FolderFiles(folder), [*twice, *unset])
    conversation = _conversation_config(reader)
    faults = in_order(reader.faults)
    if conversation is None or without_warnings(faults):
        raise ConfigError(faults, source=document.source)
    definitions = Definitions(folder=str(folder), extension=extension_of(conversation))
    return Configuration(definitions, description="of a Diskurs folder", faults=faults)


def _conversation_config(reader: DiskursConfigReader) -> ConversationConfig | None:
    """Return the agents and their components; None if the file is not valid. Every section is checked even if others have faults."""
    config = _config(reader)
    agents, modules = agents_of(reader), components.modules_of(reader)
    llms, tools = components.llms_of(reader), components.tools_of(reader, modules)
    dependencies = components.dependencies_of(reader, modules)
    if config is None:
        return None
    reader.check_known(("firstContact",), config.first_contact, reader.names("agents"), "agent")
    return ConversationConfig(
        first_contact=config.first_contact, agents=agents, llms=llms, tools=tools, dependencies=dependencies, modules=modules,
        memory=components.memory_of(reader, config.longterm_memory, agents), keeps_memory=config.conversation_store.is_persistent,
    )  # fmt: skip


def _config(reader: DiskursConfigReader) -> schema.DiskursFile | None:
    try:
        return schema.DiskursFile.model_validate(reader.document.data)
    except ValidationError as error:
        reader.faults += faults_of(error, reader.document, schema.DiskursFile)
        return None
