"""Reading of LangSwarm's agents and tools into a symbol table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cantata.bounds import MAX_DURATION_S
from cantata.config.faults import shown
from cantata.config.texts import file_of, is_name_of_file, lies_in
from cantata.flows.definitions import Agent, History, McpServer, Tool
from cantata.flows.json_schemas import schema_faults
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue
from cantata_frontends.langswarm.config_part import MISTYPED, ConfigPart, either
from cantata_frontends.langswarm.filesystem import read_filesystem
from cantata_frontends.langswarm.symbol_table import SymbolTable
from cantata_frontends.langswarm.vocabulary import AGENT, BEHAVIORS, PROVIDERS, TOOL

_ENV = re.compile(r"env:(\w+)|\$\{(?:ENV\.)?([A-Z][A-Z0-9_]*)(?::-?([^{}]*))?\}")
"""A value that is one variable of the environment: `env:NAME`, `${NAME}`, `${ENV.NAME}`, `${NAME:default}`, `${NAME:-default}`."""
_STORED_SECRET = "would be stored with each run; let the function read its worker's environment, or use 'env' or 'headers' of an MCP server"
_Model = TypeVar("_Model", bound=BaseModel)
_OF_SERVERS = frozenset({"args", "env", "headers"})
_OF_FUNCTIONS = frozenset({"methods", "parameters", "permissions", "metadata"})
_PROMPTS = ("system_prompt", "system_prompt_file", "instruction", "instructions", "system_prompt_additions")
_DESCRIPTIONS = ("description", "brief", "instruction")
_RESPONSE_MODES = ("integrated", "streaming")
_OFF = ("false", "off", "no", "none", "disabled")
_JSON_FORMATS: Sequence[JsonValue] = ("json", "json_object", {"type": "json_object"})
_INSTEAD: Mapping[str, str] = {
    "forms": "let the tool 'clarify' or a step with 'approval' ask a person",
    "workflow": "let a step with 'invoke_workflow' call the workflow",
    "queue": "every run is queued, and `submit turn` starts one",
}
"""Part of the name of a program of LangSwarm's own → what does its work here."""
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
            part.fault(
                f"expected an agent: a mapping such as {{model: ..., system_prompt: ...}}, found {shown(part.value)}"
            )
        part.check_keys(AGENT)
        for item in part.at("tools").items():
            if isinstance(item.value, dict) and item.has("id") and item.value["id"] not in self._symbols.tool_names:
                self.tool(item.at("id").text(), item)
        known: dict[str, object] = {
            "description": next(filter(None, (self._text(part, key) for key in ("description", "brief", "name"))), ""),
            "model": self._model(part),
            "system": self._system(part),
            "dialect": "json",
            "params": _params(part),
            "stream": either(part, "streaming", "streaming_enabled").boolean(),
            "response_mode": _response_mode(part.at("response_mode")),
            "retries": either(part, "retry", "retry_count").count(),
            "timeout_s": either(part, "timeout", "timeout_seconds").number(least=0.001, most=MAX_DURATION_S),
        }
        known["tools"], limit = read_tool_list(part.at("tools"), self._symbols)
        own_limit = either(part, "max_tool_iterations", "max_iterations").count()
        known["max_tool_rounds"] = limit if own_limit is None else own_limit
        memory = either(part, "memory", "memory_enabled")
        sees_history = self._memory if memory.value is None else read_memory_flag(memory)
        known["history"] = None if sees_history is None else History(enabled=sees_history)
        self._symbols.agents[name] = self._made(Agent, known, part) or Agent()

    def _model(self, part: ConfigPart) -> str | None:
        model = self._text(part, "model")
        kind = part.first("agent_type", "provider", "type")
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
        items = [item for key in _PROMPTS for item in part.at(key).items()]
        texts = [BEHAVIORS.get(behavior.lower(), behavior), *map(self._prompt, items)]
        return ("\n\n---\n\n" if isinstance(prompts.value, list) else "\n\n").join(filter(None, texts)) or None

    def _prompt(self, part: ConfigPart) -> str:
        """Return a text, or the content of the file that it names."""
        text = self._resolved(part)
        for variable in dict.fromkeys(
            found[0] for found in _ENV.finditer(part.text()) if found[2] and found[0] != text
        ):
            part.warn(
                f"{variable!r} stays as it is: only a value that is nothing else is replaced, because prompts are stored with each run"
            )
        file = file_of(text, self._symbols.folder)
        if file is None:
            if self._symbols.folder and is_name_of_file(text):
                folder = self._symbols.folder
                known = filter(
                    is_name_of_file,
                    (str(each.relative_to(folder)) for each in (*folder.glob("*"), *folder.glob("*/*"))),
                )
                part.fault(f"there is no file {text!r} in the configuration's folder{hint(nearest(text, known))}")
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
        """Read a tool: a function, some functions of a module, an MCP server, or the program of LangSwarm's own for files."""
        settings = part.at("settings")
        if settings.value is not None and not isinstance(settings.value, dict):
            settings.fault("expected a mapping")
        locations = (part, part.at("server_config"), settings, part.at("metadata"))
        function, command = _first_in(locations, "function"), _first_in(locations, "command")
        url, arguments = _first_in(locations, "url", "mcp_url"), _first_in(locations, "args")
        program = next(
            (
                str(item.value)
                for item in (arguments.items() if arguments else ())
                if str(item.value).startswith("langswarm")
            ),
            "",
        )
        command = None if program else command
        if part.has("pattern") and part.at("pattern").text() not in ("direct", "hybrid"):
            part.at("pattern").warn("no effect: tools have no workflows of their own, and are called by their methods")
        if part.has("local_mode") and part.at("local_mode").boolean() and url is not None:
            part.at("local_mode").fault("contradicts the rest: a tool with a 'url' is not local")
        module = None if part.has("class") else part.first("module")  # a class is a program of LangSwarm's own
        given = sum(each is not None for each in (function, command or url, module))
        if given > 1 or (not given and part.at("type").value == "function"):
            part.fault("write one of 'function', 'module' with 'methods', 'command', or 'url'")
            self._symbols.tools[name] = _PLACEHOLDER
        elif not given:
            self._own_program(name, program, part)
        elif function is not None:
            part.check_keys(TOOL - _OF_SERVERS | {"methods"} | self._extra(part), TOOL, "a tool that is a function")
            part.at("metadata").check_keys(("function", "description", "parameters"))
            self._function(name, function, part)
        elif command or url:
            part.check_keys(TOOL - _OF_FUNCTIONS, TOOL, "an MCP server, which describes its own tools")
            self._server(name, command, url, locations, part)
        else:
            part.check_keys(
                TOOL - _OF_SERVERS - {"parameters", "metadata"} | self._extra(part), TOOL, "a tool with methods"
            )
            self._methods(name, part)

    def _own_program(self, name: str, program: str, part: ConfigPart) -> None:
        """Read a tool that is a program of LangSwarm's own: the one for files has its methods here, the others are not available."""
        kind = next(
            (str(each.value) for each in (part.first("mcp_server"), part.first("type")) if each is not None), name
        )
        kind = program or (name if kind in ("mcp", "local_mcp") else kind)
        if "filesystem" in kind.lower():
            read_filesystem(name, part, self._symbols, self._resolved)
            return
        part.check_keys(TOOL | self._extra(part))
        known = (instead for word, instead in _INSTEAD.items() if word in kind.lower())
        instead = next(known, "write 'url' or 'command' of an MCP server for it, or a 'function'")
        part.warn(
            f"{kind!r} is a program of LangSwarm's own; agents go without it, and a step that calls it is refused: {instead}"
        )
        self._symbols.unavailable[name] = f"the tool {name!r} is {kind!r}, a program of LangSwarm's own; {instead}"

    def _function(self, name: str, function: ConfigPart, part: ConfigPart) -> None:
        found, known = self._symbols.resolved(function), self._common(part)
        description = _first_in((part, part.at("metadata")), *_DESCRIPTIONS)
        parameters = _first_in((part, part.at("metadata")), "parameters")
        known |= {"function": found, "description": description.text() if description else ""}
        if parameters:
            known["parameters"] = _schema(parameters.value)
            for fault in schema_faults(known["parameters"]) if isinstance(known["parameters"], dict) else ():
                parameters.fault(f"not a JSON schema: {fault}")
        self._symbols.tools[name] = (self._made(Tool, known, part) if found else None) or _PLACEHOLDER

    def _methods(self, name: str, part: ConfigPart) -> None:
        """Read a tool whose methods are functions of one module."""
        module = part.at("module").text()
        found = []
        for item in part.at("methods").items():
            entries = list(item.entries()) if isinstance(item.value, dict) and "name" not in item.value else []
            methods = entries or [
                (item.at("name").text() if isinstance(item.value, dict) else item.text(), item.at("description"))
            ]
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
        self,
        name: str,
        command: ConfigPart | None,
        url: ConfigPart | None,
        locations: Sequence[ConfigPart],
        part: ConfigPart,
    ) -> None:
        known: dict[str, object] = {}
        if url:
            known["url"] = self._resolved(url)
        if command:
            arguments = _first_in(locations, "args")
            known["command"] = [
                self._resolved(item) for item in [*command.items(), *(arguments.items() if arguments else [])]
            ]
        env, headers, timeout = (_first_in(locations, key) for key in ("env", "headers", "timeout"))
        if env:
            known["env"] = [self._variable(key, item) for key, item in _named(env)]
        if headers:
            known["headers"] = {
                key: self._variable(key, item) for key, item in headers.entries() if key.lower() != "content-type"
            }
        if timeout:
            known["timeout_s"] = timeout.number(least=0.001, most=MAX_DURATION_S)
        settings = part.at("settings")
        settings.check_keys(("command", "args", "url", "mcp_url", "env", "headers", "timeout"))
        server = self._made(McpServer, known, part)
        described = part.first(*_DESCRIPTIONS)
        description = described.text() if described else ""
        retries = either(part, "retry", "retry_count").count() or 0
        self._symbols.tools[name] = (
            Tool(mcp=server, description=description, retries=retries) if server else _PLACEHOLDER
        )

    def _variable(self, key: str, part: ConfigPart) -> str:
        """Return the variable of the workers' environment that a server receives; its value is not stored."""
        text = part.text()
        found = _ENV.fullmatch(text)
        if found is None and not (part.path and isinstance(part.path[-1], int)):
            text = key.upper().replace("-", "_")
            part.fault(f"a value {_STORED_SECRET}: write 'env:{text}', a variable with the whole value")
        return found[1] or found[2] if found else text

    def _common(self, part: ConfigPart) -> dict[str, object]:
        """Return the other fields of a function's tool, among them settings, as arguments that no model sees."""
        settings = part.at("settings")
        for each in (settings, part.at("permissions"), *map(part.at, self._extra(part))):
            _refuse_variables(each)
        values: dict[str, JsonValue] = {key: item.value for key, item in settings.entries() if key != "function"}
        values |= {key: part.at(key).value for key in self._extra(part)}
        if part.has("permissions"):
            values["permissions"] = part.at("permissions").value
        return {
            "values": values,
            "timeout_s": part.at("timeout").number(least=0.001, most=MAX_DURATION_S),
            "retries": either(part, "retry", "retry_count").count(),
        }

    @staticmethod
    def _extra(part: ConfigPart) -> frozenset[str]:
        """Return the keys of a tool that is a function that stand beside its settings, as one of them."""
        keys = part.value if isinstance(part.value, dict) else ()
        return frozenset(key for key in keys if key not in TOOL and nearest(key, TOOL, cutoff=MISTYPED) is None)

    # --- values -------------------------------------------------------------------------------------------------------

    def _text(self, part: ConfigPart, key: str) -> str:
        return self._resolved(part.at(key)) if part.has(key) else ""

    def _resolved(self, part: ConfigPart) -> str:
        """Return a text, or the value of the variable that `env:VAR` names. It is stored with each run, so it must not be a secret."""
        text = part.text()
        variable = _ENV.fullmatch(text.strip())
        if variable is None:
            return text
        name, default = variable[1] or variable[2], variable[3]
        if name not in self._environment and default is None:
            part.fault(f"the environment has no variable {name!r}")
        return self._environment.get(name, default or "")

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
        if (
            isinstance(item.value, dict) and "name" not in item.value and len(item.value) == 1
        ):  # `- my_tool: {retry_limit: 3}`
            name, options = next(item.entries())
        else:
            named = item.first("name", "id") if isinstance(item.value, dict) else item
            name = (named or item.at("name")).text()
        names += symbols.resolve_tool(item, name) if name else []
        if not options.has("id"):  # else it is a tool that stands in the list
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
    found["max_tokens"] = part.at("max_tokens").count(least=1)
    wanted = part.at("response_format")
    if wanted.value in _JSON_FORMATS:
        found["response_format"] = {"type": "json_object"}
    elif wanted.value is not None:
        wanted.warn(
            "no effect: only 'json' is a format that models are asked for; say in the prompt what the reply looks like"
        )
    return {key: value for key, value in found.items() if value is not None}


def _response_mode(part: ConfigPart) -> str | None:
    """Return the response mode; None, with a warning, if there is none of that name here."""
    if part.value is None or part.value in _RESPONSE_MODES:
        return part.value
    part.warn(
        f"no effect: there are the modes {' and '.join(map(repr, _RESPONSE_MODES))}; this is taken for {_RESPONSE_MODES[0]!r}"
    )
    return None


def _refuse_variables(part: ConfigPart) -> None:
    """Report each `env:VAR` within: it would not be resolved, or its value would be stored."""
    if isinstance(part.value, str) and (variable := _ENV.fullmatch(part.value)):
        part.fault(f"the value of {variable[1] or variable[2]!r} {_STORED_SECRET}")
    for key in (
        part.value if isinstance(part.value, dict) else range(len(part.value)) if isinstance(part.value, list) else ()
    ):
        _refuse_variables(part.at(key))


def _first_in(locations: Sequence[ConfigPart], *keys: str) -> ConfigPart | None:
    return next((found for location in locations if (found := location.first(*keys))), None)


def read_memory_flag(part: ConfigPart) -> bool:
    """Return whether memory is on: `memory: true`, or `memory: {enabled: true}`; words and settings of its storage have no effect."""
    if isinstance(part.value, dict):
        for key in part.value.keys() - {"enabled"}:
            if near := nearest(key, ("enabled",), cutoff=MISTYPED):
                part.at(key).fault(f"unknown key {key!r}{hint(near)}")
            else:
                part.at(key).warn("no effect: memory is kept in Redis")
        return part.at("enabled").boolean() is not False
    if isinstance(part.value, str):
        if part.value.lower() not in _OFF:
            part.warn("memory is on; this word has no effect beyond that, because memory is kept in Redis")
        return part.value.lower() not in _OFF
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
