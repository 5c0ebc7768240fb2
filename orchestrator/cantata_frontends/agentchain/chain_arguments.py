"""The arguments of an AgentChain as values: its agents, and the routers, rules and synthesizers of its modes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any, get_args

from cantata.config.user_code.function_names import name_of
from cantata.flows.definitions import History, Router, Strategy, Synthesizer, TeamRule
from cantata.text.suggestions import did_you_mean, nearest
from cantata_frontends.promptchain import PromptChain
from cantata_frontends.promptchain.argument_values import check_keys, check_list, validated
from cantata_frontends.promptchain.instruction_lists import models_for, text_of
from cantata_frontends.promptchain.prompt_chain import prompt_folders

MODES = ("router", "pipeline", "round_robin", "broadcast")
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

ROUTER_KEYS = (
    "models",
    "instructions",
    "decision_prompt_template",
    "decision_prompt_templates",
    "timeout_s",
    "retries",
)
_OWN_KEYS = (*ROUTER_KEYS, "additional_prompt_dirs")
_WITHOUT_EFFECT = ("full_history", "store_steps", "verbose")
"""Parameters of a PromptChain that do not change what a router decides."""
_REFUSED = ("chainbreakers", "mcp_servers", "agents", "step_timeout_s", "custom_router_function")
_PLACEHOLDERS = frozenset({"user_input", "history", "agent_details", "initial_user_request", "last_step_output"})
_ROUTER_ARITY = 3  # parameters of a router function

Function = Callable[..., Any]
Functions = dict[str, Path | None]
"""Function name → the folder that it is imported from."""


def read_mode(given: object) -> str:
    """Return the mode. Raises ValueError."""
    mode = "round_robin" if given == "round-robin" else given
    if mode not in MODES:
        raise ValueError(f"execution_mode {given!r} is not known{did_you_mean(str(given), MODES)}")
    return str(mode)


def read_strategy(given: str) -> Strategy:
    """Return the strategy of a router. Raises ValueError."""
    for known in STRATEGIES:
        if given == known:
            return known
    raise ValueError(f"router_strategy {given!r} is not known{did_you_mean(str(given), STRATEGIES)}")


def read_router(
    given: Mapping[str, Any] | Function | None, strategy: Strategy, folders: Sequence[Path], functions: Functions
) -> Router:
    """Return the router that a dict or a function describes. Raises ValueError, TypeError or ConfigError."""
    if given is None:
        raise ValueError(
            "execution_mode 'router' needs a router: a dict with models, instructions and decision_prompt_template, or a function"
        )
    if isinstance(given, Mapping):
        return _model_router(
            given, strategy, [*prompt_folders(given.get("additional_prompt_dirs") or ())[:-1], *folders]
        )
    if isinstance(given, type) or not callable(given):
        raise TypeError(f"a router is a dict or a function of (user_input, history, agent_descriptions), not {given!r}")
    return validated(Router, "router", {"function": _named_router(given, functions)})


def _model_router(given: Mapping[str, Any], strategy: Strategy, folders: Sequence[Path]) -> Router:
    for key in given:
        if key == "step_timeout_s" and given[key]:
            raise ValueError("router: a router has no 'step_timeout_s'; write 'timeout_s'")
        if key in _REFUSED and given[key]:
            raise ValueError(
                f"router: {key!r} is not available, since a router is one model call; give a function as the router"
            )
        if key not in (*_OWN_KEYS, *_WITHOUT_EFFECT, *_REFUSED) and nearest(key, _OWN_KEYS):
            raise ValueError(f"router: unknown key {key!r}{did_you_mean(key, _OWN_KEYS)}")
    models, instructions = given.get("models"), given.get("instructions")
    if not isinstance(models, list | tuple) or len(models) != 1:
        raise ValueError(f"router: 'models' is a list of exactly one model, not {models!r}")
    pair = list(instructions) if isinstance(instructions, list | tuple) else []
    if len(pair) != 2 or pair[0] is not None or not isinstance(pair[1], str) or not pair[1]:
        raise ValueError(f"router: 'instructions' must be [None, '{{input}}'], not {instructions!r}")
    fields = {
        "models": models_for(models, ["{input}"]), "instructions": [None, text_of(pair[1], folders)],
        "params": {key: value for key, value in given.items() if key not in (*_OWN_KEYS, *_WITHOUT_EFFECT, *_REFUSED)},
        **{key: given[key] for key in ("timeout_s", "retries") if key in given},
        **_templates(given, folders),
    }  # fmt: skip
    router = validated(Router, "router", fields)
    if not router.template(strategy):
        raise ValueError(
            f"router: there is no template for the strategy {strategy!r}: give 'decision_prompt_template', a text, "
            "or 'decision_prompt_templates', a dict by strategy"
        )
    return router


def router_warnings(given: object) -> list[str]:
    """Return a warning for each key of a router that has no effect."""
    keys = given if isinstance(given, Mapping) else ()
    return [
        f"router: {key!r} has no effect, since a router is one model call" for key in keys if key in _WITHOUT_EFFECT
    ]


def _templates(given: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    one, several = given.get("decision_prompt_template"), given.get("decision_prompt_templates")
    if one is not None:
        found["decision_prompt_template"] = _text(one, "decision_prompt_template", folders)
    if several is not None:
        if not isinstance(several, Mapping):
            raise ValueError(f"router: 'decision_prompt_templates' is a dict by strategy, not {several!r}")
        check_keys(several, STRATEGIES, "router: decision_prompt_templates")
        found["decision_prompt_templates"] = {key: _text(text, key, folders) for key, text in several.items()}
    return found


def _text(given: object, key: str, folders: Sequence[Path]) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"router: {key!r} is a text, not {given!r}")
    text = text_of(given, folders)
    return _with_plain_braces(
        text if "{user_input}" in text else text.replace("{input}", "{user_input}")
    )  # as some of its guides write


def _with_plain_braces(template: str) -> str:
    """Return a template with `{` for `{{`, if it was written for `str.format`; braces of JSON that were not doubled stay."""
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError:
        return template
    return template.replace("{{", "{").replace("}}", "}") if fields <= _PLACEHOLDERS else template


def _named_router(function: Function, functions: Functions) -> str:
    name = _named(function, functions)
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    positional = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) + kinds.count(inspect.Parameter.POSITIONAL_ONLY)
    if positional < _ROUTER_ARITY and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise TypeError(f"the router {name!r} must take (user_input, history, agent_descriptions)")
    return name


def _named(function: Function, functions: Functions) -> str:
    name, functions[name] = name_of(function)
    return name


def read_rules(given: Iterable[Any], functions: Functions) -> list[TeamRule]:
    """Return routing rules: `(pattern or function, agent)`, or a function of the text that returns an agent's name or None."""
    return [_rule(number, each, functions) for number, each in enumerate(given, start=1)]


def _rule(number: int, given: Any, functions: Functions) -> TeamRule:
    what = f"rule {number}"
    match given:
        case (str() as pattern, str() as agent):
            return validated(TeamRule, what, {"match": pattern, "agent": agent})
        case (function, str() as agent) if callable(function):
            return validated(TeamRule, what, {"function": _named(function, functions), "agent": agent})
        case function if callable(function):
            return validated(TeamRule, what, {"function": _named(function, functions)})
    raise ValueError(f"{what} is (pattern, agent), (function, agent) or a function, not {given!r}")


def read_synthesizer(given: Mapping[str, Any] | None, folders: Sequence[Path]) -> tuple[Synthesizer | None, str]:
    """Return the synthesizer, or None and a fault; without one the answers are not merged. Raises ValueError for an unknown key."""
    if given is None:
        return None, ""
    if not isinstance(given, Mapping):
        return None, f"synthesizer_config is a dict with 'model' and 'prompt', not {given!r}"
    check_keys(given, ("model", "prompt", "params"), "synthesizer_config")
    for key in ("model", "prompt"):
        if not isinstance(given.get(key), str) or not given[key].strip():
            return None, f"synthesizer_config has no {key!r}"
    prompt = text_of(given["prompt"], folders)
    if "{agent_responses}" not in prompt:
        return None, "the prompt of synthesizer_config has no '{agent_responses}'"
    return validated(Synthesizer, "synthesizer_config", {**given, "prompt": prompt}), ""


# --- agents ---------------------------------------------------------------------------------------------------------


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


_ROLES = {
    "user_input": "user", "agent_output": "assistant", "error": "system_error", "user": "user", "assistant": "assistant",
    "system_error": "system_error",
}  # fmt: skip
"""The `include_types` of AgentChain, and ours → who wrote a message."""
_LIMITS = ("max_tokens", "max_entries")
_UNRECORDED = ("tool_call", "tool_result", "system_message", "custom")
"""The `include_types` that a conversation here has no messages of."""
_SOURCES = {"user": "user", "system": "system_error"}
"""The `exclude_sources` that are no agents → who wrote a message."""


def read_histories(
    given: Mapping[str, Mapping[str, Any]] | None, agents: Collection[str]
) -> tuple[dict[str, History], list[str]]:
    """Return the history settings of agents, from `agent_history_configs`, and warnings. Raises ValueError."""
    configs = given or {}
    check_known(configs, agents, "agent_history_configs")
    found, warnings = {}, []
    for name, config in configs.items():
        what = f"agent_history_configs[{name!r}]"
        if not isinstance(config, Mapping):
            raise ValueError(f"{what} is a dict, not {config!r}")
        check_keys(config, History.model_fields, what)
        _check_history(config, agents, what)
        fields, unrecorded = _history_fields(config)
        found[name] = validated(History, what, fields)
        check_known(found[name].exclude_sources, agents, f"{what}: exclude_sources")
        warnings += [f"{what}: a conversation has no messages of the type {each!r}" for each in unrecorded]
    return found, warnings


def _check_history(config: Mapping[str, Any], agents: Collection[str], what: str) -> None:
    """Raise ValueError for what would be read as something else: a text as a list, True as 1, an agent as the user."""
    for key in ("include_types", "exclude_sources"):
        check_list(config.get(key) or [], f"{what}: {key}")
    for key in _LIMITS:
        if isinstance(config.get(key), bool):
            raise ValueError(f"{what}: {key} is a whole number, not {config[key]}")
    for each in config.get("exclude_sources") or ():
        if each in _SOURCES and each in agents:
            raise ValueError(
                f"{what}: exclude_sources: {each!r} is an agent too; rename it, or leave messages out by include_types, "
                "such as ['agent_output']"
            )


def _history_fields(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a History, and the types that a conversation has no messages of. Nothing is seen if a limit is 0."""
    fields = {"enabled": True, **{key: value for key, value in config.items() if value is not None}}
    for limit in _LIMITS:
        if fields.get(limit) == 0:
            del fields[limit]
            fields["enabled"] = False
    excluded = list(fields.get("exclude_sources") or ())
    types = list(fields.get("include_types") or ("user", "assistant"))
    hidden = {_SOURCES[each] for each in excluded if each in _SOURCES}
    roles = [_ROLES.get(each, each) for each in types if each not in _UNRECORDED]
    fields["include_types"] = [role for role in dict.fromkeys(roles) if role not in hidden]
    fields["exclude_sources"] = [each for each in excluded if each not in _SOURCES]
    return fields, [each for each in types if each in _UNRECORDED]
