"""The class PromptChain, with the documented names and parameters."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from cantata.bounds import duration_of
from cantata.config.user_code.function_names import name_of, shared_folder
from cantata.errors import ConfigError, UnavailableError
from cantata.flows.definitions import Agent, Definitions, Tool
from cantata.flows.instructions import AgenticStep, FunctionStep, Instruction, MemoryStep, NestedStep, PromptStep
from cantata.flows.wire import RunResult, TurnRequest
from cantata.values import JsonValue
from cantata_frontends.promptchain.argument_values import check_list, check_parameters, validated
from cantata_frontends.promptchain.instruction_lists import models_for, script_folder, text_of
from cantata_frontends.promptchain.memory_methods import MemoryMethods, memory_function
from cantata_frontends.promptchain.run_calls import (
    TurnCall,
    answer_of,
    enable_log_output,
    log,
    log_event,
    shared_client,
)
from cantata_frontends.promptchain.toolbox import Toolbox

CHAIN = "chain"
"""The name of a chain in its own definitions; chains within it are `chain.2` for the second instruction, and so on."""

DEFAULT_STEP_TIMEOUT_S = 60.0  # the default of every agent

_CIRCULAR = frozenset({"circular", "max_iterations", "on_iteration"})
"""Parameters that a guide of PromptChain names, and PromptChain does not have."""


class PromptChain(MemoryMethods):
    """Instructions executed in order, each with the answer before it: texts for models, functions, agentic steps, other chains.

    `models` are names or `{"name", "params"}`: one for all texts, or one for each. A text or an agentic step with some tools of its own is
    `(text, [names])`. `timeout_s` bounds a whole run (300 if None), `step_timeout_s` one model call or function.
    `labels` are those of its runs; the label `tenant` names their tenant.

    The workers at REDIS_URL execute it, or those of the stack that `submit up` keeps in this folder; otherwise it starts a stack that ends
    with this process. Raises ValueError for arguments that are not valid together, ConfigError for a function that no worker could import.
    """

    def __init__(
        self,
        models: Sequence[str | Mapping[str, Any]],
        instructions: Sequence[Any],
        full_history: bool = False,
        store_steps: bool = False,
        verbose: bool = False,
        chainbreakers: Sequence[Callable[..., Any]] | None = None,
        mcp_servers: Sequence[Mapping[str, Any]] | None = None,
        additional_prompt_dirs: Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
        **unknown: object,
    ) -> None:
        if not _CIRCULAR.isdisjoint(unknown):
            raise TypeError(
                "a PromptChain has no circular runs: call process_prompt in a loop, each time with the answer before"
            )
        for warning in check_parameters(unknown, inspect.signature(PromptChain).parameters, "PromptChain"):
            log.warning("%s", warning)
        if step_timeout_s <= 0:
            raise ValueError(f"step_timeout_s is more than 0 seconds, not {step_timeout_s}")
        duration_of(step_timeout_s, "step_timeout_s")
        self._toolbox = Toolbox(mcp_servers or ())
        self._functions: dict[str, Path | None] = {}
        self._prompt_folders = prompt_folders(additional_prompt_dirs or ())
        self.models = [models] if isinstance(models, str | Mapping) else list(models)
        """The models, as they were given; changing the list has no effect. So with `instructions`."""
        check_list(instructions, "instructions")
        self.instructions = list(instructions)
        self._instructions = [self._read(each) for each in self.instructions]
        if not self._instructions:
            raise ValueError("there are no instructions")
        self._models = models_for(self.models, self._instructions)
        check_list(chainbreakers or [], "chainbreakers")
        self._breakers = [self._register_function(breaker) for breaker in chainbreakers or ()]
        self._full_history = full_history
        self._store_steps = store_steps
        self._turn = validated(TurnRequest, "PromptChain", {"text": "{input}", "agent": CHAIN, "timeout_s": timeout_s})
        self._step_timeout_s = step_timeout_s
        self._verbose = verbose
        self._labels = dict(labels or {})
        self.last_result: RunResult | None = None
        """The result of the last run: its id, status, usage and more."""
        self._agent(CHAIN)  # so that faults are raised here
        if verbose:
            enable_log_output()

    @property
    def timeout_s(self) -> float | None:
        """The time limit of a whole run, if one was given."""
        return self._turn.timeout_s

    # --- running ----------------------------------------------------------------------------------------------------

    def process_prompt(self, initial_input: str) -> Any:
        """Run the chain on a text and return its answer: a text, or with `full_history` the list of all steps.

        Raises RunError if the run does not succeed. Ctrl-C cancels it.
        """
        return self._answer(self._call(initial_input).result())

    async def process_prompt_async(self, initial_input: str) -> Any:
        """Like `process_prompt`, for coroutines. Cancelling it cancels the run."""
        return self._answer(await self._call(initial_input).result_async())

    @property
    def step_outputs(self) -> dict[str, JsonValue]:
        """The output of each step of the last run, with `store_steps`: `step_0` is the input, each is {type, output, ...}."""
        return dict(self.last_result.steps) if self.last_result else {}

    def get_step_output(self, step_number: int) -> Any:
        """Return the output of a step of the last run. Raises ValueError if it is not known."""
        outputs = self.step_outputs
        if not self._store_steps:
            raise ValueError("outputs of steps are not stored; create the chain with store_steps=True")
        if f"step_{step_number}" not in outputs:
            raise ValueError(
                f"there is no step_{step_number}: {', '.join(outputs) or 'no run has ended with an answer'}"
            )
        return outputs[f"step_{step_number}"]

    def _call(self, text: str) -> TurnCall:
        if not isinstance(text, str):
            raise ValueError(f"the input of a chain is a text, not {text!r}")
        verbose = any(chain._verbose for _, chain in self._with_nested(CHAIN))
        return TurnCall(
            self.definitions,
            self._turn.model_copy(update={"text": text}),
            labels=self._labels,
            on_event=log_event if verbose else None,
        )

    def _answer(self, result: RunResult) -> Any:
        self.last_result = result
        return answer_of(result)

    # --- tools ------------------------------------------------------------------------------------------------------

    def add_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Add schemas of functions in OpenAI's format; each names the registered function that it describes. Raises ValueError."""
        self._toolbox.add_schemas(tools)

    def register_tool_function(self, func: Callable[..., Any]) -> None:
        """Let the models call a function. Without a schema, its signature and docstring describe it. Raises ValueError or ConfigError."""
        self._toolbox.register(func)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas that were added, in OpenAI's format."""
        return self._toolbox.schemas()

    @property
    def mcp_helper(self) -> McpHelper | None:
        """A check that the MCP servers of the chain answer; None if it has none. Workers connect to them by themselves."""
        has_servers = any(
            tool.mcp for _, chain in self._with_nested(CHAIN) for tool in chain._toolbox.servers().values()
        )
        return McpHelper(lambda: self.definitions) if has_servers else None

    async def connect_mcp_async(self) -> None:
        """Like `mcp_helper.connect_mcp_async`; without servers there is nothing to check."""
        if helper := self.mcp_helper:
            await helper.connect_mcp_async()

    async def close_mcp_async(self) -> None:
        """Do nothing: the connections belong to the workers."""

    # --- definitions ------------------------------------------------------------------------------------------------

    @property
    def definitions(self) -> Definitions:
        """The definitions of an equal configuration, in which the chain is the agent `chain`. Raises ConfigError."""
        return definitions_of({CHAIN: self})

    def _create_memory_chain(self, chain_id: str, namespace: str, instructions: Sequence[Any]) -> PromptChain:
        return create_memory_chain(chain_id, namespace, instructions, models=self.models[:1], labels=self._labels)

    def _with_nested(self, name: str) -> Iterator[tuple[str, PromptChain]]:
        yield name, self
        for number, each in enumerate(self._instructions, start=1):
            if isinstance(each, PromptChain):
                yield from each._with_nested(f"{name}.{number}")

    def _agent(self, name: str) -> Agent:
        """Return the chain as an agent, without its tools."""
        instructions = [
            NestedStep(agent=f"{name}.{number}") if isinstance(each, PromptChain) else each
            for number, each in enumerate(self._instructions, start=1)
        ]
        fields = {
            "models": self._models, "instructions": instructions, "chainbreakers": self._breakers, "full_history": self._full_history,
            "store_steps": self._store_steps, "timeout_s": self._step_timeout_s, "stream": False,
        }  # fmt: skip
        return validated(Agent, "PromptChain", fields)

    def _agent_with_tools(self, name: str) -> Agent:
        agent = self._agent(name)
        return agent.model_copy(
            update={"tools": list(self._toolbox.tools()), "instructions": list(map(self._scoped, agent.instructions))}
        )

    def _scoped(self, instruction: Instruction) -> Instruction:
        """Return an instruction with the names of its own tools as definitions have them."""
        if not isinstance(instruction, PromptStep | AgenticStep) or instruction.tools is None:
            return instruction
        return instruction.model_copy(update={"tools": list(map(self._toolbox.resolve, instruction.tools))})

    def _read(self, given: Any) -> Instruction | PromptChain:
        match given:
            case str():
                return text_of(given, self._prompt_folders)
            case PromptChain() if given.timeout_s:
                raise ValueError("timeout_s is for a whole run: give it to the outermost chain only")
            case PromptChain() | AgenticStep() | MemoryStep():
                return given
            case (str() | AgenticStep() as scoped, list() | tuple() as tools):
                names = [tool if isinstance(tool, str) else self._toolbox.register(tool) for tool in tools]
                if isinstance(scoped, AgenticStep):
                    return scoped.model_copy(update={"tools": names})
                return PromptStep(prompt=text_of(scoped, self._prompt_folders), tools=names)
        if callable(given):
            return self._register_function(given)
        raise ValueError(
            f"an instruction is a text, a function, an agentic step, a chain, (text, [tools]) or (agentic step, [tools]); not {given!r}"
        )

    def _register_function(self, function: Callable[..., Any]) -> FunctionStep:
        """Return a function by its name; the arguments of a `functools.partial` must be JSON. Raises ConfigError, ValueError."""
        given = partial(function)
        name, folder = name_of(given.func)
        if given.keywords and (by_name := _only_by_name(given)):
            raise ValueError(
                f"functools.partial({name}, ...) takes {', '.join(map(repr, by_name))} only by name, but is called by position; "
                "give it the values of its first parameters by position too"
            )
        self._functions[name] = folder
        what = f"the arguments of functools.partial({name}, ...), which are stored with runs as JSON"
        return validated(FunctionStep, what, {"function": name, "args": list(given.args), "kwargs": given.keywords})


def _only_by_name(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a function must be given by name, except its context."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some C functions have none
        return []
    return [
        each.name
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty and each.name != "context"
    ]


def definitions_of(
    chains: Mapping[str, PromptChain],
    functions: Mapping[str, Path | None] | None = None,
    *,
    source: str = "PromptChain",
) -> Definitions:
    """Return the definitions of chains: each is an agent, and so is each chain within it. Raises ConfigError.

    `functions` are further functions that the definitions use: their names, as `name_of` returns them, and the folders they are in;
    `source` is the class that errors name.
    """
    agents: dict[str, Agent] = {}
    tools: dict[str, tuple[str, Tool]] = {}
    folders = dict(functions or {})
    for root, outer in chains.items():
        for name, chain in outer._with_nested(root):
            if name in agents:
                raise ConfigError(
                    f"agent {name!r} has the name of the chain within {root!r}; rename one", source=source
                )
            agents[name] = chain._agent_with_tools(name)
            for called, tool in chain._toolbox.tools().items():
                owner, known = tools.setdefault(called, (root, tool))
                if known != tool:
                    where = (
                        "a chain and another in a chain within it"
                        if owner == root
                        else f"agent {owner!r} and another in agent {root!r}"
                    )
                    raise ConfigError(f"tool {called!r} is one function in {where}", source=source)
            folders |= chain._functions | dict(map(name_of, chain._toolbox.functions()))
    folder = shared_folder(folders) or script_folder()  # commands of MCP servers run there
    return Definitions(folder=str(folder), agents=agents, tools={name: tool for name, (_, tool) in tools.items()})


def prompt_folders(given: str | Path | Sequence[str]) -> list[Path]:
    """Return the folders that are searched for the files of prompts: those given, or one, then that of the script. Raises ValueError."""
    folders = [Path(folder) for folder in ([given] if isinstance(given, str | Path) else given)]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"additional_prompt_dirs: there is no folder {str(folder)!r}")
    return [*folders, script_folder()]


# --- chains with memory -----------------------------------------------------------------------------------------------


def create_memory_chain(
    chain_id: str,
    namespace: str = "default",
    instructions: Sequence[Any] | None = None,
    *,
    models: Sequence[str | Mapping[str, Any]] = (),
    labels: Mapping[str, str] | None = None,
    **options: Any,
) -> PromptChain:
    """Return a chain whose input first goes through a memory function of the namespace. Its runs have its id as the label `chain`.

    `models` and `options` are those of `PromptChain`. Raises ValueError for arguments that are not valid together.
    """
    if not isinstance(chain_id, str) or not chain_id.strip():
        raise ValueError(f"chain_id is a text that names the chain, not {chain_id!r}")
    check_list(instructions or [], "instructions")
    return PromptChain(
        models,
        [memory_function(namespace), *(instructions or ())],
        labels={**(labels or {}), "chain": chain_id},
        **options,
    )


# --- MCP servers ------------------------------------------------------------------------------------------------------

CHECK = "cantata.workers.tools.mcp:faults"
WORKER_WAIT_S = 10.0  # beyond the servers' own limit: a worker may be busy


class McpHelper:
    """The MCP servers of a chain. Workers connect to them at the first call, and again after a connection is lost."""

    def __init__(self, definitions: Callable[[], Definitions]) -> None:
        self._definitions = definitions

    async def connect_mcp_async(self) -> None:
        """Let a worker connect to each server; optional. Raises UnavailableError with the names of those that do not answer."""
        faults = await asyncio.to_thread(self._faults)
        if faults:
            raise UnavailableError("; ".join(faults))

    async def close_mcp_async(self) -> None:
        """Do nothing: the connections belong to the workers."""

    def _faults(self) -> list[str]:
        definitions = self._definitions()
        servers = {name: tool.mcp for name, tool in definitions.tools.items() if tool.mcp}
        limit_s = max(server.connect_timeout_s for server in servers.values()) + WORKER_WAIT_S
        check = Tool(function=CHECK, queue="agents", timeout_s=limit_s)
        checked = {name: server.model_dump(exclude_defaults=True) for name, server in servers.items()}
        node = {
            "node_id": "check",
            "kind": "tool",
            "name": "check",
            "input": {"servers": checked, "folder": definitions.folder},
        }
        client = shared_client().with_definitions(Definitions(folder=definitions.folder, tools={"check": check}))
        response = client.submit_chain(
            {"nodes": [node], "entry_node": "check", "timeout": limit_s + WORKER_WAIT_S}
        ).result()
        if response.error:
            return [response.error.message]
        return cast("list[str]", response.final_output)
