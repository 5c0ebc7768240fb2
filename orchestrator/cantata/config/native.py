"""Reader of the native configuration format, with all its checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from cantata.config.chain_requests import kind_faults
from cantata.config.documents import Document
from cantata.config.faults import faults_of, in_order
from cantata.config.source_map import KeyPath, find, value_at
from cantata.config.texts import read_texts
from cantata.config.user_code.decorators import check_parameters, read_decorators
from cantata.config.user_code.function_source import fault_of
from cantata.errors import ConfigError, Fault
from cantata.flows.definitions import Definitions
from cantata.flows.json_schemas import schema_faults
from cantata.text.suggestions import did_you_mean, nearest
from cantata.values import JsonValue

PROVIDERS = frozenset(Path(__file__).with_name("providers.txt").read_text("utf-8").split())
"""The providers of LiteLLM: the part of a model's name before the first '/'. `python -m tests.acceptance.write_providers` writes them."""

_Name = tuple[str, str]
"""A section and a name in it."""

_SECTIONS = ("models", "tools", "skills", "commands", "agents", "teams", "chains", "workflows", "webhooks", "alerts")
_SKILLS = ("skills", "agents", "teams", "chains")  # sections that a node of kind `skill` may refer to
_STEPS = ("agents", "chains", "workflows")  # sections whose names become ids of steps
_SET_WHEN_READ = {
    "folder": "functions are imported from the folder of the file",
    "refused": "only files of a further format set it when they are read",
    "extension": "only files of a further format set it when they are read",
}
"""Fields of the definitions that no file has → the reason."""
_RESERVED_STARTS = ("@", "=")  # first characters of the ids of internal steps and of references to raw outputs
_REFERENCES: Mapping[str, str] = {
    "teams.*.agents.*": "agents",
    "agents.*.history.exclude_sources.*": "agents",
    "agents.*.instructions.*.agent": "agents",
    "agents.*.instructions.*.chain": "chains",
    "schedules.*.turn.team": "teams",
    "schedules.*.turn.agent": "agents",
    "schedules.*.chain": "chains",
    "schedules.*.workflow": "workflows",
    "defaults.team": "teams",
    "defaults.agent": "agents",
    "alerts.*.webhook": "webhooks",
}
_MODELS = (
    "models.*.model",
    "models.*.fallbacks.*",
    "agents.*.model",
    "agents.*.models.*",
    "agents.*.instructions.*.model_name",
    "teams.*.synthesizer.model",
    "teams.*.router.models.*",
    "defaults.model",
)
_FUNCTIONS = (
    "tools.*.function", "skills.*.function", "workflows.*.function", "agents.*.instructions.*.function", "agents.*.chainbreakers.*",
    "agents.*.chainbreakers.*.function", "agents.*.output.class",
    "teams.*.rules.*.function", "teams.*.router.function",
)  # fmt: skip
_SCHEMAS = (
    "agents.*.output.schema", "tools.*.parameters", "skills.*.parameters", "tools.*.asks.answer_schema", "skills.*.asks.answer_schema",
)  # fmt: skip
_AGENTS_TOOLS = (
    "agents.*.tools.*",
    "agents.*.instructions.*.*.*",
)  # of an instruction: `tools: [...]`, or `[text, [...]]`
_ASKS = {
    "agents.*.instructions.*.agent": "agents",
    "agents.*.instructions.*.chain": "chains",
    "teams.*.agents.*": "agents",
}
_NODES_ASK = {
    "agent": ("agents", "teams"),
    "skill": ("agents", "teams", "chains"),
    "chain": ("chains",),
    "workflow": ("workflows",),
}
_OWN_SERVER = frozenset(
    {"api_base", "base_url", "custom_llm_provider"}
)  # parameters with which a model needs no provider that LiteLLM knows
_DECISIONS = ("teams.*.router.decision_prompt_template", "teams.*.router.decision_prompt_templates.*")
_ASKED = ("{user_input}", "{initial_user_request}", "{last_step_output}")  # one of them must be in a decision template
_TEXTS = ("agents.*.system", "agents.*.instructions.*", "teams.*.synthesizer.prompt", *_DECISIONS)


def load_definitions(document: Document, *, folder: Path | None = None) -> Definitions:
    """Return the definitions of a configuration whose functions and text files are in `folder`. Raises ConfigError with all faults."""
    document, unread = read_texts(document, _TEXTS, folder=folder)
    document, misread = read_decorators(document, folder=folder)
    unread += misread
    places = {fault.where for fault in unread}
    others = [*_model_faults(document), *(fault for check in _CHECKS for fault in check(document, folder))]
    faults = in_order([*unread, *(fault for fault in others if fault.where not in places)])
    if faults:
        faults = in_order([*faults, *kind_faults(document, "chains.*.nodes.*.kind")])
        raise ConfigError(faults, source=document.source)
    return Definitions.model_validate(document.data).model_copy(update={"folder": str(folder) if folder else None})


def _model_faults(document: Document) -> list[Fault]:
    try:
        Definitions.model_validate(document.data)
    except ValidationError as error:
        return faults_of(error, document, Definitions, hidden=[*_SET_WHEN_READ, "script"])
    return []


# The checks read the data, not the model, so each finds its faults even if the model finds others.


def _check_folder(document: Document, folder: Path | None) -> Iterator[Fault]:
    for key, reason in _SET_WHEN_READ.items():
        if isinstance(document.data, dict) and key in document.data:
            yield document.fault((key,), f"unknown key {key!r}; {reason}")


def _check_scripts(document: Document, folder: Path | None) -> Iterator[Fault]:
    for section in ("tools", "skills"):
        for path, _ in find(document.data, f"{section}.*.script"):
            yield document.fault(
                path, "unknown key 'script'; write the function in a module, and name it by 'function'"
            )


def _check_names(document: Document, folder: Path | None) -> Iterator[Fault]:
    for section in _SECTIONS:
        for name in _names(document, section):
            if not name.strip():
                yield document.fault((section, name), "the name is empty")
            elif section in _STEPS and name.startswith(_RESERVED_STARTS):
                yield document.fault(
                    (section, name),
                    f"the name begins with {name[0]!r}, which is reserved for internal steps; rename it",
                )


def _check_skill_names(document: Document, folder: Path | None) -> Iterator[Fault]:
    owners: dict[str, str] = {}
    for section in _SKILLS:
        for name in _names(document, section):
            owner = owners.setdefault(name, section)
            if owner != section:
                line = document.line((owner, name))
                place = f" (line {line})" if line else ""
                message = f"{name!r} is also in {owner!r}{place}; a node of kind 'skill' may mean either: rename one"
                yield document.fault((section, name), message)


def _check_references(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern, section in _REFERENCES.items():
        names = _names(document, section)
        for path, name in _texts(document, pattern):
            if name not in names:
                yield document.fault(
                    path, f"there is no {section.removesuffix('s')} {name!r}{did_you_mean(name, names)}"
                )


def _check_agents_tools(document: Document, folder: Path | None) -> Iterator[Fault]:
    tools, workflows = value_at(document.data, "tools"), value_at(document.data, "workflows")
    known = {**(workflows if isinstance(workflows, dict) else {}), **(tools if isinstance(tools, dict) else {})}
    servers = [name for name, tool in known.items() if isinstance(tool, dict) and "mcp" in tool]
    for pattern in _AGENTS_TOOLS:
        for path, name in _texts(document, pattern):
            server, dot, _ = name.partition(".")
            if path[-2] in ("tools", 1) and name not in known and not (dot and server in servers):
                yield document.fault(path, f"there is no tool {name!r}{did_you_mean(name, known)}")


def _check_nesting(document: Document, folder: Path | None) -> Iterator[Fault]:
    """Yield faults of agents that would run themselves; cycles of chains only are found by the checks of chains."""
    asks: dict[_Name, list[tuple[KeyPath, _Name]]] = {}
    for path, asked in _asks(document):
        asks.setdefault((str(path[0]), str(path[1])), []).append((path, asked))

    def reached(start: _Name) -> set[_Name]:
        found, todo = {start}, [start]
        while todo:
            following = {asked for _, asked in asks.get(todo.pop(), ())} - found
            found |= following
            todo += following
        return found

    for asker, places in asks.items():
        for path, asked in places:
            if asker[0] == "agents" and asker in reached(asked):
                yield document.fault(path, f"agent {asker[1]!r} would call itself through {asked[1]!r} without end")


def _asks(document: Document) -> Iterator[tuple[KeyPath, _Name]]:
    """Yield the path of each reference of an agent, team or chain to another, and its target: a section and a name in it."""
    for pattern, section in _ASKS.items():
        yield from ((path, (section, name)) for path, name in _texts(document, pattern))
    for path, node in find(document.data, "chains.*.nodes.*"):
        for section in _NODES_ASK.get(str(value_at(node, "kind")), ()):
            yield path, (section, str(value_at(node, "name")))


def _check_synthesizers(document: Document, folder: Path | None) -> Iterator[Fault]:
    for path, prompt in _texts(document, "teams.*.synthesizer.prompt"):
        if "{agent_responses}" not in prompt:
            yield document.fault(
                path, "the prompt has no '{agent_responses}', so it would not contain the agents' answers"
            )


def _check_routers(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern in _DECISIONS:
        for path, template in _texts(document, pattern):
            if not any(gap in template for gap in _ASKED):
                yield document.fault(path, "the template has no '{user_input}', so it would not contain the request")
    asking = {path[1] for path, team in find(document.data, "teams.*") if _asks_a_model(team)}
    for path, name in _texts(document, "teams.*.agents.*"):
        agent = value_at(value_at(document.data, "agents"), name)
        if path[1] in asking and isinstance(agent, dict) and not str(agent.get("description") or "").strip():
            yield document.fault(
                path, f"agent {name!r} has no description, so the router cannot know what it is good at"
            )


def _asks_a_model(team: JsonValue) -> bool:
    """Return whether a model chooses among a team's agents, by their descriptions."""
    router = value_at(team, "router")
    return (
        value_at(team, "mode") == "router"
        and value_at(router, "function") is None
        and not (router is None and value_at(team, "default_agent"))
    )


def _check_models(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern in _MODELS:
        for path, name in _texts(document, pattern):
            if not name.strip():
                yield document.fault(
                    path, "the model's name is empty; write one, such as 'openai/gpt-4o-mini', or leave the key out"
                )
            elif message := _provider_fault(document, path, name):
                yield document.fault(path, message)


def _provider_fault(document: Document, path: KeyPath, name: str) -> str | None:
    """Return why LiteLLM cannot find a provider for a model, judging by its name; None if it can."""
    provider, slash, _ = name.partition("/")
    if not slash or provider in PROVIDERS or (path[0] != "models" and name in _names(document, "models")):
        return None
    params = value_at(value_at(value_at(document.data, "models"), path[1]), "params") if path[0] == "models" else None
    if isinstance(params, dict) and not _OWN_SERVER.isdisjoint(params):
        return None
    near = nearest(provider, PROVIDERS)
    return f"LiteLLM knows no provider {provider!r}" + (
        f"; did you mean '{near}/{name.partition('/')[2]}'?"
        if near
        else "; a server of your own is 'openai/<model>' under 'models', with params.api_base"
    )


def functions_in(document: Document) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path and name of each function or class that a configuration refers to."""
    for pattern in _FUNCTIONS:
        yield from ((path, name) for path, name in _texts(document, pattern) if re.fullmatch(r"[\w.]+:\w+", name))


def _check_functions(document: Document, folder: Path | None) -> Iterator[Fault]:
    for path, function in functions_in(document):
        if message := fault_of(function, folder=folder):
            yield document.fault(path, message)


def _check_schemas(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern in _SCHEMAS:
        for path, schema in find(document.data, pattern):
            if isinstance(schema, dict):  # the model refuses others
                for fault in schema_faults(schema):
                    yield document.fault((*path, *fault.path), f"this is not a valid JSON Schema: {fault.message}")


_CHECKS: tuple[Callable[[Document, Path | None], Iterator[Fault]], ...] = (
    _check_folder,
    _check_scripts,
    _check_names,
    _check_skill_names,
    _check_references,
    _check_agents_tools,
    _check_nesting,
    _check_synthesizers,
    _check_routers,
    _check_models,
    _check_functions,
    _check_schemas,
    check_parameters,
)


def _names(document: Document, section: str) -> list[str]:
    names = value_at(document.data, section)
    return list(names) if isinstance(names, dict) else []


def _texts(document: Document, pattern: str) -> Iterator[tuple[KeyPath, str]]:
    return ((path, value) for path, value in find(document.data, pattern) if isinstance(value, str))
