"""The components that agents of a Diskurs configuration use: models, tools, dependencies, modules, long-term memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cantata.config.source_map import KeyPath
from cantata_frontends.diskurs import schema
from cantata_frontends.diskurs.conversation_config import (
    CodeReference,
    ConversationAgent,
    ConversationDependency,
    ConversationModel,
    ConversationTool,
)
from cantata_frontends.diskurs.files import DiskursConfigReader, FileFault
from cantata_frontends.diskurs.spelling import variable_of

_MEMORY_FILES = ("longterm_memory.py", "prompt.py")
_NO_SECRETS = "a key must not stand in a file; write ${OPENAI_API_KEY} or the like, and set the variable in the environment of the workers"

_NO_ENTRA_ID = (
    "no token of Entra ID is requested: the key comes from the workers' environment, {}the variable of 'apiKey'"
)


def llms_of(reader: DiskursConfigReader) -> dict[str, ConversationModel]:
    """Return the models, by name."""
    return {
        entry.name: _llm(reader, ("llms", i), entry) for i, entry in reader.entries("llms", schema.LlmEntry).items()
    }


def _llm(reader: DiskursConfigReader, path: KeyPath, entry: schema.LlmEntry) -> ConversationModel:
    if entry.use_entra_id:
        reader.warn((*path, "useEntraId"), _NO_ENTRA_ID.format("AZURE_API_KEY or " if entry.type == "azure" else ""))
    if entry.type == "azure" and entry.endpoint is None:
        reader.fault(path, "'endpoint' is missing: the address of the deployment")
    variable = variable_of(entry.api_key)
    if entry.api_key and variable is None:
        reader.fault((*path, "apiKey"), _NO_SECRETS)
    given = {"api_base": entry.endpoint, "api_version": entry.api_version}
    return ConversationModel(
        model=f"{entry.type}/{entry.model_name}",
        params={key: value for key, value in given.items() if value is not None},
        api_key_variable=variable,
        max_tokens=entry.model_max_tokens,
    )


def modules_of(reader: DiskursConfigReader) -> dict[str, str]:
    """Return the modules that code may import by name, each with its file."""
    found = {}
    entries = reader.document.data.get("customModules") if isinstance(reader.document.data, dict) else None
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, str):
            entry = {"name": entry, "location": _file_of(entry)}
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("name", "location")):
            continue  # the validation of the whole file reports it
        with reader.file_faults(("customModules", i)):
            found[str(entry["name"]).rpartition(".")[2]] = reader.files.name(
                reader.files.resolve(str(entry["location"]))
            )
    return found


def tools_of(reader: DiskursConfigReader, modules: Mapping[str, str]) -> dict[str, ConversationTool]:
    """Return the tools, by name."""
    return {
        entry.name: _tool(reader, ("tools", i), entry, modules)
        for i, entry in reader.entries("tools", schema.ToolEntry).items()
    }


def _tool(
    reader: DiskursConfigReader, path: KeyPath, entry: schema.ToolEntry, modules: Mapping[str, str]
) -> ConversationTool:
    for i, name in enumerate(entry.dependencies):
        reader.check_known((*path, "dependencies", i), name, reader.named("toolDependencies"), "tool dependency")
    function = CodeReference(file="", name=entry.function_name)
    if (entry.module_name is None) == (entry.module_path is None):
        reader.fault(path, "write either 'moduleName' or the older 'modulePath'")
        return ConversationTool(function=function)
    is_made = bool(entry.configs or entry.dependencies)
    with reader.file_faults((*path, "functionName")):
        file = (
            _module(reader, entry.module_name, modules)
            if entry.module_name
            else reader.files.resolve(str(entry.module_path))
        )
        found = (
            reader.files.code(file, f"create_{entry.function_name}")
            if is_made
            else _function(reader, file, entry.function_name)
        )
        function = CodeReference(file=found.file, name=entry.function_name)
    return ConversationTool(function=function, configs=entry.configs, dependencies=entry.dependencies)


def _function(reader: DiskursConfigReader, file: Path, name: str) -> CodeReference:
    """Return a function, or the factory that creates it. Raises FileFault."""
    try:
        return reader.files.code(file, name)
    except FileFault as fault:
        try:
            return reader.files.code(file, f"create_{name}")
        except FileFault:
            raise fault from None


def dependencies_of(
    reader: DiskursConfigReader, modules: Mapping[str, str], tools: Mapping[str, ConversationTool]
) -> dict[str, ConversationDependency]:
    """Return the objects that factories of tools receive, by name."""
    found = {}
    used = {name for tool in tools.values() for name in tool.dependencies}
    for i, entry in reader.entries("toolDependencies", schema.DependencyEntry).items():
        if entry.module_name is None or entry.class_name is None:
            record = reader.fault if entry.name in used else reader.warn
            record(
                ("toolDependencies", i),
                f"'moduleName' and 'className' of {entry.name!r} are missing, so no tool can use it",
            )
            continue
        with reader.file_faults(("toolDependencies", i, "className")):
            made_by = reader.files.code(_module(reader, entry.module_name, modules), entry.class_name)
            found[entry.name] = ConversationDependency(made_by=made_by, parameters=entry.parameters)
    return found


def memory_of(
    reader: DiskursConfigReader, entry: schema.MemoryEntry | None, agents: Mapping[str, ConversationAgent]
) -> CodeReference | None:
    """Return the class of the shared long-term memory: in its `location`, else beside a conductor's prompt, else in the folder."""
    if entry is None:
        return None
    with reader.file_faults(("longtermMemory",)):
        own = [
            Path(each.prompt.file).parent for each in agents.values() if each.kind == "conductor" and each.prompt.file
        ]
        locations = [entry.location] if entry.location else [*map(str, own), "."]
        files = [
            file
            for location in locations
            for file in reader.files.candidates(reader.files.resolve(location), _MEMORY_FILES)
        ]
        return reader.files.first_code(files, entry.type)
    return None


def _module(reader: DiskursConfigReader, name: str, modules: Mapping[str, str]) -> Path:
    return reader.files.resolve(modules.get(name) or _file_of(name))


def _file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"
