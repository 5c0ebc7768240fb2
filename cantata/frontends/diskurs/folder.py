"""Loading of a Diskurs folder: a `config.yml` and the folders of its agents become definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import faults_of, in_order
from cantata.config.source_map import value_at
from cantata.errors import ConfigError
from cantata.frontends.diskurs import components, schema
from cantata.frontends.diskurs.agent_entries import agents_of
from cantata.frontends.diskurs.conversation_config import ConversationConfig
from cantata.frontends.diskurs.diskurs_config import DiskursConfigReader
from cantata.frontends.diskurs.files import FolderFiles
from cantata.frontends.diskurs.handovers import extension_of
from cantata.frontends.diskurs.spelling import in_camel_case, with_variables
from cantata.models.definitions import Definitions


def is_folder(document: Document) -> bool:
    """Return whether a document is a Diskurs configuration: it has a `firstContact`."""
    return any(value_at(document.data, key) is not None for key in ("firstContact", "first_contact"))


def load_folder(
    document: Document, *, folder: Path, environ: Mapping[str, str], check_template: Callable[[str], list[str]]
) -> Definitions:  # fmt: skip
    """Return the definitions of a Diskurs configuration, whose agents lie in `folder`. Raises ConfigError with every fault.

    `check_template` returns the names of the templates that a template includes, and raises ValueError if the template is not valid.
    """
    document, twice = in_camel_case(document)
    document, unset = with_variables(document, environ)
    reader = DiskursConfigReader(document, FolderFiles(folder, check_template), [*twice, *unset])
    conversation = _conversation_config(reader)
    if reader.faults or conversation is None:
        raise ConfigError(in_order(reader.faults), source=document.source)
    return Definitions(folder=str(folder), extension=extension_of(conversation))


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
