"""More folders: an agent of each kind."""

from __future__ import annotations

from tests.integration.fleet.diskurs_stage import CONCEPTS

LLMS = 'llms: [{name: main, type: openai, model_name: gpt-4o-mini, model_max_tokens: 8192, api_key: "${OPENAI_API_KEY}"}]\n'

TOOLS = {
    "config.yml": f"""
first_contact: conductor
{LLMS}
custom_modules: [{{name: desk_tools, location: tools/desk_tools.py}}]
tool_dependencies:
  - {{name: shelf, module_name: desk_tools, class_name: Shelf, parameters: {{goods: {{pen: 3}}}}}}
tools:
  - {{name: price, function_name: price, module_name: desk_tools, configs: {{currency: EUR}}, dependencies: [shelf]}}
  - {{name: whoami, function_name: whoami, module_path: tools/desk_tools.py}}
agents:
  - name: conductor
    type: conductor
    llm: main
    prompt: {{type: conductor_prompt, location: agents/conductor, longterm_memory_class: MyLongtermMemory}}
    topics: [clerk]
    max_dispatches: 5
  - name: clerk
    type: multistep
    llm: main
    tools: [price, whoami]
    locked_fields: {{shop: Corner}}
    prompt: {{type: multistep_prompt, location: agents/clerk, prompt_argument_class: Sale, json_formatting_template: form.jinja2}}
    topics: [conductor]
""",
    "agents/conductor/prompt.py": CONCEPTS["agents/conductor/prompt.py"],
    "agents/clerk/agent_description.txt": "Knows prices.",
    "agents/clerk/prompt.py": """
from __future__ import annotations

from dataclasses import dataclass

from diskurs import InputField, LockedField, OutputField, PromptArgument
from shops import SHOPS


@dataclass
class Sale(PromptArgument):
    user_query: InputField[str] = ""
    shop: LockedField[str] = ""
    answer: OutputField[str] = ""


def is_final(sale: Sale) -> bool:
    from shops import SHOPS as late

    return bool(sale.answer) and sale.shop in SHOPS and late is SHOPS
""",
    "agents/clerk/shops.py": "SHOPS = ['Corner']\n",
    "agents/clerk/form.jinja2": "Answer like {{ schema | tojson }}",
    "agents/clerk/system_template.jinja2": "You sell for {{ shop }}.",
    "agents/clerk/user_template.jinja2": "Sell: {{ user_query }}",
    "tools/desk_tools.py": '''
from diskurs import tool


class Shelf:
    def __init__(self, goods: dict) -> None:
        self.goods = goods


def create_price(configs: dict, shelf: Shelf):
    @tool
    def price(name: str, pieces: int, hidden: str = "nobody") -> str:
        """
        Tells what goods cost.

        :param name: what is sold
        :param pieces: how many
        :param hidden: [invisible] who asks
        :return: the price
        """
        return f"{shelf.goods[name] * pieces} {configs['currency']} for {hidden}"

    return price


@tool
async def whoami(hidden: str = "nobody") -> dict:
    """Tells who asks.

    :param hidden: [invisible] who asks
    """
    return {"name": hidden}
''',
}
"""Tools with a factory, a dependency and hidden parameters; keys in snake_case; one class of arguments with marked fields."""

JUDGED = {
    **CONCEPTS,
    "config.yml": f"""
firstContact: upper
{LLMS}
longtermMemory: {{type: Known, location: memory.py}}
agents:
  - name: upper
    type: conductor
    llm: main
    prompt: {{type: conductor_prompt, location: agents/upper}}
    topics: [lower]
    finalizerName: writer
    agentDescriptions: {{lower: Directs those who know things.}}
  - name: lower
    type: conductor
    llm: main
    prompt: {{type: conductor_prompt}}
    topics: [helper]
    canFinalizeName: judge
    supervisor: upper
  - name: helper
    type: multistep
    llm: main
    prompt: {{type: multistep_prompt, location: agents/helper, userPromptArgumentClass: FirstUserPromptArgument,
      systemPromptArgumentClass: MySystemPromptArgument}}
    topics: [lower]
  - name: judge
    type: multistep_predicate
    llm: main
    prompt: {{type: multistep_prompt, location: agents/judge, promptArgumentClass: Verdict}}
  - name: writer
    type: multistep_finalizer
    llm: main
    finalProperties: [letter, topic]
    prompt: {{type: multistep_prompt, location: agents/writer, promptArgumentClass: Letter}}
""",
    "memory.py": """
from dataclasses import dataclass
from diskurs import LongtermMemory

@dataclass
class Known(LongtermMemory):
    topic: str
    answer: str
""",
    "agents/upper/prompt.py": "def can_finalize(memory):\n    return bool(memory.answer)\n",
    "agents/judge/prompt.py": """
from dataclasses import dataclass
from diskurs import PromptArgument

@dataclass
class Verdict(PromptArgument):
    answer: str = ""
    can_finalize: bool = False
""",
    "agents/judge/system_template.jinja2": "You judge.",
    "agents/judge/user_template.jinja2": "Is this an answer: {{ answer }}",
    "agents/writer/prompt.py": """
from dataclasses import dataclass
from diskurs import PromptArgument

@dataclass
class Letter(PromptArgument):
    topic: str = ""
    answer: str = ""
    letter: str = ""
""",
    "agents/writer/system_template.jinja2": "You write letters.",
    "agents/writer/user_template.jinja2": "Write about {{ topic }}: {{ answer }}",
}
"""A conductor of a conductor, a predicate agent, and a finalizer."""

PARALLEL = {
    "config.yml": f"""
firstContact: reader
{LLMS}
agents:
  - name: reader
    type: parallel_multistep
    llm: main
    location: agents/reader
    joinConversationName: join_conversations
    prompt: {{type: multistep_prompt, location: agents/reader, promptArgumentClass: Reading}}
    topics: [finisher]
  - name: finisher
    type: heuristic_finalizer
    renderPrompt: false
    tools: [shout]
    finalProperties: [notes]
    prompt: {{type: heuristic_prompt, location: agents/finisher, promptArgumentClass: Notes, heuristicSequenceName: finish}}
tools: [{{name: shout, functionName: shout, modulePath: tools/shout.py}}]
longtermMemory: {{type: Known, location: memory.py}}
""",
    "memory.py": """
from dataclasses import dataclass, field
from diskurs import LongtermMemory

@dataclass
class Known(LongtermMemory):
    notes: list = field(default_factory=list)
""",
    "tools/shout.py": '''
from diskurs import tool

@tool
def shout(text: str) -> str:
    """Shouts.

    :param text: what
    """
    return text.upper()
''',
    "agents/reader/prompt.py": """
from dataclasses import dataclass, field
from typing import Annotated, Optional
from diskurs import PromptArgument
from diskurs.entities import AccessMode, JsonSerializable, prompt_field

@dataclass(kw_only=True)
class Note(JsonSerializable):
    url: str
    text: str

@dataclass(kw_only=True)
class Reading(PromptArgument):
    urls: Optional[list[str] | str] = None
    text: Optional[str] = None
    notes: Annotated[list[Note], prompt_field(mode=AccessMode.INPUT)] = field(default_factory=list)
    done: list[Note] = field(default_factory=list)
""",
    "agents/reader/parallelize.py": """
from diskurs import Conversation
from prompt import Note, Reading

def branch_conversation(conversation: Conversation) -> list[Conversation]:
    parts = []
    for url in conversation.prompt_argument.urls:
        argument = conversation.prompt_argument
        argument.urls = url
        parts.append(conversation.update(prompt_argument=argument))
    return parts

def join_conversations(conversations: list[Conversation]) -> Conversation:
    notes = [Note(url=each.prompt_argument.urls, text=each.prompt_argument.text) for each in conversations]
    memory = conversations[0].longterm_memory
    memory.notes = [each.to_dict() for each in notes]
    return conversations[0].update(prompt_argument=Reading(done=notes), longterm_memory=memory)
""",
    "agents/reader/system_template.jinja2": "You read.",
    "agents/reader/user_template.jinja2": "{% if urls is string %}Read {{ urls }}{% else %}Which pages?{% endif %}",
    "agents/finisher/prompt.py": """
from dataclasses import dataclass, field
from diskurs import CallTool, Conversation, PromptArgument

@dataclass
class Notes(PromptArgument):
    notes: list = field(default_factory=list)

async def finish(conversation: Conversation, call_tool: CallTool, llm_client) -> Conversation:
    argument = conversation.prompt_argument
    argument.notes = [await call_tool("shout", {"text": each["text"]}) for each in argument.notes]
    return conversation.update(prompt_argument=argument)
""",
}
"""A parallel agent that hands over to a heuristic finalizer, without a conductor."""

PLANNED = {
    "config.yml": f"""
firstContact: conductor
{LLMS}
agents:
  - name: conductor
    type: conductor
    llm: main
    prompt: {{type: conductor_prompt, location: agents/conductor, longtermMemoryClass: MyLongtermMemory}}
    topics: [planner]
    agentDescriptions: {{planner: Calculates.}}
  - name: planner
    type: llm_compiler
    llm: main
    tools: [add, mul]
    prompt: {{type: llm_compiler_prompt}}
    topics: [conductor]
tools:
  - {{name: add, functionName: add, modulePath: sums.py}}
  - {{name: mul, functionName: mul, modulePath: sums.py}}
""",
    "agents/conductor/prompt.py": CONCEPTS["agents/conductor/prompt.py"],
    "sums.py": '''
import json, os, time
from diskurs import tool

@tool
def add(a: int, b: int) -> int:
    """Adds.

    :param a: one
    :param b: another
    """
    return a + b

@tool
def mul(a: int, b: int) -> int:
    """Multiplies.

    :param a: one
    :param b: another
    """
    if b == 0:
        raise ValueError("no zeros")
    return a * b
''',
}
"""A planning agent."""

SEQUENCE = {
    "config.yml": f"""
firstContact: conductor
{LLMS}
agents:
  - name: conductor
    type: conductor
    llm: main
    prompt: {{type: conductor_prompt, location: agents/conductor, longtermMemoryClass: MyLongtermMemory, failName: give_up}}
    topics: [desk]
  - name: desk
    type: heuristic
    llm: main
    prompt: {{type: heuristic_prompt, location: agents/desk, promptArgumentClass: Ticket}}
    topics: [conductor]
""",
    "agents/conductor/prompt.py": CONCEPTS["agents/conductor/prompt.py"] + "\ndef give_up(memory):\n    return None\n",
    "agents/desk/agent_description.txt": "Sums up.",
    "agents/desk/prompt.py": """
from dataclasses import dataclass
from diskurs import PromptArgument

@dataclass
class Ticket(PromptArgument):
    user_query: str = ""
    topic: str = ""
    answer: str = ""

async def heuristic_sequence(conversation, llm_client):
    asked = conversation.append(f"Sum up: {conversation.prompt_argument.user_query}", role="user", name="desk")
    told = await llm_client.generate(asked)
    argument = told.prompt_argument
    argument.answer, argument.topic = told.last_message.content, conversation.metadata.get("desk", "none")
    return told.update(prompt_argument=argument)
""",
    "agents/desk/user_template.jinja2": "Noted: {{ answer }}",
}
"""A conductor with a heuristic agent that asks its model itself."""
