"""Folders as Diskurs has them, written by tests, and what their models were asked."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.config import loading
from cantata.flows.wire import RunResult
from cantata.ledger.records import RunRecord, StepRecord
from cantata.testing import ScriptedModels

PATIENCE_S = 40.0

CONCEPTS_SYSTEM = """
- You are a helpful assistant, a seasoned expert in the area of {{ topic }}.
- Your audience consists of {{ mode }}.
- You can answer a user's queries and extract entities from the provided text.
"""
CONCEPTS_USER = """
{% if not name or not topic or not user_question %}
Extract all the following entities from the user's query:
- name: the user's name
- topic: the topic of the user's query
- user_question: a concise description of the user's question
{% else %}
- The user's name is {{ name }}.
- They are asking questions about {{ topic }}.
- The user's query is: {{ user_question }}.
Answer the user's question and output the answer in the answer field.
{% endif %}
"""
CONCEPTS_CODE = """
from dataclasses import dataclass
from diskurs import PromptValidationError
from diskurs.entities import PromptArgument

@dataclass
class MySystemPromptArgument(PromptArgument):
    topic: str = "Cybersecurity"
    mode: str = "professional network engineers"

@dataclass
class FirstUserPromptArgument(PromptArgument):
    name: str = ""
    topic: str = ""
    user_question: str = ""
    answer: str = ""

valid_topics = ["firewall", "proxy", "connectivity"]

def is_valid(arg: FirstUserPromptArgument) -> bool:
    if topic := arg.topic:
        if topic not in valid_topics:
            raise PromptValidationError(f"Please assign a valid topic. Valid topics are: {valid_topics}")
    if arg.topic and not arg.user_question:
        raise PromptValidationError("Please extract a concise description of the user's question")
    return True

def is_final(arg: FirstUserPromptArgument) -> bool:
    return len(arg.answer) > 10 and arg.topic
"""
CONDUCTOR_CODE = """
from dataclasses import dataclass
from diskurs.entities import LongtermMemory

@dataclass
class MyLongtermMemory(LongtermMemory):
    user_query: str = ""
    topic: str = ""
    answer: str = ""

def can_finalize(longterm_memory: MyLongtermMemory) -> bool:
    return bool(longterm_memory.answer)

def finalize(longterm_memory: MyLongtermMemory) -> dict:
    return {"answer": longterm_memory.answer, "topic": longterm_memory.topic}
"""
CONFIG = """
firstContact: conductor
toolExecutorType: default
dispatcherType: synchronous
llms:
  - {name: main, type: openai, modelName: gpt-4o-mini, modelMaxTokens: 8192, apiKey: "${OPENAI_API_KEY}"}
agents:
  - name: conductor
    type: conductor
    llm: main
    prompt: {type: conductor_prompt, location: agents/conductor, longtermMemoryClass: MyLongtermMemory, canFinalizeName: can_finalize}
    topics: [helper]
  - name: helper
    type: multistep
    llm: main
    prompt:
      type: multistep_prompt
      location: agents/helper
      systemPromptArgumentClass: MySystemPromptArgument
      userPromptArgumentClass: FirstUserPromptArgument
      isValidName: is_valid
      isFinalName: is_final
    topics: [conductor]
"""
CONCEPTS = {
    "config.yml": CONFIG,
    "agents/conductor/prompt.py": CONDUCTOR_CODE,
    "agents/helper/agent_description.txt": "Answers questions about networks.",
    "agents/helper/prompt.py": CONCEPTS_CODE,
    "agents/helper/system_prompt.jinja2": CONCEPTS_SYSTEM,
    "agents/helper/user_prompt.jinja2": CONCEPTS_USER,
}
"""The agent of Diskurs's concepts page, as it stands there, and a conductor with the default prompts."""


class Stage:
    """Asks a folder's agents and tells what came of it."""

    def __init__(self, url: str, models: ScriptedModels, folder: Path) -> None:
        self.url = url
        self._models = models
        self._before = len(models.journal())
        self._clients = ExitStack()
        self.folder = folder
        models.script([])

    def write(self, files: Mapping[str, str], **changed: str) -> None:
        """Write the folder; `config` is short for config.yml."""
        for name, text in {**files, **({"config.yml": changed["config"]} if changed else {})}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), "utf-8")

    def script(self, *replies: Any) -> None:
        """What the models say, one after the other: JSON, a text, or a rule."""
        self._models.script([_rule(reply) for reply in replies])

    def submit(
        self, text: str = "hello", *, session: str | None = None, labels: Mapping[str, str] | None = None
    ) -> TurnRun:
        """Submit a turn."""
        client = self._clients.enter_context(Client(self.url, config=loading.load(self.folder / "config.yml")))
        return client.submit_turn(text, session=session, labels=labels)

    def ask(self, text: str = "hello", **more: Any) -> RunResult:
        """Submit a turn and wait for its end."""
        return self.submit(text, **more).result(PATIENCE_S)

    def requests(self) -> list[dict[str, Any]]:
        """What the models were asked."""
        return self._models.journal()[self._before :]

    def asked(self) -> list[str]:
        """The last message of each request."""
        return [str(line["text"]) for line in self.requests()]

    def record(self, run_id: str) -> RunRecord:
        """All steps of a run."""
        with Client(self.url) as client:
            return client.ledger.reader.read(run_id)

    def log_events(self, run_id: str) -> list[str]:
        """The names of what its workers logged."""
        with Client(self.url) as client:
            return [line.event for line in client.run(run_id).logs()]

    def steps(self, run_id: str, kind: str) -> list[StepRecord]:
        """The steps of a kind, in the order in which they were done."""
        return [step for step in self.record(run_id).steps.values() if step.spec.kind == kind]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()


def _rule(reply: Any) -> dict[str, Any]:
    if isinstance(reply, dict) and reply.keys() & {"reply", "tool_calls", "status", "match"}:
        return {"times": 1, **reply}
    return {"times": 1, "reply": reply if isinstance(reply, str) else json.dumps(reply)}
