"""Names, attributes and ids of spans: OpenTelemetry's conventions for generative AI where there are any, else `cantata.*`.

Ids are computed from the run's id: nothing is stored or sent, and every machine gets the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cantata.flows.graph import Spec
from cantata.flows.step_kinds import kind_named
from cantata.values import ToolCallRequest, Usage

Attributes = dict[str, str | int | float | bool | Sequence[str]]

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TOOL_ROLES = frozenset({"tool", "function"})  # roles of steps whose spans are those of tools
PROVIDERS = {
    "azure": "azure.ai.openai", "azure_ai": "azure.ai.inference", "bedrock": "aws.bedrock", "gemini": "gcp.gemini",
    "mistral": "mistral_ai", "vertex_ai": "gcp.vertex_ai", "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip
"""Provider in LiteLLM → provider in the conventions, where they differ."""

REQUEST_ATTRIBUTES = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens", "max_completion_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty", "seed": "seed", "stop": "stop_sequences",
}  # fmt: skip
"""Parameter of a request → its name after `gen_ai.request.`."""

MAX_TEXT_CHARS = 20_000  # of one recorded message


@dataclass(slots=True)
class SubmissionSpan:
    """A submitted run; `run_id` stays empty if no run was created."""

    run_id: str = ""
    source: str = ""
    """The source run of a fork."""


def records_content() -> bool:
    """Return whether prompts, replies, and arguments and results of tools are recorded: only if the environment asks for it."""
    return os.environ.get(CAPTURE, "").strip().lower() == "true"


def step_name(spec: Spec) -> str:
    """Return the name of the span of a step."""
    if spec.role == "turn":
        return f"invoke_agent {spec.work_name}"
    return f"execute_tool {spec.work_name}" if spec.role in TOOL_ROLES else f"step {spec.kind}"


def step_attributes(
    spec: Spec, run_id: str, step_id: str, attempt: int, *, worker: str, tenant: str, session: str
) -> Attributes:
    """Return the attributes of a step that are known at its start."""
    found: Attributes = {
        "cantata.run.id": run_id, "cantata.step.id": step_id, "cantata.step.kind": spec.kind, "cantata.step.attempt": attempt,
        "cantata.queue": spec.queue, "cantata.worker": worker,
    }  # fmt: skip
    if spec.role == "turn":
        found |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": spec.work_name}
    elif spec.role in TOOL_ROLES:
        is_ours = not kind_named(spec.kind).is_external
        found |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": spec.work_name,
            "gen_ai.tool.type": "function" if is_ours else "extension",
        }
    elif spec.work:
        found["cantata.step.work"] = spec.work
    return found | _identity(tenant, session)


def run_attributes(fields: Mapping[str, str | None], run_id: str) -> Attributes:
    """Return the attributes of a closed run."""
    found: Attributes = {
        "cantata.run.id": run_id,
        "cantata.run.kind": fields["kind"] or "",
        "cantata.run.status": fields["status"] or "",
    }
    found["cantata.run.steps"] = int(fields["count"] or 0)
    tokens = Usage(input_tokens=int(fields["input_tokens"] or 0), output_tokens=int(fields["output_tokens"] or 0))
    found |= usage_attributes(tokens)
    if fields["cost_usd"]:
        found["cantata.cost_usd"] = float(fields["cost_usd"])
    session = (fields["session"] or "").rpartition("/")[2]
    return found | _identity(fields["tenant"] or "", session)


def error_of(fields: Mapping[str, str | None]) -> tuple[str, str]:
    """Return the code and the message of the error of a failed run."""
    error = json.loads(fields["error"] or "{}").get("error") or {}
    return str(error.get("code") or fields["status"]), str(error.get("message") or "")


def usage_attributes(usage: Usage) -> Attributes:
    """Return the attributes of a usage; none if no model was called."""
    if not (usage.input_tokens or usage.output_tokens):
        return {}
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cost_usd is not None:
        found["cantata.cost_usd"] = usage.cost_usd
    return found


def chat_span(provider: str, model: str, params: Mapping[str, Any], *, is_streamed: bool) -> tuple[str, Attributes]:
    """Return the name of the span of a model call, and the attributes that are known before the call."""
    found: Attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": model, "gen_ai.provider.name": PROVIDERS.get(provider, provider),
    }  # fmt: skip
    for param, attribute in REQUEST_ATTRIBUTES.items():
        value = params.get(param)
        if isinstance(value, str) and attribute == "stop_sequences":
            value = [value]
        if isinstance(value, int | float | list):
            found[f"gen_ai.request.{attribute}"] = value
    if is_streamed:
        found["gen_ai.request.stream"] = True
    return f"chat {model}", found


def output_messages(text: str, calls: Sequence[ToolCallRequest], finish_reason: str) -> str:
    """Return a reply in the format of `gen_ai.output.messages`."""
    parts = [{"type": "text", "content": text[:MAX_TEXT_CHARS]}] if text else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments[:MAX_TEXT_CHARS]}
        for call in calls
    ]
    return json.dumps([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}], ensure_ascii=False)


def input_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a prompt in the format of `gen_ai.input.messages`."""
    return json.dumps(
        [{"role": each.get("role", ""), "parts": _parts(each)} for each in messages], ensure_ascii=False, default=str
    )


def tool_content(fixed: object, inputs: Mapping[str, Any], output: str) -> Attributes:
    """Return the attributes with the arguments and the result (JSON text) of a tool."""
    arguments = json.dumps({**(fixed if isinstance(fixed, dict) else {}), **inputs}, ensure_ascii=False, default=str)
    return {
        "gen_ai.tool.call.arguments": arguments[:MAX_TEXT_CHARS],
        "gen_ai.tool.call.result": output[:MAX_TEXT_CHARS],
    }


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    text = (
        content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str) if content else ""
    )
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text[:MAX_TEXT_CHARS]}]
    parts: list[dict[str, Any]] = [{"type": "text", "content": text[:MAX_TEXT_CHARS]}] if text else []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = str(function.get("arguments", ""))[:MAX_TEXT_CHARS]
        parts.append({"type": "tool_call", "id": call.get("id"), "name": function.get("name"), "arguments": arguments})
    return parts


def _identity(tenant: str, session: str) -> Attributes:
    found: Attributes = {}
    if tenant:
        found["cantata.tenant"] = tenant
    if session:
        found["gen_ai.conversation.id"] = session
    return found


def trace_id(run_id: str) -> int:
    """Return the id of the trace of a run: 128 bits."""
    return _bits(f"run\n{run_id}", 16)


def run_span(run_id: str) -> int:
    """Return the id of the root span of a run: 64 bits."""
    return _bits(f"root\n{run_id}", 8)


def step_span(run_id: str, step_id: str, attempt: int) -> int:
    """Return the id of the span of one attempt of a step: 64 bits."""
    return _bits(f"step\n{run_id}\n{step_id}\n{attempt}", 8)


def _bits(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1  # 0 is not a valid id
