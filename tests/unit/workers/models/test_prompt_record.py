"""What a model was asked is recorded with the step, within bounds."""

from __future__ import annotations

from cantata.workers.models.dialects.conversation import Message
from cantata.workers.models.model_calls import MAX_MESSAGE_CHARS, MAX_TOTAL_CHARS, recorded_prompt


def test_a_usual_prompt_is_recorded_as_it_is() -> None:
    messages: list[Message] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]

    assert recorded_prompt(messages) == [{"role": "system", "text": "Be kind."}, {"role": "user", "text": "Hello"}]


def test_long_messages_are_cut() -> None:
    (entries,) = recorded_prompt([{"role": "user", "content": "x" * 5000}])

    assert entries == {"role": "user", "text": "x" * MAX_MESSAGE_CHARS, "cut": True}


def test_of_a_long_conversation_the_first_and_the_newest_are_kept() -> None:
    messages: list[Message] = [{"role": "user", "content": f"{number} " + "x" * 900} for number in range(100)]

    entries = recorded_prompt(messages)

    texts = [str(each["text"]) for each in entries if isinstance(each, dict)]
    numbers = [int(text.split()[0]) for text in texts]
    assert numbers == [0, *range(101 - len(numbers), 100)]
    assert sum(map(len, texts)) <= MAX_TOTAL_CHARS
    assert entries[1] == {"role": "user", "text": texts[1], "omitted": 100 - len(numbers)}


def test_what_has_no_text_is_recorded_empty() -> None:
    assert recorded_prompt([{"role": "assistant", "content": None}]) == [{"role": "assistant", "text": ""}]
    assert recorded_prompt([]) == []
