"""What configuration declares: models, tools, agents, teams, chains, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal, cast

import regex
from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from cantata.models.constraints import Params, checked_name
from cantata.models.conversation_config import ConversationConfig
from cantata.models.instructions import FUNCTION, Instruction, PromptStep
from cantata.models.values import Value
from cantata.models.wire import ChainNode

QueueName = Annotated[str, AfterValidator(partial(checked_name, "queue"))]
"""A name that also stands in keys of Redis, in rules of who may use them, in addresses and as a metric's label."""


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):  # not quoted: it may be a value, which is secret
        raise ValueError("expected the name of an environment variable; the value itself is set in the workers' environment")
    return name


VariableName = Annotated[str, AfterValidator(_variable_name)]
"""An environment variable of the workers; a configuration has the name, never the value."""


class ReplyCache(Value):
    """How long replies are remembered: the same request is then answered without asking the model."""

    ttl_s: float = Field(gt=0, le=30 * 86400, description="seconds a reply is given again")


class Model(Value):
    """A named model: a LiteLLM model name with its parameters."""

    model: str = Field(description="a LiteLLM model name, such as openai/gpt-4o-mini or local/smollm2")
    params: Params = Field(default_factory=dict, description="passed to the model call as they are: temperature, max_tokens, ...")
    fallbacks: list[str] = Field(
        default_factory=list, description="names under `models` or LiteLLM names, asked in this order when it cannot answer"
    )
    cache: ReplyCache | None = Field(default=None, description="remembers its replies; absent: it is asked each time")


class McpServer(Value):
    """Where the tools of an MCP server are: a command that speaks through its standard input and output, or an address."""

    command: list[str] = Field(default_factory=list, description="program and arguments of a server that each worker process starts")
    url: str | None = Field(default=None, description="address of a server that speaks streamable HTTP")
    env: list[str] = Field(
        default_factory=list,
        description="names of environment variables of the workers that the command is given, beside PATH, HOME and the like",
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="HTTP header → the environment variable of the workers that holds its value"
    )
    timeout_s: float = Field(default=60.0, gt=0, description="seconds one call may take")
    connect_timeout_s: float = Field(
        default=30.0, gt=0, description="seconds until it must be ready; the first start of a packaged server may download it"
    )

    @model_validator(mode="after")
    def _is_one_place(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server is either a 'command' or a 'url'")
        for option, given, other in (("env", self.env, "command"), ("headers", self.headers, "url")):
            if given and not getattr(self, other):
                raise ValueError(f"{option!r} belongs to a server with {other!r}")
        if self.url and not re.match(r"https?://[^/@]+(/|$)", self.url):
            raise ValueError("'url' must be http:// or https:// and without a password, which belongs in 'headers'")
        if not all(re.fullmatch(r"[A-Za-z_]\w*", variable) for variable in (*self.env, *self.headers.values())):
            raise ValueError("'env' and 'headers' name environment variables; the values themselves are set in the workers' environment")
        return self


class ScriptReference(Value):
    """A function that a workflow's file defines. A run has its digest; the text is read from the files of the worker."""

    file: str = Field(description="the file, from the configuration's folder")
    function: str = Field(description="the function's name")
    digest: str = Field(description="SHA-256 of the script, in hex", pattern=r"^[0-9a-f]{64}$")


class Tool(Value):
    """What chains and agents may call: a Python function, or an MCP server with tools of its own; also what a skill is."""

    function: str | None = Field(
        default=None, description="module:name, importable from the configuration's folder", pattern=r"^[\w.]+:\w+$"
    )
    mcp: McpServer | None = Field(default=None, description="the server whose tools are called `name.tool`")
    script: ScriptReference | None = Field(default=None, description="a function that a workflow's file defines; set when one is read")
    asks: bool = Field(default=False, description="asks people: a call waits, without a worker, for a signal, whose value is what it gives")
    description: str = Field(default="", description="what it does, for people and models")
    queue: QueueName = Field(
        default_factory=lambda given: "agents" if given.get("mcp") else "tools",
        description="the queue whose workers run it: tools, but agents for a server, whose calls only wait",
    )
    timeout_s: float | None = Field(default=None, gt=0, description="seconds one attempt may take; the worker child is killed past it")
    retries: int = Field(default=0, ge=0, le=100, description="tries after the first")
    cheap: bool | None = Field(default=None, description="declares it cheap (true) or costly (false); measured by the workers if absent")
    at_most_once: bool = Field(default=False, description="a call is never made again: if its worker dies, a person says what came of it")
    values: Params = Field(default_factory=dict, description="arguments that each call is given, which no model sees and no input changes")
    hidden: list[str] = Field(default_factory=list, description="parameters that no model sees: given by `values`, else by their default")
    parameters: dict[str, JsonValue] | None = Field(
        default=None, description="JSON schema of the arguments, for models; needed where agents run without the function's module"
    )

    @model_validator(mode="after")
    def _is_one_thing(self) -> Tool:
        if (self.function is not None) + (self.mcp is not None) + (self.script is not None) + self.asks != 1:
            raise ValueError("a tool is either a 'function' or an 'mcp' server, or it 'asks' people")
        if self.asks and self.parameters is None:
            raise ValueError("a tool that 'asks' people needs 'parameters': what a model may tell them")
        for option in ("values", "hidden", "parameters"):
            if self.mcp and getattr(self, option):
                raise ValueError(f"{option!r} belongs to a function; an 'mcp' server says itself what its tools take")
        return self

    @model_validator(mode="after")
    def _options_fit_each_other(self) -> Tool:
        if self.at_most_once and self.retries:
            raise ValueError("'at_most_once' means that a call is never made again; leave 'retries' out")
        if self.parameters is None:
            return self
        shown = self.parameters.get("properties", {})
        if self.parameters.get("type") != "object" or not isinstance(shown, dict):
            raise ValueError("'parameters' is the JSON schema of an object: {type: object, properties: {...}}")
        for name in self.unseen & shown.keys():
            raise ValueError(f"{name!r} is hidden from models, but 'parameters' shows it")
        return self

    @property
    def unseen(self) -> frozenset[str]:
        """The parameters that no model sees."""
        return frozenset((*self.hidden, *self.values))


class Command(Value):
    """A command that `proc` nodes may run; nothing else is ever run."""

    command: list[str] = Field(min_length=1, description="program and fixed arguments; a node's `args` are appended")
    env: list[VariableName] = Field(
        default_factory=list,
        description="names of environment variables of the workers that it is given, beside PATH, HOME and the like",
    )
    timeout_s: float = Field(default=60.0, gt=0, description="seconds before it is killed")


class Example(Value):
    """One example of what an agent should answer."""

    input: str = Field(description="what the agent is asked")
    output: str = Field(description="what it should answer")


class OutputSchema(Value):
    """The shape an agent's answer must have."""

    json_schema: dict[str, JsonValue] | None = Field(
        default=None, alias="schema", description="JSON schema; the agent's output is the parsed object"
    )
    model_class: str | None = Field(
        default=None,
        alias="class",
        description="module:Model, a pydantic model beside the configuration, in place of a schema",
        pattern=FUNCTION,
    )
    trials: int = Field(default=2, ge=0, le=20, description="corrections that are asked for, each with what the validator said")

    @model_validator(mode="after")
    def _is_one(self) -> OutputSchema:
        if (self.json_schema is None) == (self.model_class is None):
            raise ValueError("give a 'schema' or a 'class', one of them")
        return self


MessageRole = Literal["user", "assistant", "system_error"]
"""Who said an entry of a conversation: the user, an agent, or we, of a turn that failed."""


class History(Value):
    """What an agent sees of the conversation of its session."""

    enabled: bool | None = Field(
        default=None, description="whether it sees any: if absent, where it answers alone or is chosen, and not in pipelines and broadcasts"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="the newest entries up to so many tokens; the team's bound if absent")
    max_entries: int | None = Field(default=None, ge=1, description="the newest so many entries")
    truncation_strategy: Literal["oldest_first", "keep_last"] = Field(
        default="oldest_first", description="what goes when there is too much: the oldest entries, or all but the last"
    )
    include_types: list[MessageRole] = Field(
        default_factory=lambda: cast("list[MessageRole]", ["user", "assistant"]), description="whose entries it sees"
    )
    exclude_sources: list[str] = Field(default_factory=list, description="agents whose answers it does not see")


class Agent(Value):
    """A model with a role: each instruction is one model turn, fed with the answer before it."""

    description: str = Field(default="", description="what it is good at, for people and other agents")
    model: str | None = Field(default=None, description="a name under `models` or a LiteLLM name; the default model if absent")
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    system: str | None = Field(default=None, description="the system message of each turn")
    models: list[str | Model] = Field(
        default_factory=list, description="in place of `model`: one for all texts, or one for each text among the instructions"
    )
    instructions: list[Instruction] = Field(
        default_factory=lambda: cast("list[Instruction]", ["{input}"]),
        min_length=1,
        description="in order: texts (`{input}` is the answer before, or the input), functions, agentic steps, agents, chains",
    )
    tools: list[str] = Field(default_factory=list, description="names under `tools` that its model may call; a server's are `server.tool`")
    max_tool_rounds: int = Field(default=25, ge=1, description="rounds of tool calls for one text, before it must answer without tools")
    dialect: Literal["native", "json"] = Field(
        default="native", description="how its model calls tools: by the provider's tool calls, or by JSON replies with `mcp`"
    )
    response_mode: Literal["integrated", "streaming"] = Field(
        default="integrated", description="whether the model is asked again after a JSON call, or its reply and the result are the answer"
    )
    stream: bool | None = Field(
        default=None, description="whether events tell of its model's reply while it comes: in turns, if absent, and not in chains"
    )
    chainbreakers: list[str] = Field(
        default_factory=list, description="module:name; called after each instruction with (step, output[, info]) → (stop, reason, output)"
    )
    store_steps: bool = Field(default=False, description="keep what each instruction gave, as `steps` of the result")
    full_history: bool = Field(default=False, description="show the model its earlier turns, and answer with the list of all steps")
    examples: list[Example] = Field(
        default_factory=list, description="shown to the model as earlier turns; the embedded model scores labels by them"
    )
    output: OutputSchema | None = Field(default=None, description="structured output of the last instruction")
    history: History = Field(default_factory=History, description="what it sees of the conversation of its session")
    queue: QueueName = Field(default="agents", description="the queue whose workers ask its model")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds one model call may take")
    retries: int = Field(
        default=3, ge=0, le=100, description="tries after the first, when the failure may pass (429, 5xx, timeouts, connections)"
    )

    @model_validator(mode="after")
    def _models_fit_the_texts(self) -> Agent:
        if self.models and self.model:
            raise ValueError("give 'model' or 'models', not both")
        texts = sum(isinstance(each, str | PromptStep) for each in self.instructions)
        if len(self.models) > 1 and len(self.models) != texts:
            raise ValueError(f"there are {len(self.models)} models for {texts} texts; give one for all, or one for each")
        return self


class Synthesizer(Value):
    """Merges what a broadcast's agents said into one answer."""

    model: str | None = Field(default=None, description="as of an agent")
    prompt: str = Field(description="template; `{agent_responses}` is a JSON object name → text, `{user_input}` the turn's text")
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds its model call may take")
    retries: int = Field(default=3, ge=0, le=100, description="tries after the first, when the failure may pass")


class TeamRule(Value):
    """Chooses an agent without asking a model: by a pattern, or by a function."""

    match: str | None = Field(default=None, description="a regular expression, found anywhere in the text; `(?i)` first ignores case")
    function: str | None = Field(
        default=None, description="module:name, called with the text; gives the name of an agent, or true for `agent`", pattern=FUNCTION
    )
    agent: str | None = Field(default=None, description="who is chosen")

    @model_validator(mode="after")
    def _is_one(self) -> TeamRule:
        if (self.match is None) == (self.function is None):
            raise ValueError("a rule is either a 'match' or a 'function'")
        if self.match is not None:
            if self.agent is None:
                raise ValueError("a rule with 'match' names the 'agent' that it chooses")
            try:
                regex.compile(self.match)
            except regex.error as error:
                raise ValueError(f"'match' is no regular expression: {error}") from None
        return self


Strategy = Literal["single_agent_dispatch", "static_plan", "dynamic_decomposition"]
"""What a router decides: who answers, in what order agents work, or what is to be done next."""


class Router(Value):
    """Chooses among a team's agents: a model, or a function."""

    models: list[str | Model] = Field(default_factory=list, max_length=1, description="one model; the default one if absent")
    instructions: list[str | None] = Field(
        default_factory=lambda: cast("list[str | None]", [None, "{input}"]),
        description="as PromptChain writes it: null, the prompt that is made of the template, and what is asked of the model with it",
    )
    decision_prompt_template: str | None = Field(
        default=None, description="what the model is asked; `{user_input}`, `{history}` and `{agent_details}` are filled in"
    )
    decision_prompt_templates: dict[Strategy, str] = Field(default_factory=dict, description="the same, by strategy")
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    function: str | None = Field(
        default=None, description="module:name, called with (user_input, history, agent_descriptions) in place of a model", pattern=FUNCTION
    )
    timeout_s: float = Field(default=30.0, gt=0, description="seconds a decision may take")
    retries: int = Field(default=3, ge=0, le=100, description="tries after the first, when the failure of its model may pass")

    @model_validator(mode="after")
    def _fits(self) -> Router:
        if len(self.instructions) != 2 or self.instructions[0] is not None or not self.instructions[1]:
            raise ValueError("'instructions' is [null, text]: the text says what is asked of the model with the prompt, such as '{input}'")
        if self.function and (self.models or self.params or self.decision_prompt_template or self.decision_prompt_templates):
            raise ValueError("a router is either a 'function' or a model with its template")
        return self

    def template(self, strategy: Strategy) -> str | None:
        """The template for a strategy, if one was given."""
        return self.decision_prompt_templates.get(strategy, self.decision_prompt_template)


Mode = Literal["pipeline", "broadcast", "router", "round_robin"]


class Team(Value):
    """Agents that answer user turns together."""

    description: str = Field(default="", description="what it is good at, for people")
    mode: Mode = Field(description="how the agents work together; `round-robin` is `round_robin`")
    agents: list[str] = Field(min_length=1, description="names under `agents`, in order")
    rules: list[TeamRule] = Field(default_factory=list, description="router: asked first, in order; the first that matches chooses")
    router: Router | None = Field(
        default=None,
        description="router: who chooses where no rule does; if absent the default agent answers, or the default model chooses",
    )
    strategy: Strategy = Field(default="single_agent_dispatch", description="router: what it decides")
    default_agent: str | None = Field(default=None, description="router: who answers if the router does not choose")
    max_internal_steps: int = Field(default=3, ge=1, le=1000, description="router: agents that may run in one turn")
    auto_include_history: bool = Field(default=False, description="whether each agent's input begins with the conversation so far, as text")
    max_history_tokens: int = Field(default=4000, ge=1, description="tokens of the conversation that router and agents are shown")
    synthesizer: Synthesizer | None = Field(
        default=None, description="broadcast: merges the answers; without it the answer is their JSON object"
    )
    min_responses: int | None = Field(default=None, ge=1, description="broadcast: go on when this many have answered")
    deadline_s: float | None = Field(default=None, gt=0, description="broadcast: seconds after which late agents are cancelled and listed")

    @field_validator("mode", mode="before")
    @classmethod
    def _spelled(cls, mode: object) -> object:
        return "round_robin" if mode == "round-robin" else mode

    @model_validator(mode="after")
    def _options_fit_the_mode(self) -> Team:
        for option in self.model_fields_set & OPTIONS_OF_MODES.keys():
            if self.mode != OPTIONS_OF_MODES[option] and getattr(self, option) is not None:
                raise ValueError(f"{option!r} belongs to mode {OPTIONS_OF_MODES[option]!r}, not {self.mode!r}")
        if self.min_responses is not None and self.min_responses > len(self.agents):
            raise ValueError(f"'min_responses' is {self.min_responses} but the team has {len(self.agents)} agents")
        if self.rules and self.strategy != "single_agent_dispatch":
            raise ValueError(f"'rules' choose one agent; they do not fit the strategy {self.strategy!r}")
        if len(set(self.agents)) != len(self.agents) and self.mode in ("broadcast", "router"):
            raise ValueError(f"an agent is named twice in a {self.mode}")
        return self

    @model_validator(mode="after")
    def _chosen_are_members(self) -> Team:
        chosen = [("default_agent", self.default_agent), *((f"rules[{i}]", rule.agent) for i, rule in enumerate(self.rules))]
        for place, name in chosen:
            if name is not None and name not in self.agents:
                raise ValueError(f"{place}: {name!r} is no agent of the team, which has {', '.join(map(repr, self.agents))}")
        return self


OPTIONS_OF_MODES: Mapping[str, str] = {
    **dict.fromkeys(("rules", "router", "strategy", "default_agent", "max_internal_steps"), "router"),
    **dict.fromkeys(("synthesizer", "min_responses", "deadline_s"), "broadcast"),
}
"""The options of a team that only one mode has."""


class Chain(Value):
    """A named chain: what a request may run as one node, or `submit chain` by name."""

    nodes: list[ChainNode] = Field(min_length=1, description="all nodes")
    entry_node: str = Field(description="starting node id")
    description: str = Field(default="", description="what it does, for people")
    inputs: dict[str, JsonValue] = Field(
        default_factory=dict, description="what it may be given: name → type, or a JSON Schema with `type: object` and `properties`"
    )
    answers: dict[str, str] = Field(
        default_factory=dict,
        description="name → expression: what it gives where it runs as one node or answers a turn. Of those that are not null, one alone "
        "is the output, several are an object; the outputs of its last nodes if absent",
    )
    timeout_s: float | None = Field(default=None, gt=0, le=30 * 86400, description="seconds a turn may take that it answers")


class Defaults(Value):
    """What applies where nothing is said."""

    model: str = Field(default="local/smollm2", description="model of agents that name none")
    team: str | None = Field(default=None, description="team of turns that name none")
    agent: str | None = Field(default=None, description="agent of turns that name none, if there is no default team")
    timeout_s: float = Field(
        default=300.0, gt=0, le=30 * 86400, description="seconds a whole run may take, without those in which it only waits for a person"
    )
    retention_s: float = Field(default=86_400.0, gt=0, le=30 * 86400, description="seconds a finished run can be read")
    max_attempts: int = Field(default=3, ge=1, le=100, description="workers a step may take down before it is failed as poison")
    max_concurrency: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="items of one map on the way at once, so that it neither floods the broker nor starves others",
    )


class SessionSettings(Value):
    """How the conversations of sessions are kept."""

    retention_s: float = Field(default=30 * 86400.0, gt=0, le=3650 * 86400, description="seconds one is kept after its last turn")
    max_entries: int = Field(default=1000, ge=2, le=100_000, description="entries kept of one conversation; the oldest go")
    max_waiting: int = Field(default=100, ge=1, le=10_000, description="turns of one session that may wait for their turn")


class Rates(Value):
    """How often a model may be asked, or how often a tenant may ask: by all workers together."""

    rpm: int | None = Field(default=None, ge=1, description="calls begun in any 60 seconds; as many as come if absent")
    tpm: int | None = Field(default=None, ge=1, description="tokens, read and written, of the calls begun in any 60 seconds")
    concurrency: int | None = Field(default=None, ge=1, description="calls under way at once")


class Budget(Value):
    """What may be spent; a call that may cost more than what is left is not made."""

    usd: float | None = Field(
        default=None, ge=0, description="US dollars, by LiteLLM's prices; a call whose price is unknown counts nothing"
    )
    tokens: int | None = Field(default=None, ge=0, description="tokens, read and written")


class Budgets(Value):
    """What may be spent for what. A day is one of UTC, by Redis's clock; a call belongs to the day it began in."""

    run: Budget = Field(default_factory=Budget, description="one run, as long as it lasts")
    tenant: Budget = Field(default_factory=Budget, description="all runs of one tenant in a day; runs without the label are a tenant too")
    day: Budget = Field(default_factory=Budget, description="all runs of all tenants in a day")


class Quota(Value):
    """What one tenant may have at once; past it new runs and writes are refused, and what is under way goes on."""

    open_runs: int | None = Field(default=None, ge=0, description="runs that are not over; as many as come if absent")
    kept_bytes: int | None = Field(
        default=None, ge=0, description="requests, outputs and log lines of its runs, until they expire; as much as comes if absent"
    )
    log_bytes: int | None = Field(
        default=None, ge=0, description="log lines of its runs, until they expire; as much as comes if absent, within bounds for each run"
    )
    early_signals: int | None = Field(
        default=None, ge=0,
        description="signals that its open runs keep for steps that do not wait yet; as many as come if absent, within bounds for each run",
    )  # fmt: skip
    memory_namespaces: int = Field(
        default=10_000, ge=0, description="namespaces of memories that have no time to live, those of sessions too"
    )
    memory_bytes: int = Field(default=1_000_000_000, ge=0, description="memories that have no time to live, with their keys")


class Limits(Value):
    """Bounds that keep one run from harming the others."""

    max_nodes: int = Field(default=10_000, ge=1, description="nodes in one chain request")
    max_steps: int = Field(default=100_000, ge=1, description="steps one run may grow to")
    output_bytes: int = Field(default=16_000_000, ge=1, description="size of one output as JSON; 16 MB keeps Redis calls under 0.1 s")
    input_bytes: int = Field(default=16_000_000, ge=1, description="size of one request as JSON")
    expression_nodes: int = Field(
        default=2_000_000, ge=1, description="values that the expressions of one step may look at; 2 million take about 2 s"
    )
    expression_bytes: int = Field(default=64_000_000, ge=1, description="size of what the expressions of one step make, as JSON")
    render_s: float = Field(
        default=10.0, gt=0, description="seconds a Jinja template of a prompt may take; then the process that renders it is killed"
    )
    models: dict[str, Rates] = Field(default_factory=dict, description="by LiteLLM name: how often a model may be asked")
    tenants: dict[str, Rates] = Field(
        default_factory=dict, description="by a run's label `tenant`: how often all models may be asked for it"
    )
    budgets: Budgets = Field(default_factory=Budgets, description="what may be spent; past it a run is `exhausted`")
    quotas: dict[str, Quota] = Field(
        default_factory=dict, description="by a run's label `tenant`: what it may have at once; `*` is for all tenants that are not named"
    )

    def quota_of(self, tenant: str) -> Quota:
        """Return the quota of a tenant."""
        return self.quotas.get(tenant) or self.quotas.get("*") or Quota()


class Definitions(Value):
    """Everything that a run may name, resolved when it starts and stored with it."""

    version: Literal[1] = Field(default=1, description="of this format")
    folder: str | None = Field(default=None, description="folder that functions are imported from; set when the file is read")
    models: dict[str, Model] = Field(default_factory=dict, description="short names for models with their parameters")
    tools: dict[str, Tool] = Field(default_factory=dict, description="functions and servers that nodes of kind `tool` call")
    skills: dict[str, Tool] = Field(default_factory=dict, description="functions and servers that nodes of kind `skill` call")
    commands: dict[str, Command] = Field(default_factory=dict, description="what `proc` nodes may run; nothing by default")
    agents: dict[str, Agent] = Field(default_factory=dict, description="who answers turns, alone or in teams, and nodes of chains")
    teams: dict[str, Team] = Field(default_factory=dict, description="agents that answer together")
    chains: dict[str, Chain] = Field(default_factory=dict, description="named chains")
    diskurs: ConversationConfig | None = Field(default=None, description="agents and conductors of a Diskurs folder; set when one is read")
    defaults: Defaults = Field(default_factory=Defaults, description="what applies where nothing is said")
    limits: Limits = Field(default_factory=Limits, description="bounds on each run")
    sessions: SessionSettings = Field(default_factory=SessionSettings, description="how conversations are kept")

    def model_of(self, name: str | None) -> Model:
        """The model called `name`, or the default one; a name not under `models` is a LiteLLM name."""
        wanted = name or self.defaults.model
        return self.models.get(wanted) or Model(model=wanted)

    def with_fallbacks(self, model: Model) -> list[Model]:
        """The model, and those to ask in its place; their own fallbacks do not count."""
        return [model, *map(self.model_of, model.fallbacks)]


def mcp_tool(name: str, tools: Mapping[str, Tool]) -> tuple[str, str] | None:
    """The server among the tools, and the tool of it, that `server.tool` names; None if it names none, or a tool as it stands."""
    parts = [] if name in tools else name.split(".")
    ways = ((".".join(parts[:cut]), ".".join(parts[cut:])) for cut in range(len(parts) - 1, 0, -1))
    return next(((server, tool) for server, tool in ways if tool and server in tools and tools[server].mcp), None)
