"""What configuration declares: models, tools, agents, teams, chains, limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from orchestrator.models.values import Value
from orchestrator.models.wire import ChainNode

QueueName = str

SECRETS = ("api_key", "token", "secret", "password", "authorization")


def _no_secrets(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    named = next((key for key in params if any(word in key.lower() for word in SECRETS) and not key.lower().endswith("tokens")), None)
    if named:
        raise ValueError(f"{named!r} does not belong in a configuration, which is stored with every run; set it in the environment")
    return params


Params = Annotated[dict[str, JsonValue], AfterValidator(_no_secrets)]


class Model(Value):
    """A named model: a LiteLLM model name with its parameters."""

    model: str = Field(description="a LiteLLM model name, such as openai/gpt-4o-mini or local/smollm2")
    params: Params = Field(default_factory=dict, description="passed to the model call as they are: temperature, max_tokens, ...")


class Tool(Value):
    """A Python function that chains and agents may call; also what a skill is."""

    function: str = Field(description="module:name, importable from the configuration's folder", pattern=r"^[\w.]+:\w+$")
    description: str = Field(default="", description="what it does, for people and models")
    queue: QueueName = Field(default="tools", description="the queue whose workers run it")
    timeout_s: float | None = Field(default=None, gt=0, description="seconds one attempt may take; the worker child is killed past it")
    retries: int = Field(default=0, ge=0, le=100, description="tries after the first")
    cheap: bool | None = Field(default=None, description="declares it cheap (true) or costly (false); measured by the workers if absent")


class Command(Value):
    """A command that `proc` nodes may run; nothing else is ever run."""

    command: list[str] = Field(min_length=1, description="program and fixed arguments; a node's `args` are appended")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds before it is killed")


class Example(Value):
    """One example of what an agent should answer."""

    input: str = Field(description="what the agent is asked")
    output: str = Field(description="what it should answer")


class OutputSchema(Value):
    """The shape an agent's answer must have."""

    json_schema: dict[str, JsonValue] = Field(alias="schema", description="JSON schema; the agent's output is the parsed object")


class Agent(Value):
    """A model with a role: each instruction is one model turn, fed with the answer before it."""

    description: str = Field(default="", description="what it is good at, for people and other agents")
    model: str | None = Field(default=None, description="a name under `models` or a LiteLLM name; the default model if absent")
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    system: str | None = Field(default=None, description="the system message of each turn")
    instructions: list[str] = Field(
        default_factory=lambda: ["{input}"], min_length=1, description="texts; `{input}` is the answer before, or the input"
    )
    examples: list[Example] = Field(
        default_factory=list, description="shown to the model as earlier turns; the embedded model scores labels by them"
    )
    output: OutputSchema | None = Field(default=None, description="structured output of the last instruction")
    queue: QueueName = Field(default="agents", description="the queue whose workers ask its model")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds one model call may take")
    retries: int = Field(
        default=3, ge=0, le=100, description="tries after the first, when the failure may pass (429, 5xx, timeouts, connections)"
    )


class Synthesizer(Value):
    """Merges what a broadcast's agents said into one answer."""

    model: str | None = Field(default=None, description="as of an agent")
    prompt: str = Field(description="template; `{agent_responses}` is a JSON object name → text, `{user_input}` the turn's text")
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds its model call may take")
    retries: int = Field(default=3, ge=0, le=100, description="tries after the first, when the failure may pass")


Mode = Literal["pipeline", "broadcast", "router", "round_robin", "conductor"]


class Team(Value):
    """Agents that answer user turns together."""

    description: str = Field(default="", description="what it is good at, for people")
    mode: Mode = Field(description="how the agents work together")
    agents: list[str] = Field(min_length=1, description="names under `agents`, in order")
    synthesizer: Synthesizer | None = Field(
        default=None, description="broadcast: merges the answers; without it the answer is their JSON object"
    )
    min_responses: int | None = Field(default=None, ge=1, description="broadcast: go on when this many have answered")
    deadline_s: float | None = Field(default=None, gt=0, description="broadcast: seconds after which late agents are cancelled and listed")

    @model_validator(mode="after")
    def _options_fit_the_mode(self) -> Team:
        if self.mode != "broadcast":
            for option in ("synthesizer", "min_responses", "deadline_s"):
                if getattr(self, option) is not None:
                    raise ValueError(f"{option!r} belongs to mode 'broadcast', not {self.mode!r}")
        if self.min_responses is not None and self.min_responses > len(self.agents):
            raise ValueError(f"'min_responses' is {self.min_responses} but the team has {len(self.agents)} agents")
        if len(set(self.agents)) != len(self.agents) and self.mode == "broadcast":
            raise ValueError("an agent is named twice in a broadcast")
        return self


class Chain(Value):
    """A named chain: what a request may run as one node, or `submit chain` by name."""

    nodes: list[ChainNode] = Field(min_length=1, description="all nodes")
    entry_node: str = Field(description="starting node id")
    description: str = Field(default="", description="what it does, for people")


class Defaults(Value):
    """What applies where nothing is said."""

    model: str = Field(default="local/smollm2", description="model of agents that name none")
    team: str | None = Field(default=None, description="team of turns that name none")
    agent: str | None = Field(default=None, description="agent of turns that name none, if there is no default team")
    timeout_s: float = Field(default=300.0, gt=0, le=30 * 86400, description="seconds a whole run may take")
    retention_s: float = Field(default=86_400.0, gt=0, le=30 * 86400, description="seconds a finished run can be read")
    max_attempts: int = Field(default=3, ge=1, le=100, description="workers a step may take down before it is failed as poison")
    max_concurrency: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="items of one map on the way at once, so that it neither floods the broker nor starves others",
    )


class Limits(Value):
    """Bounds that keep one run from harming the others."""

    max_nodes: int = Field(default=10_000, ge=1, description="nodes in one chain request")
    max_steps: int = Field(default=100_000, ge=1, description="steps one run may grow to")
    output_bytes: int = Field(default=16_000_000, ge=1, description="size of one output as JSON; 16 MB keeps Redis calls under 0.1 s")
    input_bytes: int = Field(default=16_000_000, ge=1, description="size of one request as JSON")


class Definitions(Value):
    """Everything that a run may name, resolved when it starts and stored with it."""

    version: Literal[1] = Field(default=1, description="of this format")
    folder: str | None = Field(default=None, description="folder that functions are imported from; set when the file is read")
    models: dict[str, Model] = Field(default_factory=dict, description="short names for models with their parameters")
    tools: dict[str, Tool] = Field(default_factory=dict, description="functions that nodes of kind `tool` call")
    skills: dict[str, Tool] = Field(default_factory=dict, description="functions that nodes of kind `skill` call")
    commands: dict[str, Command] = Field(default_factory=dict, description="what `proc` nodes may run; nothing by default")
    agents: dict[str, Agent] = Field(default_factory=dict, description="who answers turns, alone or in teams, and nodes of chains")
    teams: dict[str, Team] = Field(default_factory=dict, description="agents that answer together")
    chains: dict[str, Chain] = Field(default_factory=dict, description="named chains")
    defaults: Defaults = Field(default_factory=Defaults, description="what applies where nothing is said")
    limits: Limits = Field(default_factory=Limits, description="bounds on each run")

    def model_of(self, name: str | None) -> Model:
        """The model called `name`, or the default one; a name not under `models` is a LiteLLM name."""
        wanted = name or self.defaults.model
        return self.models.get(wanted) or Model(model=wanted)
