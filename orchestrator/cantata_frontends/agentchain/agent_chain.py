"""The class AgentChain, with the documented names and parameters."""

from __future__ import annotations

import asyncio
import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cantata.errors import RunError
from cantata.flows.definitions import Agent, Definitions, Team
from cantata.flows.instructions import Instruction, PromptStep
from cantata.flows.wire import HistoryEntry, RunResult, TurnRequest, fault_of_session
from cantata.surfaces.chat import run_async
from cantata.values import as_text
from cantata_frontends.agentchain.chain_arguments import (
    check_agent,
    check_agents,
    check_description,
    check_known,
    read_histories,
    read_mode,
    read_router,
    read_rules,
    read_strategy,
    read_synthesizer,
    router_warnings,
)
from cantata_frontends.agentchain.chat_adapter import ChainChatBackend
from cantata_frontends.agentchain.run_log import LogWriter, RunLog
from cantata_frontends.promptchain import PromptChain
from cantata_frontends.promptchain.argument_values import check_keys, check_parameters, validated
from cantata_frontends.promptchain.instruction_lists import text_of
from cantata_frontends.promptchain.prompt_chain import definitions_of, prompt_folders
from cantata_frontends.promptchain.run_calls import TurnCall, answer_of, shared_client

TEAM = "team"
"""The name of the team in a chain's definitions."""


class AgentChain:
    """PromptChains that answer the turns of one conversation together: one of them is chosen, or several contribute.

    `execution_mode` is router, pipeline, round_robin or broadcast. `router` is a dict with models, instructions and
    decision_prompt_template, or a function `(user_input, history, agent_descriptions)`; `rules` are tried before it, without a model.
    `session` is the name of the conversation, generated if absent; `timeout_s` bounds a turn (300 if None).

    Workers execute it, as a PromptChain. Raises ValueError and TypeError for arguments that are not valid together, ConfigError for a
    function that no worker could import.
    """

    def __init__(
        self,
        agents: Mapping[str, PromptChain],
        agent_descriptions: Mapping[str, str] | None = None,
        router: Mapping[str, Any] | Callable[..., Any] | None = None,
        execution_mode: str = "router",
        max_history_tokens: int = 4000,
        log_dir: str | os.PathLike[str] | None = None,
        additional_prompt_dirs: Sequence[str] | None = None,
        verbose: bool = False,
        *,
        max_internal_steps: int = 3,
        synthesizer_config: Mapping[str, Any] | None = None,
        router_strategy: str = "single_agent_dispatch",
        auto_include_history: bool = False,
        default_agent: str | None = None,
        agent_history_configs: Mapping[str, Mapping[str, Any]] | None = None,
        cache_config: Mapping[str, Any] | None = None,
        rules: Iterable[Any] = (),
        session: str | None = None,
        timeout_s: float | None = None,
        **unknown: object,
    ) -> None:
        if unknown.pop("use_supervisor", False):
            raise TypeError("AgentChain has no supervisor: give a router, a dict or a function")
        others = [name for name in unknown if not name.startswith("supervisor_")]
        without_effect = [*check_parameters(others, _DEFAULTS, "AgentChain"), *_without_effect(cache_config)]
        check_agents(agents, agent_descriptions)
        self._mode = read_mode(execution_mode)
        self._agents = dict(agents)
        self._descriptions = dict(agent_descriptions or {})
        self._history_configs = dict(agent_history_configs or {})
        self._histories, history_warnings = read_histories(agent_history_configs, agents)
        self._functions: dict[str, Path | None] = {}
        self._prompt_folders = prompt_folders(additional_prompt_dirs or ())
        self._session = _session_of(session, cache_config)
        self._turn = validated(
            TurnRequest, "AgentChain", {"text": "{input}", "session": self._session, "timeout_s": timeout_s}
        )
        self._log = RunLog(log_dir, verbose=verbose)
        self.last_result: RunResult | None = None
        """The result of the last turn: its run's id, status, usage and more."""

        given = {
            "router": router, "rules": rules, "router_strategy": router_strategy, "default_agent": default_agent,
            "max_internal_steps": max_internal_steps, "synthesizer_config": synthesizer_config,
        }  # fmt: skip
        own, warnings = self._fields_of_mode(given)
        self._team_fields = {
            **own, "mode": self._mode, "max_history_tokens": max_history_tokens, "auto_include_history": auto_include_history,
        }  # fmt: skip
        self._team = self._build_team(self._agents)
        self._log.write(
            "AgentChain initialized", {"mode": self._mode, "agents": list(self._agents), "session": self._session}
        )
        for warning in (*_unused(self._mode, given), *warnings, *history_warnings, *without_effect):
            self._log.write("warning", {"message": warning, "session": self._session}, warns=True)

    def _fields_of_mode(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the fields of the team that belong to its mode, and warnings."""
        match self._mode:
            case "router":
                if given["default_agent"] is not None:
                    check_known([given["default_agent"]], self._agents, "default_agent")
                strategy = read_strategy(given["router_strategy"])
                router = read_router(given["router"], strategy, self._prompt_folders, self._functions)
                rules = read_rules(given["rules"], self._functions)
                as_given = {key: given[key] for key in ("default_agent", "max_internal_steps")}
                return {**as_given, "router": router, "rules": rules, "strategy": strategy}, router_warnings(
                    given["router"]
                )
            case "broadcast":
                synthesizer, fault = read_synthesizer(given["synthesizer_config"], self._prompt_folders)
                return {"synthesizer": synthesizer}, [
                    f"{fault}; the answers are not merged, but returned as JSON"
                ] if fault else []
        return {}, []

    # --- turns ------------------------------------------------------------------------------------------------------

    async def process_input(self, user_input: str) -> str:
        """Let the agents answer, as the mode determines. Raises RunError if the turn does not succeed. Cancelling it cancels the run.

        An answer that is not a text, such as the list of a `full_history`, is returned as JSON.
        """
        return await self._ask(self._turn_of(user_input))

    async def run_chat_turn_async(self, user_input: str) -> str:
        """Do the same as `process_input`."""
        return await self.process_input(user_input)

    async def run_agent_direct(self, agent_name: str, user_input: str, send_history: bool = False) -> str:
        """Let one agent answer without routing; with `send_history` its prompt has the conversation so far. Raises RunError."""
        try:
            return await self._ask(self._turn_of(user_input, agent=agent_name, send_history=send_history))
        except RunError as error:
            message = f"I encountered an error running the {agent_name}: {error}"
            raise RunError(message, run_id=error.run_id, status=error.status, code=error.code) from error

    async def run_chat(self) -> None:
        """Chat on the terminal, until `exit`. `@agent: text` asks one agent, `@history @agent: text` with the conversation so far."""
        log = self._log.for_chat()
        client = (await asyncio.to_thread(shared_client, "AgentChain")).with_definitions(self._definitions(stream=True))
        backend = ChainChatBackend(client, self._turn.model_copy(update={"team": TEAM}), self._team, log)
        log.write("chat_started", {"session": self._session, "mode": self._mode})
        try:
            await run_async(backend)
        finally:
            backend.close()
            log.write("chat_ended", {"session": backend.session})

    def history(self) -> list[HistoryEntry]:
        """Return the messages of the conversation, oldest first."""
        return shared_client("AgentChain").sessions.history(self._session)

    @property
    def session(self) -> str:
        """The name of the conversation."""
        return self._session

    async def _ask(self, turn: TurnRequest) -> str:
        on_event = LogWriter(turn, self._team, self._log) if self._log.is_wanted else None
        self.last_result = result = await TurnCall(
            self.definitions, turn, on_event=on_event, source="AgentChain"
        ).result_async()
        return as_text(answer_of(result))

    def _turn_of(self, text: object, *, agent: str | None = None, send_history: bool = False) -> TurnRequest:
        if agent is not None and agent not in self._agents:
            raise ValueError(f"there is no agent {agent!r}; the agents are {', '.join(map(repr, self._agents))}")
        if not self._agents:
            raise ValueError(f"No agents configured for {self._mode}.")
        if not isinstance(text, str):
            raise ValueError(f"the input is a text, not {text!r}")
        if not text.strip():
            raise ValueError("Input cannot be empty.")
        target = {"agent": agent, "send_history": send_history} if agent else {"team": TEAM}
        return self._turn.model_copy(update={"text": text, **target})

    # --- agents -----------------------------------------------------------------------------------------------------

    @property
    def agents(self) -> Mapping[str, PromptChain]:
        """The agents, by name; `add_agent` and `remove_agent` change them."""
        return MappingProxyType(self._agents)

    @property
    def agent_descriptions(self) -> Mapping[str, str]:
        """The descriptions of the agents, by name."""
        return MappingProxyType(self._descriptions)

    @property
    def execution_mode(self) -> str:
        """The mode: router, pipeline, round_robin or broadcast."""
        return self._mode

    @property
    def router_strategy(self) -> str:
        """The strategy of a router: single_agent_dispatch, static_plan or dynamic_decomposition."""
        return self._team.strategy

    @property
    def auto_include_history(self) -> bool:
        """True if each agent's input begins with the conversation so far."""
        return self._team.auto_include_history

    @property
    def agent_history_configs(self) -> Mapping[str, Mapping[str, Any]]:
        """The history settings of agents, as they were given."""
        return MappingProxyType(self._history_configs)

    def add_agent(self, name: str, agent: PromptChain, description: str) -> None:
        """Add an agent, from the next turn on. Raises ValueError or TypeError."""
        check_agent(name, agent)
        check_description(name, description)
        if name in self._agents:
            raise ValueError(f"there is an agent {name!r} already")
        self._team = self._build_team([*self._agents, name])
        self._agents[name], self._descriptions[name] = agent, description
        self._log.write("add_agent", {"agent": name, "session": self._session})

    def remove_agent(self, name: str) -> None:
        """Remove an agent, from the next turn on. Raises ValueError if it is unknown, or a rule or `default_agent` names it."""
        check_known([name], self._agents, "remove_agent")
        remaining = [other for other in self._agents if other != name]
        if remaining:
            self._team = self._build_team(remaining)
        del self._agents[name], self._descriptions[name]
        self._histories.pop(name, None)
        self._log.write("remove_agent", {"agent": name, "session": self._session})

    # --- definitions ------------------------------------------------------------------------------------------------

    @property
    def definitions(self) -> Definitions:
        """The definitions of an equal configuration, in which each chain is an agent of one team. Raises ConfigError."""
        return self._definitions()

    def _definitions(self, **more: object) -> Definitions:
        found = definitions_of(self._agents, self._functions, source="AgentChain")
        agents = {name: self._as_member(name, agent).model_copy(update=more) for name, agent in found.agents.items()}
        return found.model_copy(update={"agents": agents, "teams": {TEAM: self._team}})

    def _as_member(self, name: str, agent: Agent) -> Agent:
        """Return an agent with the description and history settings of this chain."""
        own = {"description": self._descriptions.get(name, ""), "history": self._histories.get(name, agent.history)}
        return agent.model_copy(update={**own, "instructions": list(map(self._with_text, agent.instructions))})

    def _with_text(self, instruction: Instruction) -> Instruction:
        if isinstance(instruction, str):
            return text_of(instruction, self._prompt_folders)
        if isinstance(instruction, PromptStep):
            return instruction.model_copy(update={"prompt": text_of(instruction.prompt, self._prompt_folders)})
        return instruction

    def _build_team(self, agents: Iterable[str]) -> Team:
        return validated(Team, "AgentChain", {**self._team_fields, "agents": list(agents)})


_DEFAULTS = {
    name: each.default
    for name, each in inspect.signature(AgentChain).parameters.items()
    if each.kind is not each.VAR_KEYWORD
}
_ROUTER_PARAMETERS = ("router", "rules", "router_strategy", "default_agent", "max_internal_steps")
_PARAMETER_MODES = {**dict.fromkeys(_ROUTER_PARAMETERS, "router"), "synthesizer_config": "broadcast"}
"""Parameter → the only mode that uses it."""


def _unused(mode: str, given: Mapping[str, object]) -> list[str]:
    """Return a warning for each parameter that the mode does not use."""
    unused = [
        name for name, value in given.items() if value and value != _DEFAULTS[name] and mode != _PARAMETER_MODES[name]
    ]
    return [f"{name} is used in mode {_PARAMETER_MODES[name]!r} only, and this is {mode!r}" for name in unused]


_OF_A_FILE = ("path", "include_all_agents")
"""Keys of `cache_config` that tell of the file in which AgentChain keeps a conversation."""


def _without_effect(cache_config: Mapping[str, Any] | None) -> list[str]:
    """Return a warning for each part of `cache_config` that has no effect."""
    found = [key for key in _OF_A_FILE if key in (cache_config or {})]
    return [
        f"cache_config: {key!r} has no effect: conversations are stored in Redis; 'name' is the session"
        for key in found
    ]


def _session_of(session: str | None, cache_config: Mapping[str, Any] | None) -> str:
    """Return the session. The `name` of `cache_config`, which named a file of turns in AgentChain, is the session in Redis."""
    if cache_config is not None:
        check_keys(cache_config, ("name", *_OF_A_FILE), "cache_config")
        named = cache_config.get("name")
        if session is not None and named not in (None, session):
            raise ValueError(f"session {session!r} and cache_config name {named!r} mean the same: give one of them")
        session = session or named
    name = f"agentchain-{uuid.uuid4().hex[:12]}" if session is None else session
    if fault := fault_of_session(name):
        raise ValueError(fault)
    return name
