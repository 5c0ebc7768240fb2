"""PromptChain in Python: models, instructions and functions in a row, done by workers and kept through crashes."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from orchestrator.client import Client, EmbeddedClient
from orchestrator.config import settings
from orchestrator.embedded import attach
from orchestrator.errors import CantataError, ConfigError
from orchestrator.functionnames import name_of
from orchestrator.models.definitions import Agent, Definitions, McpServer, Model, Tool
from orchestrator.models.instructions import AgenticStep, FunctionStep, Instruction, Nested, Prompt
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import RunResult

CHAIN = "chain"  # the name of a chain among its own definitions
IN_WORKER = "CANTATA_WORKER"  # set in workers, which import the modules of functions

_lock = threading.Lock()
_embedded: EmbeddedClient | None = None


class RunError(CantataError):
    """A run did not succeed; `result` tells how far it came."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        super().__init__(result.error.message if result.error else f"the run is {result.status}")


def AgenticStepProcessor(  # the documented name
    objective: str, max_internal_steps: int = 5, model_name: str | None = None, model_params: Mapping[str, JsonValue] | None = None,
    history_mode: str = "minimal", max_tool_rounds: int = 40, tools: Sequence[str] | None = None,
) -> AgenticStep:  # fmt: skip
    """An objective that a model works at with the chain's tools, as one instruction. Raises ValueError for an empty objective."""
    if not isinstance(objective, str) or not objective.strip():
        raise ValueError("an agentic step needs an objective, which is a text")
    return AgenticStep.model_validate(
        {
            "objective": objective, "max_internal_steps": max_internal_steps, "max_tool_rounds": max_tool_rounds, "model_name": model_name,
            "model_params": dict(model_params or {}), "history_mode": history_mode, "tools": None if tools is None else list(tools),
        }
    )  # fmt: skip


class PromptChain:
    """Instructions done one after the other, each with the answer before it: texts for models, functions, agentic steps, other chains.

    `models` are names or `{"name", "params"}`, one for all texts or one for each. The work is done by the workers at REDIS_URL, or of the
    stack that `submit up` keeps in this folder; else a stack is started for this process. Raises ValueError or ConfigError for what does
    not fit together.
    """

    def __init__(
        self,
        models: Sequence[str | Mapping[str, Any]] | str | Mapping[str, Any],
        instructions: Sequence[Any],
        full_history: bool = False,
        store_steps: bool = False,
        verbose: bool = False,
        chainbreakers: Sequence[Callable[..., Any]] | None = None,
        mcp_servers: Sequence[Mapping[str, Any]] | None = None,
        additional_prompt_dirs: Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        given = [models] if isinstance(models, str | Mapping) else list(models)
        self._models = [model if isinstance(model, str) else _model(model) for model in given]
        self._folders: set[Path] = set()
        self._nested: dict[str, PromptChain] = {}
        self._prompt_dirs = [Path(folder) for folder in additional_prompt_dirs or ()]
        self._instructions = [self._instruction(each) for each in instructions]
        self._breakers = [self._named(breaker) for breaker in chainbreakers or ()]
        self._full_history = full_history
        self._store_steps = store_steps
        self._timeout_s = timeout_s
        self.verbose = verbose
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._servers = {str(server["id"]): _server(server) for server in mcp_servers or ()}
        self.last_result: RunResult | None = None
        """How the last run ended."""
        self.definitions  # noqa: B018  # what does not fit together is told now

    # --- running ----------------------------------------------------------------------------------------------------

    def process_prompt(self, initial_input: str) -> Any:
        """Run the chain on a text and wait for what comes of it. Raises RunError if the run does not succeed."""
        if os.environ.get(IN_WORKER):
            raise ConfigError(
                "a worker imported this module for one of its functions, and it runs a chain while it is imported; "
                "put that under `if __name__ == '__main__':`",
                source="PromptChain",
            )
        with client_for(self.definitions) as client:
            result = client.submit_turn(initial_input, agent=CHAIN, timeout_s=self._timeout_s).result()
        self.last_result = result
        if result.status != "succeeded":
            raise RunError(result)
        return result.output

    async def process_prompt_async(self, initial_input: str) -> Any:
        """The same, beside other coroutines."""
        return await asyncio.to_thread(self.process_prompt, initial_input)

    @property
    def step_outputs(self) -> dict[str, Any]:
        """What each step of the last run gave, with `store_steps`: `step_0` is the input."""
        return dict(self.last_result.steps) if self.last_result else {}

    def get_step_output(self, step_number: int) -> Any:
        """What a step of the last run gave. Raises ValueError if nothing is stored of it."""
        name = f"step_{step_number}"
        if name not in self.step_outputs:
            raise ValueError(f"there is no {name}: use store_steps=True and run the chain; there are {sorted(self.step_outputs)}")
        return self.step_outputs[name]

    # --- tools ------------------------------------------------------------------------------------------------------

    def add_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Tell models of functions by their schemas, as OpenAI writes them; each is registered under the same name."""
        for tool in tools:
            schema = cast("Mapping[str, Any]", tool.get("function", tool))
            name = str(schema.get("name", ""))
            if not name or name.startswith("mcp_"):
                raise ValueError(f"{name!r} is no name for a tool; names that begin with 'mcp_' are those of MCP servers")
            self._schemas[name] = schema
        self._forget()

    def register_tool_function(self, func: Callable[..., Any]) -> None:
        """The function that models call under its own name."""
        name = func.__name__
        if self._schemas and name not in self._schemas and not self._functions.keys() - self._schemas.keys():
            unmatched = sorted(self._schemas.keys() - self._functions.keys())
            if unmatched:
                raise ValueError(f"no schema has the name of the function {name!r}; schemas without a function: {', '.join(unmatched)}")
        self._functions[name] = func
        self._forget()

    def _forget(self) -> None:
        self.__dict__.pop("_definitions", None)

    # --- definitions ------------------------------------------------------------------------------------------------

    @property
    def definitions(self) -> Definitions:
        """The chain as configuration would declare it."""
        tools = {name: self._tool(name, function) for name, function in self._functions.items()}
        tools |= {name: Tool(mcp=server) for name, server in self._servers.items()}
        own = Agent(
            models=self._models, instructions=self._instructions, tools=list(tools),
            chainbreakers=self._breakers, full_history=self._full_history, store_steps=self._store_steps,
        )  # fmt: skip
        agents = {CHAIN: own}
        folders = set(self._folders)
        for name, nested in self._nested.items():
            inner = nested.definitions
            agents |= {name: inner.agents[CHAIN], **{key: agent for key, agent in inner.agents.items() if key != CHAIN}}
            tools |= inner.tools
            folders |= {Path(inner.folder)} if inner.folder else set()
        if len(folders) > 1:
            raise ConfigError(
                f"the functions lie in several folders ({', '.join(sorted(map(str, folders)))}): put them in one, or install their package",
                source="PromptChain",
            )
        return Definitions(folder=str(folders.pop()) if folders else None, agents=agents, tools=tools)

    def _instruction(self, given: Any) -> Instruction:
        if isinstance(given, str):
            return self._text(given)
        if isinstance(given, AgenticStep | Prompt | Nested | FunctionStep):
            return given
        if isinstance(given, PromptChain):
            name = f"{CHAIN}.{len(self._nested) + 1}.{id(given):x}"
            self._nested[name] = given
            return Nested(agent=name)
        if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str):
            return Prompt(prompt=self._text(given[0]), tools=[tool if isinstance(tool, str) else tool.__name__ for tool in given[1]])
        if callable(given):
            return FunctionStep(function=self._named(given))
        raise ValueError(f"an instruction is a text, a function, an agentic step, a chain, or (text, [tools]); not {given!r}")

    def _text(self, text: str) -> str:
        """A text, or that of a file in one of the prompt folders that is named by it."""
        if "\n" in text or len(text) > 200:
            return text
        files = (folder / f"{text}{suffix}" for folder in self._prompt_dirs for suffix in ("", ".md", ".txt", ".jinja2"))
        file = next((file for file in files if file.is_file()), None)
        return file.read_text() if file else text

    def _named(self, function: Callable[..., Any]) -> str:
        name, folder = name_of(function)
        if folder is not None:
            self._folders.add(folder)
        return name

    def _tool(self, name: str, function: Callable[..., Any]) -> Tool:
        schema = self._schemas.get(name)
        if self._schemas and schema is None:
            raise ValueError(f"there is no schema for the function {name!r}; schemas are there for {', '.join(sorted(self._schemas))}")
        settings_of = dict(getattr(function, "__cantata_tool__", {}))
        return Tool.model_validate({
            **settings_of, "function": self._named(function),
            **({"description": schema.get("description", ""), "parameters": dict(schema.get("parameters", {}))} if schema else {}),
        })  # fmt: skip


def client_for(definitions: Definitions) -> Client:
    """A client at REDIS_URL, else at the stack kept in this folder, else at one that lives as long as this process."""
    global _embedded
    kept = None if settings().redis_url else attach()
    if settings().redis_url or kept:
        return Client(kept.url if kept else None, config=definitions)
    with _lock:
        if _embedded is None:
            _embedded = EmbeddedClient(config=definitions)
            atexit.register(_embedded.close)
        return Client(_embedded.redis_url, config=definitions)


def _model(given: Mapping[str, Any]) -> Model:
    return Model(model=str(given.get("name") or given["model"]), params=dict(given.get("params", {})))


def _server(given: Mapping[str, Any]) -> McpServer:
    if given.get("url"):
        return McpServer(url=str(given["url"]))
    return McpServer(command=[str(given["command"]), *map(str, given.get("args", []))], env=list(given.get("env", {})))
