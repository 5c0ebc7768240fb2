"""What code of a folder imports from `diskurs`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cantata_workers.frontends.diskurs.agents import truncate
from cantata_workers.frontends.diskurs.user_code.entities import (
    ChatMessage,
    Conversation,
    LongtermMemory,
    MessageType,
    PromptArgument,
    Role,
    ToolDescription,
    tool,
)


@dataclass
class Memory(LongtermMemory):
    topic: str = ""


@dataclass
class Argument(PromptArgument):
    topic: str = ""
    note: str = ""


def conversation() -> Conversation[object]:
    chat = [ChatMessage(Role.USER, "hello"), ChatMessage(Role.ASSISTANT, "to ann", type=MessageType.CONDUCTOR)]
    return Conversation(
        prompt_argument=Argument("x"), longterm_memory=Memory("t"), chat=chat, metadata={"a": "b"}, active_agent="ann"
    )


def test_a_conversation_does_not_change() -> None:
    it = conversation()
    it.prompt_argument.topic = "y"
    it.chat.clear()
    it.metadata.clear()
    other = it.update(prompt_argument=Argument("z")).append("more", role="assistant", name="ann")
    assert (it.prompt_argument.topic, len(it.chat), it.metadata) == ("x", 2, {"a": "b"})
    assert (other.prompt_argument.topic, other.last_message.content, str(other.last_message.role)) == (
        "z",
        "more",
        "assistant",
    )
    assert other.longterm_memory == Memory("t")
    with pytest.raises(AttributeError):
        it.prompt_argument = None  # type: ignore[misc]  # that is what is tried


def test_what_conductors_say_is_seen_by_conductors_only() -> None:
    assert [each.content for each in conversation().render_chat()] == ["hello"]
    assert len(conversation().render_chat(MessageType.CONDUCTOR)) == 2


def test_prompts_that_code_sets_are_around_the_messages() -> None:
    system, first, second = ChatMessage(Role.SYSTEM, "s"), ChatMessage(Role.USER, "1"), ChatMessage(Role.USER, "2")
    it = conversation().update(system_prompt=system, user_prompt=first)
    assert [each.content for each in it.render_chat()] == ["s", "hello", "1"]
    assert [each.content for each in it.update([], user_prompt=[first, second]).render_chat()] == ["s", "1", "2"]
    assert conversation().system_prompt is None


def test_memory_takes_what_has_the_same_name() -> None:
    assert conversation().update_longterm_memory(Argument("new", "n")).longterm_memory == Memory("new")
    assert conversation().update_longterm_memory(Argument("")).longterm_memory == Memory("t")


@tool
def look(place: str, pieces: int, ratio: float, deep: bool, who: str, more: list[str], silent: int = 3) -> str:
    """Looks somewhere,
    and tells.

    :param place: where to look,
        in words
    :param pieces: how many
    :param ratio: how much
    :param deep: whether to dig
    :param who: [invisible] whose it is
    :param more: anything
    :return: what is there
    """
    return place


def test_a_tool_is_what_its_docstring_says() -> None:
    told = ToolDescription.from_function(look)
    assert told.description == "Looks somewhere,\nand tells.\nReturns: what is there"
    assert {name: each["type"] for name, each in told.arguments.items()} == {
        "place": "string",
        "pieces": "integer",
        "ratio": "number",
        "deep": "boolean",
        "more": "string",
    }
    assert told.arguments["place"]["description"] == "where to look, in words"
    assert told.invisible == ("who",)
    assert told.schema["required"] == ["place", "pieces", "ratio", "deep", "more"]
    assert look.name == "look"  # type: ignore[attr-defined]  # as Diskurs has it


def test_of_a_long_conversation_the_first_the_last_and_the_newest_are_shown() -> None:
    messages = [{"role": "user", "content": f"{i}" * 40} for i in range(6)]
    assert truncate(messages, None) == messages
    assert truncate(messages, 10_000) == messages
    assert truncate(messages, 40) == [messages[0], *messages[4:]]
    assert truncate(messages, 1) == [messages[0], messages[5]]
