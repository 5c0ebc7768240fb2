"""The keys of LangSwarm's files in both of its versions, and their aliases."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS = ("agents", "tools", "workflows")

TOP = frozenset({*SECTIONS, "version", "project_name", "name", "description", "include", "includes", "memory"})

IGNORED_BLOCKS = frozenset(
    {"advanced", "security", "observability", "server", "langswarm", "brokers", "experimental_features"}
)
"""Blocks about LangSwarm's own process. They are ignored: the fleet has settings for their purposes."""

SPLIT_FILES = tuple(f"{section}.{ending}" for section in SECTIONS for ending in ("yaml", "yml"))
FILES = ("langswarm.yaml", "langswarm.yml", *SPLIT_FILES)
"""The files of a folder: the main file, and those of one section each."""

CHAIN_KEYS = frozenset(
    {
        "id",
        "name",
        "description",
        "inputs",
        "variables",
        "steps",
        "execution_mode",
        "async",
        "timeout",
        "continue_on_error",
        "input_schema",
    }
    | {
        "output_schema",
        "settings",
        "error_strategy",
        "retry",
        "retry_policy",
        "timeout_seconds",
        "workflow",
        "simple",
        "retry_count",
    }
    | {"agent", "agent_id", "tool_ids"}
)
MODES = ("sync", "async", "streaming", "parallel", "sequential", "conditional")

ALIASES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "step"),
    "agent": ("agent", "agent_id"),
    "tool": ("tool", "tool_name"),
    "function": ("function",),
    "invoke_workflow": ("invoke_workflow", "workflow", "workflow_id"),
    "input": ("input", "inputs", "input_template", "tool_input"),
    "args": ("args", "parameters", "params", "tool_config"),
    "depends_on": ("depends_on", "dependencies"),
    "true_step": ("true_step", "if_true", "true_branch"),
    "false_step": ("false_step", "if_false", "false_branch"),
    "on_error": ("on_error", "fallback_step"),
    "retry": ("retry", "retry_count"),
    "approval": ("approval", "wait"),
    "output_key": ("output_key", "save_as", "output_to", "outputs"),
    "timeout": ("timeout", "timeout_seconds"),
    "condition": ("condition", "conditions"),
}
"""Key of a step → its names, the usual one first."""

KINDS = ("loop", "invoke_workflow", "transform", "function", "tool", "agent", "approval")
"""The keys that determine what a step does."""

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("agent", "agent_step", "navigation"), "agent"),
    **dict.fromkeys(("tool", "tool_step"), "tool"),
    **dict.fromkeys(("function", "function_step"), "function"),
    **dict.fromkeys(("transform", "transform_step"), "transform"),
    **dict.fromkeys(("condition", "condition_step"), "condition"),
    **dict.fromkeys(("loop", "loop_step"), "loop"),
    **dict.fromkeys(("workflow", "subworkflow"), "invoke_workflow"),
    **dict.fromkeys(("approval", "human_approval", "wait"), "approval"),
}
"""Value of a step's `type` → what the step does."""

_PLACE = frozenset(
    {
        "id",
        "type",
        "name",
        "description",
        "depends_on",
        "output",
        "output_key",
        "fan_key",
        "is_fan_in",
        "fan_in_id",
        "async",
    }
)
_CALL = _PLACE | {
    "condition",
    "input",
    "retry",
    "retry_policy",
    "timeout",
    "on_error",
    "continue_on_error",
    "rollback_to",
    "rollback_limit",
}

STEP: Mapping[str, frozenset[str]] = {
    "agent": _CALL | {"agent", "no_mcp", "tools", "navigation", "args"},
    "function": _CALL | {"function", "args", "script"},
    "tool": _CALL | {"tool", "method", "args"},
    "transform": _CALL | {"transform", "function"},
    "invoke_workflow": (_CALL | {"invoke_workflow"}) - {"retry", "timeout"},
    "loop": (_CALL | {"loop"}) - {"input", "retry", "timeout"},
    "condition": _PLACE | {"condition", "true_step", "false_step"},
    "approval": _PLACE | {"condition", "approval", "timeout", "default"},
}
"""The keys that have an effect on a step, by what it does."""

ALL_STEP_KEYS = frozenset().union(*STEP.values())

PROVIDERS: Mapping[str, str] = {
    **dict.fromkeys(("openai", "langchain-openai", "langchain", "generic"), "openai"),
    **dict.fromkeys(("anthropic", "langchain-anthropic", "claude"), "anthropic"),
    **dict.fromkeys(("gemini", "google", "langchain-google"), "gemini"),
    **dict.fromkeys(("mistral", "langchain-mistral"), "mistral"),
    **dict.fromkeys(("cohere", "langchain-cohere"), "cohere"),
    **{each: each for each in ("azure", "huggingface", "ollama", "groq", "openrouter", "bedrock", "deepseek", "local")},
}
"""LangSwarm's name of a model provider → LiteLLM's."""

BEHAVIORS: Mapping[str, str] = {
    "helpful": "You are a helpful assistant. Answer clearly and to the point.",
    "coding": "You are an experienced programmer. Write correct, readable code and say why you chose it.",
    "research": "You research thoroughly. Give facts with where they come from, and say what is not certain.",
    "creative": "You are creative. Offer ideas of your own.",
    "analytical": "You analyse step by step and give the reasons for what you conclude.",
    "support": "You help customers, friendly and patiently, step by step.",
    "conversational": "You talk with people, naturally and briefly.",
    "educational": "You teach: explain simply, with examples, and check that it was understood.",
}
"""Value of `behavior` → system prompt."""

AGENT = frozenset(
    {
        "id",
        "name",
        "description",
        "agent_type",
        "provider",
        "type",
        "model",
        "system_prompt",
        "behavior",
        "tools",
        "memory",
        "streaming",
    }
    | {
        "response_mode",
        "max_tokens",
        "temperature",
        "top_p",
        "timeout",
        "max_tool_iterations",
        "retry",
        "instruction",
        "instructions",
    }
    | {"timeout_seconds", "retry_count", "max_iterations"}
    | {
        "system_prompt_additions",
        "system_prompt_file",
        "brief",
        "memory_enabled",
        "streaming_enabled",
        "response_format",
    }
)
TOOL = frozenset(
    {
        "id",
        "name",
        "type",
        "description",
        "settings",
        "local_mode",
        "pattern",
        "methods",
        "permissions",
        "function",
        "metadata",
        "module",
    }
    | {
        "command",
        "args",
        "url",
        "mcp_url",
        "env",
        "headers",
        "parameters",
        "timeout",
        "retry",
        "server_config",
        "brief",
    }
    | {"instruction", "identifier", "retry_count"}
)
