"""Reading of LangSwarm's agents and tools into a symbol table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cantata.config.faults import shown
from cantata.config.texts import file_of, lies_in
from cantata.frontends.langswarm.config_part import ConfigPart
from cantata.frontends.langswarm.symbol_table import SymbolTable
from cantata.frontends.langswarm.vocabulary import AGENT, BEHAVIORS, PROVIDERS, TOOL
from cantata.models.definitions import Agent, History, McpServer, Tool
from cantata.models.values import JsonValue

_ENV = re.compile(r"env:(\w+)")
_STORED_SECRET = "would be stored with each run; let the function read its worker's environment, or use 'env' or 'headers' of an MCP server"
_Model = TypeVar("_Model", bound=BaseModel)
_OF_SERVERS = frozenset({"args", "env", "headers"})
_OF_FUNCTIONS = frozenset({"methods", "parameters", "permissions", "retry", "metadata"})
_PLACEHOLDER = Tool(asks=True, parameters={"type": "object"})
"""Replaces a tool with a fault, so that its name is known and only the fault is reported."""


class AgentReader:
    """Reads parts of a configuration, one after the other, into a symbol table."""

    def __init__(self, symbols: SymbolTable, environment: Mapping[str, str], *, memory: bool | None) -> None:
        self._symbols = symbols
        self._environment = environment
        self._memory = memory

    # --- agents -------------------------------------------------------------------------------------------------------

    def agent(self, name: str, part: ConfigPart) -> None:
        """Read an agent."""
        if not isinstance(part.value, dict | None) and part.value != name:
            part.fault(f"expected an agent: a mapping such as {{model: ..., system_prompt: ...}}, found {shown(part.value)}")
        part.check_keys(AGENT)
        known: dict[str, object] = {
            "description": self._text(part, "description") or self._text(part, "name"),
            "model": self._model(part),
            "system": self._system(part),
            "dialect": "json",
            "params": _params(part),
            "stream": part.at("streaming").boolean(),
            "response_mode": part.at("response_mode").text() if part.has("response_mode") else None,
            "retries": part.at("retry").count(),
            "timeout_s": part.at("timeout").number(least=0.001),
        }
        known["tools"], limit = read_tool_list(part.at("tools"), self._symbols)
        own_limit = part.at("max_tool_iterations").count()
        known["max_tool_rounds"] = limit if own_limit is None else own_limit
        memory = part.at("memory")
        sees_history = self._memory if memory.value is None else read_memory_flag(memory)
        known["history"] = None if sees_history is None else History(enabled=sees_history)
        self._symbols.agents[name] = self._made(Agent, known, part) or Agent()

    def _model(self, part: ConfigPart) -> str | None:
        model = self._text(part, "model")
        kind = part.first("agent_type", "provider")
        if part.has("agent_type") and part.has("provider"):
            part.at("provider").fault("'provider' means the same as 'agent_type'; write one of them")
        if kind is None:
            return model or None
        provider = self._resolved(kind).lower()
        if provider and not kind.is_known(provider, PROVIDERS, "provider"):
            return model or None
        return f"{PROVIDERS[provider]}/{model}" if model and provider and "/" not in model else model or None

    def _system(self, part: ConfigPart) -> str | None:
        behavior, prompts = self._text(part, "behavior"), part.at("system_prompt")
        texts = [BEHAVIORS.get(behavior.lower(), behavior), *map(self._prompt, prompts.items())]
        return ("\n\n---\n\n" if isinstance(prompts.value, list) else "\n\n").join(filter(None, texts)) or None

    def _prompt(self, part: ConfigPart) -> str:
        """Return a text, or the content of the file that it names."""
        text = self._resolved(part)
        file = file_of(text, self._symbols.folder)
        if file is None:
            return text
        if self._symbols.folder and not lies_in(self._symbols.folder, file):
            part.fault(f"{text!r} leaves the configuration's folder; only files in it are read")
            return ""
        try:
            return file.read_text("utf-8-sig")
        except (OSError, ValueError) as error:
            part.fault(f"the file {str(file)!r} cannot be read: {error}")
            return ""

    # --- tools --------------------------------------------------------------------------------------------------------

    def tool(self, name: str, part: ConfigPart) -> None:
        """Read a tool: a function, some functions of a module, or an MCP server."""
        part.check_keys(TOOL)
        settings = part.at("settings")
        if settings.value is not None and not isinstance(settings.value, dict):
            settings.fault("expected a mapping")
        locations = (part, settings, part.at("metadata"))
        function, command = _first_in(locations, "function"), _first_in(locations, "command")
        url = _first_in(locations, "url", "mcp_url")
        if part.has("pattern") and part.at("pattern").text() not in ("direct", "hybrid"):
            part.at("pattern").fault("expected 'direct' or 'hybrid'; tools have no workflows of their own and are called by their methods")
        if part.has("local_mode") and part.at("local_mode").boolean() != (url is None):
            part.at("local_mode").fault("contradicts the rest: a tool with a 'url' is not local, and any other tool is")
        if sum(each is not None for each in (function, command or url, part.first("module"))) != 1:
            part.fault(_missing_target(part))
            self._symbols.tools[name] = _PLACEHOLDER
        elif function is not None:
            part.check_keys(TOOL - _OF_SERVERS - {"methods"}, TOOL, "a tool that is a function")
            part.at("metadata").check_keys(("function", "description", "parameters"))
            self._function(name, function, part)
        elif command or url:
            part.check_keys(TOOL - _OF_FUNCTIONS, TOOL, "an MCP server, which describes its own tools")
            self._server(name, command, url, locations, part)
        else:
            part.check_keys(TOOL - _OF_SERVERS - {"parameters", "metadata"}, TOOL, "a tool with methods")
            self._methods(name, part)

    def _function(self, name: str, function: ConfigPart, part: ConfigPart) -> None:
        found, known = self._symbols.resolved(function), self._common(part)
        description = _first_in((part, part.at("metadata")), "description")
        parameters = _first_in((part, part.at("metadata")), "parameters")
        known |= {"function": found, "description": description.text() if description else ""}
        known |= {"parameters": _schema(parameters.value)} if parameters else {}
        self._symbols.tools[name] = (self._made(Tool, known, part) if found else None) or _PLACEHOLDER

    def _methods(self, name: str, part: ConfigPart) -> None:
        """Read a tool whose methods are functions of one module."""
        module = part.at("module").text()
        found = []
        for item in part.at("methods").items():
            entries = list(item.entries()) if isinstance(item.value, dict) and "name" not in item.value else []
            methods = entries or [(item.at("name").text() if isinstance(item.value, dict) else item.text(), item.at("description"))]
            for method, described in methods:
                function = self._symbols.resolved(replace(item, value=f"{module}:{method}"))
                if function:
                    text = described.value if isinstance(described.value, str) else ""
                    known = {**self._common(part), "function": function, "description": text}
                    self._symbols.tools[f"{name}.{method}"] = self._made(Tool, known, part) or _PLACEHOLDER
                    found.append(f"{name}.{method}")
        if not part.has("methods"):
            part.fault("a tool with a 'module' needs 'methods': the names of its functions")
        self._symbols.methods[name] = found

    def _server(
        self, name: str, command: ConfigPart | None, url: ConfigPart | None, locations: Sequence[ConfigPart], part: ConfigPart
    ) -> None:
        known: dict[str, object] = {}
        if url:
            known["url"] = self._resolved(url)
        if command:
            arguments = _first_in(locations, "args")
            known["command"] = [self._resolved(item) for item in [*command.items(), *(arguments.items() if arguments else [])]]
        env, headers, timeout = (_first_in(locations, key) for key in ("env", "headers", "timeout"))
        if env:
            known["env"] = [self._variable(key, item) for key, item in _named(env)]
        if headers:
            known["headers"] = {key: self._variable(key, item) for key, item in headers.entries()}
        if timeout:
            known["timeout_s"] = timeout.number(least=0.001)
        settings = part.at("settings")
        settings.check_keys(("command", "args", "url", "mcp_url", "env", "headers", "timeout"))
        server = self._made(McpServer, known, part)
        description = part.at("description").text() if part.has("description") else ""
        self._symbols.tools[name] = Tool(mcp=server, description=description) if server else _PLACEHOLDER

    def _variable(self, key: str, part: ConfigPart) -> str:
        """Return the variable of the workers' environment that a server receives; its value is not stored."""
        text = part.text()
        found = _ENV.fullmatch(text)
        if found is None and not (part.path and isinstance(part.path[-1], int)):
            part.fault(f"a value {_STORED_SECRET}: write 'env:{key.upper().replace('-', '_')}'")
        return found[1] if found else text

    def _common(self, part: ConfigPart) -> dict[str, object]:
        """Return the other fields of a function's tool, among them settings, as arguments that no model sees."""
        settings = part.at("settings")
        for each in (settings, part.at("permissions")):
            _refuse_variables(each)
        values: dict[str, JsonValue] = {key: item.value for key, item in settings.entries() if key != "function"}
        if part.has("permissions"):
            values["permissions"] = part.at("permissions").value
        return {"values": values, "timeout_s": part.at("timeout").number(least=0.001), "retries": part.at("retry").count()}

    # --- values -------------------------------------------------------------------------------------------------------

    def _text(self, part: ConfigPart, key: str) -> str:
        return self._resolved(part.at(key)) if part.has(key) else ""

    def _resolved(self, part: ConfigPart) -> str:
        """Return a text, or the value of the variable that `env:VAR` names. It is stored with each run, so it must not be a secret."""
        text = part.text()
        variable = _ENV.fullmatch(text)
        if variable is None:
            return text
        if variable[1] not in self._environment:
            part.fault(f"the environment has no variable {variable[1]!r}")
        return self._environment.get(variable[1], "")

    def _made(self, model: type[_Model], known: dict[str, object], part: ConfigPart) -> _Model | None:
        """Return the validated model, in which null counts as absent; None with a fault."""
        try:
            return model.model_validate({key: value for key, value in known.items() if value is not None})
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                where = [str(key) for key in detail["loc"] if part.has(str(key))][:1]
                part.at(*where).fault(f"{detail['msg'][:1].lower()}{detail['msg'][1:]}".removeprefix("value error, "))
        return None


def read_tool_list(part: ConfigPart, symbols: SymbolTable) -> tuple[list[str], int | None]:
    """Return the tools that a list names, and the rounds of calls that its options allow."""
    names: list[str] = []
    limits: list[int] = []
    for item in part.items():
        options = item
        if isinstance(item.value, dict) and "name" not in item.value and len(item.value) == 1:  # `- my_tool: {retry_limit: 3}`
            name, options = next(item.entries())
        else:
            name = item.at("name").text() if isinstance(item.value, dict) else item.text()
        names += symbols.resolve_tool(item, name) if name else []
        options.check_keys(("name", "repeatable", "retry_limit", "return_to_agent"))
        for key in ("repeatable", "return_to_agent"):
            if options.at(key).boolean() is False:
                options.at(key).fault("every tool may be called again, and its result goes back to the agent")
        if limit := options.at("retry_limit").count(least=1):
            limits.append(limit)
    return list(dict.fromkeys(names)), max(limits, default=None)


def _params(part: ConfigPart) -> dict[str, JsonValue]:
    """Return the parameters of an agent's model."""
    found: dict[str, JsonValue] = {key: part.at(key).number(least=0) for key in ("temperature", "top_p")}
    return {key: value for key, value in {**found, "max_tokens": part.at("max_tokens").count(least=1)}.items() if value is not None}


def _refuse_variables(part: ConfigPart) -> None:
    """Report each `env:VAR` within: it would not be resolved, or its value would be stored."""
    if isinstance(part.value, str) and (variable := _ENV.fullmatch(part.value)):
        part.fault(f"the value of {variable[1]!r} {_STORED_SECRET}")
    for key in part.value if isinstance(part.value, dict) else range(len(part.value)) if isinstance(part.value, list) else ():
        _refuse_variables(part.at(key))


def _first_in(locations: Sequence[ConfigPart], *keys: str) -> ConfigPart | None:
    return next((found for location in locations if (found := location.first(*keys))), None)


def read_memory_flag(part: ConfigPart) -> bool:
    """Return whether memory is on: `memory: true`, or `memory: {enabled: true}`; settings of its storage have no effect."""
    if isinstance(part.value, dict):
        for key in part.value.keys() - {"enabled"}:
            part.at(key).warn("no effect: memory is kept in Redis")
        return part.at("enabled").boolean() is not False
    return bool(part.boolean())


def _named(part: ConfigPart) -> list[tuple[str, ConfigPart]]:
    return list(part.entries()) if isinstance(part.value, dict) else [(item.text(), item) for item in part.items()]


def _schema(value: JsonValue) -> JsonValue:
    """Return a JSON schema of arguments; a mapping name → schema or description is short for one."""
    if not isinstance(value, dict) or value.get("type") == "object":
        return value
    properties: dict[str, JsonValue] = {
        name: each if isinstance(each, dict) else {"description": str(each)} for name, each in value.items()
    }
    return {"type": "object", "properties": properties}


def _missing_target(part: ConfigPart) -> str:
    kind = part.at("type").value
    own = f"tools of type {kind!r} are part of LangSwarm and not available; " if isinstance(kind, str) and kind != "function" else ""
    return f"{own}write one of 'function', 'module' with 'methods', 'command', or 'url'"
