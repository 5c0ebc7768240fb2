"""Definitions of a configuration: models, tools, agents, teams, chains, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

import regex
from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator

from cantata.bounds import MAX_BYTES, MAX_DURATION_S
from cantata.flows.instructions import FUNCTION, Chainbreaker, Instruction, PromptStep
from cantata.flows.schedules import Schedule, ScheduleName
from cantata.flows.waits import WaitOptions
from cantata.flows.wire import ChainNode, WebhookEvent
from cantata.values import BoundedObject, Duration, NumberOfSeconds, Params, Value, checked_name

QueueName = Annotated[str, AfterValidator(partial(checked_name, "queue"))]
"""A name that also occurs in Redis keys, in access rules for them, in addresses and in metric labels."""


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):  # not quoted: it may be a secret value
        raise ValueError(
            "expected the name of an environment variable; the value itself is set in the workers' environment"
        )
    return name


VariableName = Annotated[str, AfterValidator(_variable_name)]
"""An environment variable of the workers; a configuration contains the name, never the value."""


class ReplyCache(Value):
    """A cache of replies: the same request is answered without another model call."""

    ttl_s: NumberOfSeconds = Field(gt=0, le=30 * 86400, description="seconds that a reply is cached")
    share: Literal["tenant", "all"] = Field(
        "tenant",
        description="who gets a cached reply: the runs of the tenant that asked, or all; then tenants can learn what others asked",
    )


class Model(Value):
    """A named model: a LiteLLM model name with its parameters."""

    model: str = Field(description="a LiteLLM model name, such as openai/gpt-4o-mini or local/smollm2")
    params: Params = Field(
        default_factory=dict, description="passed to the model call unchanged: temperature, max_tokens, ..."
    )
    fallbacks: list[str] = Field(
        default_factory=list,
        description="names under `models` or LiteLLM names, asked in this order if the model fails",
    )
    fallback_after_s: NumberOfSeconds = Field(
        10.0,
        ge=0,
        le=MAX_DURATION_S,
        description="the longest pause, in seconds, that a call waits for while a fallback is left; else that is asked at once",
    )
    cache: ReplyCache | None = Field(default=None, description="cache of its replies; if absent, none are cached")


class McpServer(Value):
    """An MCP server: a command that is connected through its standard input and output, or a URL."""

    command: list[str] = Field(
        default_factory=list, description="program and arguments of a server that each worker process starts"
    )
    url: str | None = Field(default=None, description="URL of a server with streamable HTTP")
    env: list[str] = Field(
        default_factory=list,
        description="environment variables of the workers that are passed to the command, beside PATH, HOME and the like",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="HTTP header → the environment variable of the workers that contains its value",
    )
    timeout_s: Duration = Field(default=60.0, description="time limit of one call, in seconds")
    connect_timeout_s: Duration = Field(
        30.0, description="time limit of its start, in seconds; the first start of a packaged server may download it"
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
            raise ValueError(
                "'env' and 'headers' name environment variables; the values themselves are set in the workers' environment"
            )
        return self


class ScriptReference(Value):
    """A function that a workflow's file defines. A run stores its digest; workers read the text from their own files."""

    file: str = Field(description="the file, relative to the configuration's folder")
    function: str = Field(description="the function's name")
    digest: str = Field(description="SHA-256 of the script, in hex", pattern=r"^[0-9a-f]{64}$")


class Tool(Value):
    """A tool or skill that chains and agents may call: a Python function, an MCP server with its tools, or a question to people."""

    function: str | None = Field(
        default=None, description="module:name, importable from the configuration's folder", pattern=r"^[\w.]+:\w+$"
    )
    mcp: McpServer | None = Field(default=None, description="the server; its tools are called `name.tool`")
    script: ScriptReference | None = Field(
        default=None, description="a function that a workflow's file defines; set when one is read"
    )
    task: str | None = Field(
        None,
        min_length=1,
        description="name of a task of your own Celery application (CANTATA_APP); your workers execute it",
    )
    asks: bool | WaitOptions = Field(
        False,
        description="asks people: a call waits, without a worker, for a signal, whose value is the result; true, or how it asks",
    )
    description: str = Field(default="", description="what it does, for people and models")
    queue: str = Field(
        default_factory=lambda given: "agents" if given.get("mcp") else "" if given.get("task") else "tools",
        description="the queue whose workers run it; agents for an MCP server, whose calls only wait. Of a task your own queue; if absent, "
        "your application's routes choose it",
    )
    timeout_s: Duration | None = Field(
        None,
        description="time limit of one attempt, in seconds; then the worker child is killed. Of a task, 600 if absent, with its time in "
        "your queue; then it is revoked, but not killed",
    )
    heartbeat_s: NumberOfSeconds | None = Field(
        None,
        ge=1,
        le=86400,
        description="of a task that calls `cantata.heartbeat()`: the seconds without such a call after which its worker is lost",
    )
    retries: int = Field(default=0, ge=0, le=100, description="retries after the first attempt")
    cheap: bool | None = Field(
        default=None, description="declares it cheap (true) or costly (false); measured by the workers if absent"
    )
    at_most_once: bool = Field(
        default=False, description="a call is never repeated: if its worker dies, a person reports its outcome"
    )
    pure: bool = Field(
        default=False,
        description="a call has no effects: several are recorded at once, so a dying worker may cost those again",
    )
    values: Params = Field(
        default_factory=dict, description="fixed arguments of each call, which no model sees and no input changes"
    )
    hidden: list[str] = Field(
        default_factory=list, description="parameters that no model sees: their values are in `values`, or the defaults"
    )
    parameters: BoundedObject | None = Field(
        None,
        description="JSON schema of the arguments, for models; needed where agents run without the function's module",
    )

    def wait_params(self) -> dict[str, JsonValue]:
        """Return how it asks people, as parameters of a step that waits."""
        return self.asks.params() if isinstance(self.asks, WaitOptions) else {}

    @field_validator("queue")
    @classmethod
    def _is_ours_or_of_a_task(cls, queue: str, info: ValidationInfo) -> str:
        return queue if info.data.get("task") else checked_name("queue", queue)

    @model_validator(mode="after")
    def _is_one_thing(self) -> Tool:
        if sum(each is not None for each in (self.function, self.mcp, self.script, self.task)) + bool(self.asks) != 1:
            raise ValueError("a tool is either a 'function', a 'task' or an 'mcp' server, or it 'asks' people")
        if self.task and self.cheap is not None:
            raise ValueError("'cheap' belongs to a function; a task runs on your own workers")
        if self.heartbeat_s is not None and not self.task:
            raise ValueError("'heartbeat_s' belongs to a task, whose code calls cantata.heartbeat()")
        if self.asks and self.parameters is None:
            raise ValueError(
                "a tool that 'asks' people needs 'parameters': the arguments that a model may pass to them"
            )
        for option in ("values", "hidden", "parameters"):
            if self.mcp and getattr(self, option):
                raise ValueError(
                    f"{option!r} belongs to a function; an 'mcp' server declares the parameters of its tools itself"
                )
        return self

    @model_validator(mode="after")
    def _options_fit_each_other(self) -> Tool:
        if self.at_most_once and self.retries:
            raise ValueError("'at_most_once' means that a call is never repeated; leave 'retries' out")
        if self.pure and (self.at_most_once or not (self.function or self.script)):
            raise ValueError("'pure' belongs to a function that may be repeated; leave it out")
        if self.parameters is None:
            return self
        shown = self.parameters.get("properties", {})
        if self.parameters.get("type") != "object" or not isinstance(shown, dict):
            raise ValueError("'parameters' is the JSON schema of an object: {type: object, properties: {...}}")
        for name in self.unseen & shown.keys():
            raise ValueError(f"{name!r} is hidden from models, but 'parameters' shows it")
        return self

    def step_kind(self, method: str = "") -> str:
        """Return the kind of the steps that call it, or the tool `method` of a server."""
        return "wait" if self.asks else "task.call" if self.task else "mcp.call" if method else "tool.call"

    @property
    def step_queue(self) -> str:
        """Return the queue of the steps that call it."""
        return "tasks" if self.task else self.queue

    @property
    def unseen(self) -> frozenset[str]:
        """Return the parameters that no model sees."""
        return frozenset((*self.hidden, *self.values))


class Command(Value):
    """A command that `proc` nodes may run; no other command is ever run."""

    command: list[str] = Field(min_length=1, description="program and fixed arguments; a node's `args` are appended")
    env: list[VariableName] = Field(
        default_factory=list,
        description="environment variables of the workers that are passed to it, beside PATH, HOME and the like",
    )
    timeout_s: Duration = Field(default=60.0, description="time limit in seconds; then it is killed")
    args: Literal["operands", "any", "none"] | None = Field(
        default=None,
        description="what a node's `args` may be: `operands`, before which `--` is put, so that none is an option; `any`; or `none`. "
        "If absent, as `any`, and `submit check` warns",
    )


class PythonWorkflow(Value):
    """A workflow in Python."""

    function: str = Field(description="`module:name` of the function, decorated with @workflow")
    timeout_s: Duration | None = Field(
        default=None, description="time limit of a run of it, in seconds; none if absent, since it may sleep"
    )
    cancel_grace_s: NumberOfSeconds | None = Field(
        None,
        ge=0,
        le=MAX_DURATION_S,
        description="how long it may clean up when its run is cancelled, in seconds, 30 if absent; with 0 it ends at once",
    )
    queue: QueueName = Field(
        default="tools", description="the queue whose workers execute its code, between its awaits"
    )


class Example(Value):
    """An example of an agent's answer."""

    input: str = Field(description="the input of the agent")
    output: str = Field(description="the expected answer")


class OutputSchema(Value):
    """The schema of an agent's answer."""

    json_schema: BoundedObject | None = Field(
        None, alias="schema", description="JSON schema; the agent's output is the parsed object"
    )
    model_class: str | None = Field(
        None,
        alias="class",
        description="module:Model, a pydantic model beside the configuration, in place of a schema",
        pattern=FUNCTION,
    )
    trials: int = Field(
        default=2,
        ge=0,
        le=20,
        description="corrections that the model is asked for, each with the errors of the validator",
    )

    @model_validator(mode="after")
    def _is_one(self) -> OutputSchema:
        if (self.json_schema is None) == (self.model_class is None):
            raise ValueError("give a 'schema' or a 'class', one of them")
        return self


MessageRole = Literal["user", "assistant", "system_error"]
"""The author of an entry of a conversation: the user, an agent, or Cantata for a turn that failed."""


class History(Value):
    """The part of a session's conversation that an agent sees."""

    enabled: bool | None = Field(
        None,
        description="whether it sees any; by default if it answers alone or is chosen, but not in pipelines, broadcasts and chains",
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="the newest entries up to this many tokens; the team's limit if absent"
    )
    max_entries: int | None = Field(default=None, ge=1, description="maximum number of the newest entries")
    truncation_strategy: Literal["oldest_first", "keep_last"] = Field(
        "oldest_first", description="what is dropped past the limit: the oldest entries, or all but the last one"
    )
    include_types: list[MessageRole] = Field(
        default_factory=lambda: list[MessageRole](("user", "assistant")),
        description="authors of the entries that it sees",
    )
    exclude_sources: list[str] = Field(default_factory=list, description="agents whose answers it does not see")


class Agent(Value):
    """A model with a role: each instruction is one model turn, and its input is the answer before it."""

    description: str = Field(default="", description="what it is good at, for people and other agents")
    model: str | None = Field(
        default=None, description="a name under `models` or a LiteLLM name; the default model if absent"
    )
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    system: str | None = Field(default=None, description="the system message of each turn")
    models: list[str | Model] = Field(
        default_factory=list,
        description="in place of `model`: one for all texts, or one for each text among the instructions",
    )
    instructions: list[Instruction] = Field(
        default_factory=lambda: list[Instruction](("{input}",)),
        min_length=1,
        description="in order: texts (`{input}` is the answer before, or the input), functions, agentic steps, agents, chains",
    )
    tools: list[str] = Field(
        default_factory=list, description="names under `tools` that its model may call; `server.tool` for MCP servers"
    )
    max_tool_rounds: int = Field(
        default=25, ge=1, description="rounds of tool calls for one text, before it must answer without tools"
    )
    dialect: Literal["native", "json"] = Field(
        "native", description="how its model calls tools: by the provider's tool calls, or by JSON replies with `mcp`"
    )
    response_mode: Literal["integrated", "streaming"] = Field(
        "integrated",
        description="after a JSON call: the model is asked again, or its reply and the result are the answer",
    )
    fallback_on: list[Literal["refusal", "content_filter"]] = Field(
        default_factory=list,
        description="errors after which the model's fallbacks are asked too, though the model, or a filter, refused",
    )
    stream: bool | None = Field(
        None,
        description="whether events carry its model's reply while it streams; by default in turns, but not in chains",
    )
    chainbreakers: list[Chainbreaker] = Field(
        default_factory=list,
        description="each as module:name too; called after each instruction with (step, output[, info]) → (stop, reason, output)",
    )
    store_steps: bool = Field(
        default=False, description="keep the output of each instruction, as `steps` of the result"
    )
    full_history: bool = Field(
        default=False, description="show the model its earlier turns, and return the list of all steps"
    )
    examples: list[Example] = Field(
        default_factory=list,
        description="shown to the model as earlier turns; the embedded model scores labels by them",
    )
    output: OutputSchema | None = Field(default=None, description="structured output of the last instruction")
    history: History = Field(default_factory=History, description="the part of its session's conversation that it sees")
    queue: QueueName = Field(default="agents", description="the queue whose workers call its model")
    timeout_s: Duration = Field(default=60.0, description="time limit of one model call, in seconds")
    retries: int = Field(
        default=3, ge=0, le=100, description="retries after a failure that may pass (429, 5xx, timeouts, connections)"
    )

    @model_validator(mode="after")
    def _models_fit_the_texts(self) -> Agent:
        if self.models and self.model:
            raise ValueError("give 'model' or 'models', not both")
        texts = sum(isinstance(each, str | PromptStep) for each in self.instructions)
        if len(self.models) > 1 and len(self.models) != texts:
            raise ValueError(
                f"there are {len(self.models)} models for {texts} texts; give one for all, or one for each"
            )
        return self


class Synthesizer(Value):
    """A model that merges the answers of a broadcast's agents into one."""

    model: str | None = Field(default=None, description="as of an agent")
    prompt: str = Field(
        description="template; `{agent_responses}` is a JSON object name → text, `{user_input}` the turn's text"
    )
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    timeout_s: Duration = Field(default=60.0, description="time limit of its model call, in seconds")
    retries: int = Field(default=3, ge=0, le=100, description="retries after a failure that may pass")


class TeamRule(Value):
    """A rule that chooses an agent without a model call: by a pattern, or by a function."""

    match: str | None = Field(
        default=None, description="a regular expression, found anywhere in the text; `(?i)` first ignores case"
    )
    function: str | None = Field(
        None,
        description="module:name, called with the text; returns the name of an agent, or true for `agent`",
        pattern=FUNCTION,
    )
    agent: str | None = Field(default=None, description="the agent that is chosen")

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
                raise ValueError(f"'match' is not a regular expression: {error}") from None
        return self


Strategy = Literal["single_agent_dispatch", "static_plan", "dynamic_decomposition"]
"""The decision of a router: who answers, in which order agents work, or what is done next."""


class Router(Value):
    """A model or function that chooses among a team's agents."""

    models: list[str | Model] = Field(
        default_factory=list, max_length=1, description="one model; the default one if absent"
    )
    instructions: list[str | None] = Field(
        default_factory=lambda: list[str | None]((None, "{input}")),
        description="null, which means the prompt from the template, and the text that the model gets with it",
    )
    decision_prompt_template: str | None = Field(
        None, description="template of the prompt with `{user_input}`, `{history}` and `{agent_details}`"
    )
    decision_prompt_templates: dict[Strategy, str] = Field(default_factory=dict, description="the same, by strategy")
    params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    function: str | None = Field(
        None,
        description="module:name, called with (user_input, history, agent_descriptions) in place of a model",
        pattern=FUNCTION,
    )
    timeout_s: Duration = Field(default=30.0, description="time limit of a decision, in seconds")
    retries: int = Field(default=3, ge=0, le=100, description="retries after a failure of its model that may pass")

    @model_validator(mode="after")
    def _fits(self) -> Router:
        if len(self.instructions) != 2 or self.instructions[0] is not None or not self.instructions[1]:
            raise ValueError(
                "'instructions' is [null, text]: the text is what the model gets with the prompt, such as '{input}'"
            )
        if self.function and (
            self.models or self.params or self.decision_prompt_template or self.decision_prompt_templates
        ):
            raise ValueError("a router is either a 'function' or a model with its template")
        return self

    def template(self, strategy: Strategy) -> str | None:
        """Return the template for a strategy; None if there is none."""
        return self.decision_prompt_templates.get(strategy, self.decision_prompt_template)


Mode = Literal["pipeline", "broadcast", "router", "round_robin"]


class Team(Value):
    """Agents that answer user turns together."""

    description: str = Field(default="", description="what it is good at, for people")
    mode: Mode = Field(description="how the agents work together; `round-robin` means `round_robin`")
    agents: list[str] = Field(min_length=1, description="names under `agents`, in order")
    rules: list[TeamRule] = Field(
        default_factory=list, description="router: evaluated first, in order; the first rule that matches chooses"
    )
    router: Router | None = Field(
        None,
        description="router: chooses if no rule matches; if absent, the default agent answers, or the default model chooses",
    )
    strategy: Strategy = Field(default="single_agent_dispatch", description="router: its kind of decision")
    default_agent: str | None = Field(
        default=None, description="router: the agent that answers if the router does not choose"
    )
    max_internal_steps: int = Field(default=3, ge=1, le=1000, description="router: agents that may run in one turn")
    auto_include_history: bool = Field(
        default=False, description="whether each agent's input begins with the conversation so far, as text"
    )
    max_history_tokens: int = Field(
        default=4000, ge=1, description="tokens of the conversation that router and agents see"
    )
    synthesizer: Synthesizer | None = Field(
        default=None, description="broadcast: merges the answers; without it the answer is their JSON object"
    )
    min_responses: int | None = Field(
        default=None, ge=1, description="broadcast: continue when this many agents have answered"
    )
    deadline_s: Duration | None = Field(
        default=None, description="broadcast: seconds after which late agents are cancelled and listed"
    )

    @field_validator("mode", mode="before", json_schema_input_type=Mode | Literal["round-robin"])
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
        chosen = [
            ("default_agent", self.default_agent),
            *((f"rules[{i}]", rule.agent) for i, rule in enumerate(self.rules)),
        ]
        for place, name in chosen:
            if name is not None and name not in self.agents:
                raise ValueError(
                    f"{place}: {name!r} is not an agent of the team, which has {', '.join(map(repr, self.agents))}"
                )
        return self


OPTIONS_OF_MODES: Mapping[str, str] = {
    **dict.fromkeys(("rules", "router", "strategy", "default_agent", "max_internal_steps"), "router"),
    **dict.fromkeys(("synthesizer", "min_responses", "deadline_s"), "broadcast"),
}
"""The options of a team that only one mode has."""


class Chain(Value):
    """A named chain, which a chain request may run as one node, and `submit chain` by name."""

    nodes: list[ChainNode] = Field(min_length=1, description="all nodes")
    entry_node: str = Field(description="starting node id")
    description: str = Field(default="", description="what it does, for people")
    inputs: BoundedObject = Field(
        default_factory=dict,
        description="its declared inputs: name → type, or a JSON Schema with `type: object` and `properties`",
    )
    answers: dict[str, str] = Field(
        default_factory=dict,
        description="name → expression: its output if it runs as one node or answers a turn. A single value that is not null "
        "is the output itself, several are an object; the outputs of its last nodes if absent. If no node that they read has an "
        "output, it is that of the last node that has one",
    )
    dropped: list[str] = Field(default_factory=list, description="nodes whose outputs are never its output")
    timeout_s: NumberOfSeconds | None = Field(
        default=None, gt=0, le=30 * 86400, description="time limit of a turn that it answers, in seconds"
    )


class Defaults(Value):
    """Defaults of agents, turns and runs."""

    model: str = Field(default="local/smollm2", description="model of agents that name none")
    team: str | None = Field(default=None, description="team of turns that name none")
    agent: str | None = Field(default=None, description="agent of turns that name none, if there is no default team")
    timeout_s: NumberOfSeconds = Field(
        300.0,
        gt=0,
        le=30 * 86400,
        description="time limit of a run, in seconds; time in which it only waits for a person is free",
    )
    retention_s: NumberOfSeconds = Field(
        default=86_400.0, gt=0, le=30 * 86400, description="seconds that a finished run is kept"
    )
    max_attempts: int = Field(
        default=3, ge=1, le=100, description="workers that may die on a step before it fails as a poison step"
    )
    max_concurrency: int = Field(
        256,
        ge=1,
        le=10_000,
        description="items of one map under way at once, so that it neither floods the broker nor starves others",
    )


class SessionSettings(Value):
    """Retention and limits of the conversations of sessions."""

    retention_s: NumberOfSeconds = Field(
        default=30 * 86400.0,
        gt=0,
        le=3650 * 86400,
        description="seconds that a conversation is kept after its last turn",
    )
    max_entries: int = Field(
        default=1000, ge=2, le=100_000, description="entries kept of one conversation; the oldest are dropped"
    )
    max_waiting: int = Field(
        default=100, ge=1, le=10_000, description="turns of one session that may wait in its queue"
    )


class Rates(Value):
    """Rate limits of the calls to a model, or of a tenant, over all workers."""

    rpm: int | None = Field(default=None, ge=1, description="calls started in any 60 seconds; unlimited if absent")
    tpm: int | None = Field(
        default=None, ge=1, description="input and output tokens of the calls started in any 60 seconds"
    )
    concurrency: int | None = Field(default=None, ge=1, description="calls under way at once")


class Budget(Value):
    """A limit of spending; a call that may cost more than what is left is not made."""

    usd: float | None = Field(
        default=None, ge=0, description="US dollars, by LiteLLM's prices; a call whose price is unknown counts nothing"
    )
    tokens: int | None = Field(default=None, ge=0, description="input and output tokens")


class Budgets(Value):
    """Budgets of runs, tenants and days. Days are in UTC by Redis's clock; a call belongs to the day of its start."""

    run: Budget = Field(default_factory=Budget, description="one run, in total")
    tenant: Budget = Field(
        default_factory=Budget, description="all runs of one tenant in a day; runs without the label are a tenant too"
    )
    day: Budget = Field(default_factory=Budget, description="all runs of all tenants in a day")


class Quota(Value):
    """The quota of one tenant. Past it, new runs and whatever else it stores are rejected; runs under way continue."""

    open_runs: int | None = Field(default=None, ge=0, description="runs that are not over; unlimited if absent")
    kept_bytes: int | None = Field(
        None,
        ge=0,
        description="all that is stored for it, until it is deleted or expires: runs, signals, conversations, schedules, "
        "batches, builders, memories and cached replies; unlimited if absent",
    )
    log_bytes: int | None = Field(
        default=None, ge=0, description="log lines of its runs, until they expire; if absent, only each run is limited"
    )
    early_signals: int | None = Field(
        None,
        ge=0,
        description="signals of its open runs for steps that do not wait yet; if absent, only each run is limited",
    )
    open_deliveries: int = Field(
        default=10_000,
        ge=1,
        description="runs under way that post to webhooks; further messages wait, and none is refused",
    )
    names: int | None = Field(
        default=None, ge=0, description="sessions, schedules, batches and builders, together; unlimited if absent"
    )
    memory_namespaces: int = Field(
        default=10_000, ge=0, description="namespaces of memories, those of sessions included"
    )
    memory_bytes: int = Field(
        default=1_000_000_000, ge=0, description="memories with their keys, until they are deleted or expire"
    )


class Limits(Value):
    """Limits that keep one run from harming the others."""

    max_nodes: int = Field(default=10_000, ge=1, description="nodes in one chain request")
    max_steps: int = Field(default=100_000, ge=1, description="steps of one run, expansions included")
    output_bytes: int = Field(
        default=MAX_BYTES, ge=1, description="size of one output as JSON; 16 MB keeps Redis calls under 0.1 s"
    )
    input_bytes: int = Field(default=MAX_BYTES, ge=1, description="size of one request as JSON")
    expression_nodes: int = Field(
        2_000_000, ge=1, description="values that the expressions of one step may visit; 2 million take about 2 s"
    )
    expression_bytes: int = Field(
        default=64_000_000, ge=1, description="size of the values that the expressions of one step produce, as JSON"
    )
    render_s: Duration = Field(
        10.0, description="time limit of a Jinja template of a prompt, in seconds; then the rendering process is killed"
    )
    max_pause_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="the longest pause of a model for all runs, in seconds, whatever its provider asks for; then one call asks again",
    )
    models: dict[str, Rates] = Field(default_factory=dict, description="LiteLLM name → rate limits of that model")
    tenants: dict[str, Rates] = Field(
        default_factory=dict, description="label `tenant` of a run → rate limits of that tenant over all models"
    )
    budgets: Budgets = Field(
        default_factory=Budgets, description="limits of spending; past them a run ends as `exhausted`"
    )
    quotas: dict[str, Quota] = Field(
        default_factory=dict,
        description="label `tenant` of a run → quota of that tenant; `*` is for all tenants that are not named",
    )

    def quota_of(self, tenant: str) -> Quota:
        """Return the quota of a tenant."""
        return self.quotas.get(tenant) or self.quotas.get("*") or Quota()


class Extension(Value):
    """Agents of a further format. Only the step handlers of that format read their settings."""

    kind: str = Field(description="kind of the step that answers a turn: its output is the answer")
    agents: list[str] = Field(min_length=1, description="names of the agents")
    first_agent: str = Field(description="the agent that gets the user's text")
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="the format's own definitions")


def fault_of_url(url: str) -> str | None:
    """Return why a URL cannot be posted to; None if it can."""
    if re.match(r"https?://[^/@\s]+(/|$)", url):
        return None
    return "a webhook's URL must be http:// or https:// and without a password; its messages are signed"


class Webhook(Value):
    """A URL to which events of runs are posted, signed."""

    url: str = Field(description="http:// or https://")
    secret_env: VariableName = Field(
        "CANTATA_WEBHOOK_SECRET",
        description="environment variable of the agents workers that contains the secret of its signature",
    )
    on: list[WebhookEvent] = Field(
        default_factory=list,
        description="the events of each run of this configuration; if empty, only runs that name it are posted",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="only runs with these labels may use it")
    body: Literal["result", "link"] = Field(
        default="result", description="whether a message has the result of the run, or only its link"
    )
    allow_private: bool = Field(
        default=False, description="whether its host may have private, loopback and link-local addresses"
    )

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if fault := fault_of_url(url):
            raise ValueError(fault)
        return url


class Alert(Value):
    """A condition that is posted to a webhook."""

    on: Literal["failed_runs", "mixed_code", "schedule_missed", "batch_failures"] = Field(
        description="failed_runs: `count` runs failed in `within_s`; mixed_code: workers had several versions of a module for `within_s`; "
        "schedule_missed: a schedule did not start a run at its time; batch_failures: more than `share` of a batch's rows failed"
    )
    webhook: str = Field(description="a name under `webhooks`")
    name: str | None = Field(
        None,
        description="failed_runs: only runs of this workflow, team, agent, chain or `chain_id`; schedule_missed: only this schedule; "
        "batch_failures: only batches for this agent, team, chain or workflow; all if absent",
    )
    count: int = Field(default=1, ge=1, le=10_000, description="failed_runs: how many")
    share: float = Field(
        default=0.1, ge=0, lt=1, description="batch_failures: the part of the rows that may fail, from 20 rows on"
    )
    within_s: NumberOfSeconds = Field(
        default=600.0,
        ge=60,
        le=30 * 86400,
        description="seconds; an alert of failed runs comes at most once in so long",
    )


class Definitions(Value):
    """All that a run may refer to, resolved when it starts and stored with it."""

    version: Literal[1] = Field(default=1, description="of this format")
    folder: str | None = Field(
        default=None, description="folder that functions are imported from; set when the file is read"
    )
    models: dict[str, Model] = Field(default_factory=dict, description="short names for models with their parameters")
    tools: dict[str, Tool] = Field(
        default_factory=dict, description="functions and servers that nodes of kind `tool` call"
    )
    skills: dict[str, Tool] = Field(
        default_factory=dict, description="functions and servers that nodes of kind `skill` call"
    )
    commands: dict[str, Command] = Field(
        default_factory=dict, description="commands that `proc` nodes may run; none by default"
    )
    agents: dict[str, Agent] = Field(
        default_factory=dict, description="agents that answer turns, alone or in teams, and nodes of chains"
    )
    teams: dict[str, Team] = Field(default_factory=dict, description="agents that answer together")
    chains: dict[str, Chain] = Field(default_factory=dict, description="named chains")
    workflows: dict[str, PythonWorkflow] = Field(default_factory=dict, description="workflows in Python")
    webhooks: dict[str, Webhook] = Field(default_factory=dict, description="URLs to which events of runs are posted")
    alerts: dict[str, Alert] = Field(default_factory=dict, description="conditions that are posted to webhooks")
    schedules: dict[ScheduleName, Schedule] = Field(
        default_factory=dict,
        exclude=True,
        description="when runs start by themselves; `submit schedules apply` puts them into effect",
    )
    refused: dict[str, list[str]] = Field(
        default_factory=dict,
        description="chains that have faults, and are refused when they are called; set when files are read",
    )
    extension: Extension | None = Field(
        default=None, description="agents of a further format; set when its files are read"
    )
    defaults: Defaults = Field(default_factory=Defaults, description="defaults of agents, turns and runs")
    limits: Limits = Field(default_factory=Limits, description="limits of each run")
    sessions: SessionSettings = Field(
        default_factory=SessionSettings, description="retention and limits of conversations"
    )

    def model_of(self, name: str | None) -> Model:
        """Return the model called `name`, or the default one; a name not under `models` is a LiteLLM name."""
        wanted = name or self.defaults.model
        return self.models.get(wanted) or Model(model=wanted)

    def with_fallbacks(self, model: Model) -> list[Model]:
        """Return the model and its fallbacks; fallbacks of fallbacks are ignored."""
        return [model, *map(self.model_of, model.fallbacks)]

    def with_model(self, name: str | None) -> Definitions:
        """Return the definitions with another default model; unchanged without a name."""
        return self.model_copy(update={"defaults": self.defaults.model_copy(update={"model": name})}) if name else self


def mcp_tool(name: str, tools: Mapping[str, Tool]) -> tuple[str, str] | None:
    """Return the server and its tool that `server.tool` names; None if the name is a tool itself, or there is no such server."""
    parts = [] if name in tools else name.split(".")
    ways = ((".".join(parts[:cut]), ".".join(parts[cut:])) for cut in range(len(parts) - 1, 0, -1))
    return next(((server, tool) for server, tool in ways if tool and server in tools and tools[server].mcp), None)
