"""The symbol table of a configuration: agents and their variants, tools, functions, chains."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cantata.config.user_code.function_source import definition_of, fault_of
from cantata.config.user_code.script_digest import digest_of, name_of
from cantata.flows.definitions import Agent, ScriptReference, Tool
from cantata.text.suggestions import did_you_mean, nearest
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.inputs import ChainInputs
from cantata_frontends.langswarm.config_part import MISTYPED, ConfigPart

RUNTIME = "cantata.frontends.langswarm.workflows.inputs"  # as runs store it, see built_ins.py
VALUE = "langswarm.value"
"""The tool that returns its argument: a `transform` without a function."""
CHECK = "langswarm.check"
"""The tool that validates a workflow's input."""

CLARIFY = "clarify"
_QUESTION: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "one clear question"},
        "scope": {
            "enum": ["local", "parent_workflow", "root_user"],
            "description": "who is to answer it; the user, if in doubt",
        },
        "context": {"type": "string", "description": "what you found so far, and what you need to know it for"},
    },
    "required": ["prompt"],
}


def defined_in(script: str) -> Mapping[str, ast.AST]:
    """Return the functions that Python source defines. Raises SyntaxError."""
    return {
        each.name: each for each in ast.parse(script).body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@dataclass
class SymbolTable:
    """The names that chains may refer to; filled while files are read: agents and tools first, then those of steps."""

    folder: Path | None
    agents: dict[str, Agent] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    methods: dict[str, list[str]] = field(default_factory=dict)
    """Tool with methods → the tools of its methods."""
    scripts: dict[str, str] = field(default_factory=dict)
    """Tool whose function is defined in the file → the source."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Tool that is a program of LangSwarm's own → the fault of a step that calls it."""
    chains: dict[str, ChainInputs] = field(default_factory=dict)
    """Chain → its declared inputs."""

    @property
    def tool_names(self) -> list[str]:
        """The names that an agent or a step may use as a tool."""
        return [*dict.fromkeys([*self.methods, *self.tools, *self.unavailable, CLARIFY])]

    def resolve_tool(self, part: ConfigPart, name: str, *, is_called: bool = False) -> list[str]:
        """Return the tools that a name refers to: in an agent's list, where one that is missing is a warning, or as a step's call."""
        if name == CLARIFY and name not in self.tools:
            description = "Asks a person for what is missing or not clear, and waits for the answer."
            self.tools[name] = Tool(asks=True, description=description, parameters=dict(_QUESTION))
        if name in self.methods:
            return self.methods[name]
        server, dot, _ = name.partition(".")
        if name in self.tools or (dot and server in self.tools and self.tools[server].mcp):
            return [name]
        if server in self.unavailable:
            if is_called:
                part.fault(self.unavailable[server])
        elif is_called or nearest(name, self.tool_names, cutoff=MISTYPED):
            part.is_known(name, self.tool_names, "tool")
        else:
            part.warn(f"no effect: there is no tool {name!r} under 'tools', so the agent goes without it")
        return []

    def variant(self, agent: str, location: str, changes: Mapping[str, object]) -> str:
        """Return the name of a variant of an agent with changes, for one location in the chains."""
        if not changes:
            return agent
        name = f"{agent}@{location}"
        self.agents[name] = self.agents[agent].model_copy(update=dict(changes))
        return name

    # --- functions ----------------------------------------------------------------------------------------------------

    def value_tool(self) -> str:
        """Return the tool that returns its argument."""
        self.tools[VALUE] = Tool(function=f"{RUNTIME}:value", description="Returns its argument.", cheap=True)
        return VALUE

    def check_tool(self) -> str:
        """Return the tool that validates a workflow's input."""
        self.tools[CHECK] = Tool(
            function=f"{RUNTIME}:check", description="Validates an input against its schema.", cheap=True
        )
        return CHECK

    def script(self, name: str, part: ConfigPart, location: str) -> str:
        """Return the tool of a function defined in the file; its source stays there, and workers read it there."""
        tool, text, folder = f"{name}@{location}", part.text(), self.folder or Path()
        self.tools[tool] = Tool(
            script=ScriptReference(
                file=name_of(Path(part.document.source), folder), function=name, digest=digest_of(text)
            )
        )
        self.scripts[tool] = text
        return tool

    def function(self, part: ConfigPart) -> str | None:
        """Return the tool of a step's `function`: `module.name`, `module:name`, a tool's name, or that of a function beside the file."""
        name = part.text().strip()
        if name in self.tools:
            return name
        found = self._found(part, name) if name else None
        if found is None:
            return None
        self.tools.setdefault(name, Tool(function=found))
        return name

    def resolved(self, part: ConfigPart) -> str | None:
        """Return the `module:name` of a function; None with a fault."""
        return self._found(part, part.text().strip())

    def first_parameter(self, tool: str) -> str | None:
        """Return the name of a function's first parameter, from its source."""
        function, script = self.tools[tool].function, self.tools[tool].script
        if script is not None:
            node: ast.AST | None = defined_in(self.scripts[tool]).get(script.function)
        else:
            definition = definition_of(function, folder=self.folder) if function else None
            node = definition.node if definition else None
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        return next((name for name in names if name != "context"), None)

    def _found(self, part: ConfigPart, name: str) -> str | None:
        module, _, last = name.rpartition(":") if ":" in name else name.rpartition(".")
        if not module:
            return self._beside(part, name)
        message = fault_of(f"{module}:{last}", folder=self.folder)
        if message:
            is_own = module.partition(".")[0] == "langswarm"
            part.fault(
                f"{name!r} is a function of LangSwarm's own; write 'module:name' of one of yours" if is_own else message
            )
            return None
        return f"{module}:{last}"

    def _beside(self, part: ConfigPart, name: str) -> str | None:
        """Find a function that is named without its module."""
        modules = sorted(file.stem for file in self.folder.glob("*.py")) if self.folder else []
        found = [module for module in modules if fault_of(f"{module}:{name}", folder=self.folder) is None]
        if len(found) == 1:
            return f"{found[0]}:{name}"
        if found:
            part.fault(
                f"function {name!r} is in {' and in '.join(f'{module}.py' for module in found)}: write '{found[0]}.{name}'"
            )
        else:
            known = did_you_mean(name, self.tool_names) if self.tools else ""
            part.fault(f"function {name!r} is in no module beside the file, and there is no tool of that name{known}")
        return None
