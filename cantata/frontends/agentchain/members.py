"""Checks of the agents of an AgentChain, and their history settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cantata.frontends.promptchain import PromptChain
from cantata.frontends.promptchain.argument_values import check_keys, validated
from cantata.models.definitions import History
from cantata.suggestions import did_you_mean


def check_agents(agents: Mapping[str, PromptChain], descriptions: Mapping[str, str] | None) -> None:
    """Raise ValueError or TypeError for agents that are not valid, or descriptions that do not match them."""
    if not agents:
        raise ValueError("At least one agent must be provided.")
    for name, agent in agents.items():
        check_agent(name, agent)
    if not descriptions:
        raise ValueError("agent_descriptions is missing: a dict from each agent's name to its description")
    undescribed = [name for name in agents if name not in descriptions]
    if undescribed:
        raise ValueError(f"agent_descriptions has none for {', '.join(map(repr, undescribed))}")
    check_known(descriptions, agents, "agent_descriptions")
    for name, text in descriptions.items():
        check_description(name, text)


def check_agent(name: object, agent: object) -> None:
    """Raise ValueError for a name that is not valid, TypeError for an agent that is not a PromptChain."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"an agent's name is a text that is not empty, not {name!r}")
    if name.startswith(("@", "=")) or "/" in name:
        raise ValueError(f"agent {name!r}: a name begins with neither '@' nor '=', and has no '/' in it")
    if not isinstance(agent, PromptChain):
        raise TypeError(f"agent {name!r} is a PromptChain, not {agent!r}")
    if agent.timeout_s:
        raise ValueError(f"agent {name!r}: timeout_s is for a whole turn: give it to the AgentChain")


def check_description(name: str, text: object) -> None:
    """Raise ValueError for a description that is not a text."""
    if not isinstance(text, str):
        raise ValueError(f"the description of agent {name!r} is a text, not {text!r}")


def check_known(named: Collection[str], agents: Collection[str], what: str) -> None:
    """Raise ValueError for a name that no agent has."""
    for name in named:
        if name not in agents:
            raise ValueError(f"{what}: there is no agent {name!r}{did_you_mean(name, agents)}")


def read_histories(given: Mapping[str, Mapping[str, Any]] | None, agents: Collection[str]) -> dict[str, History]:
    """Return the history settings of agents, from `agent_history_configs`. Raises ValueError."""
    configs = given or {}
    check_known(configs, agents, "agent_history_configs")
    found = {}
    for name, config in configs.items():
        what = f"agent_history_configs[{name!r}]"
        if not isinstance(config, Mapping):
            raise ValueError(f"{what} is a dict, not {config!r}")
        check_keys(config, History.model_fields, what)
        found[name] = validated(History, what, {"enabled": True, **config})
        check_known(found[name].exclude_sources, agents, f"{what}: exclude_sources")
    return found
