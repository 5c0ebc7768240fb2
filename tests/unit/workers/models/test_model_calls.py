"""One model after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from cantata.errors import ModelError
from cantata.models.definitions import Definitions, Model
from cantata.models.values import ToolSchema, Usage
from cantata.workers.models import llm, model_calls
from cantata.workers.models.dialects.conversation import Message
from cantata.workers.models.llm.caching import Options
from cantata.workers.models.model_calls import MAX_MESSAGE_CHARS, MAX_TOTAL_CHARS, digests_of, recorded_prompt
from cantata.workers.runtime.step_context import StepContext

FIRST, SECOND, THIRD = (Model(model=f"openai/{name}") for name in ("first", "second", "third"))


def asked(*models: Model, errors: Mapping[str, ModelError]) -> tuple[llm.Reply | ModelError, list[str]]:
    """What comes of asking models of which some fail, and which were asked."""
    calls: list[str] = []
    begun = SimpleNamespace(failures=0, run_id="r", step_id="s", spec=SimpleNamespace(retries=0))
    ledger = SimpleNamespace(runs=SimpleNamespace(append_event=lambda *_, **__: None))
    context = cast(StepContext, SimpleNamespace(begun=begun, process=SimpleNamespace(ledger=ledger), answer_model=None))

    async def call(_context: StepContext, model: Model, _messages: object, **_: object) -> llm.Reply:
        calls.append(model.model)
        if model.model in errors:
            raise errors[model.model]
        return llm.Reply(text="ok", usage=Usage(model_calls=1), model=model.model, finish_reason="stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_calls, "_reply_of", call)
        try:
            return asyncio.run(model_calls.call_models(context, models, [])), calls
        except ModelError as error:
            return error, calls


@pytest.mark.parametrize("code", ["rate_limited", "model_unavailable", "model_timeout", "model_auth", "model_unknown", "model_empty"])
def test_the_next_model_answers_when_one_cannot(code: str) -> None:
    reply, calls = asked(FIRST, SECOND, THIRD, errors={"openai/first": ModelError("no", code=code)})

    assert isinstance(reply, llm.Reply)
    assert reply.model == "openai/second"
    assert calls == ["openai/first", "openai/second"]


def test_a_request_that_is_wrong_is_not_tried_elsewhere() -> None:
    wrong = ModelError("too long", code="model_bad_request")

    error, calls = asked(FIRST, SECOND, errors={"openai/first": wrong})

    assert error is wrong
    assert calls == ["openai/first"]


def test_when_all_fail_the_last_error_has_all_messages() -> None:
    errors = {
        "openai/first": ModelError("first is slow", code="model_timeout", retryable=True),
        "openai/second": ModelError("second is busy", code="rate_limited", retryable=True, retry_after_s=7),
    }

    error, _ = asked(FIRST, SECOND, errors=errors)

    assert isinstance(error, ModelError)
    assert str(error) == "first is slow; then second is busy"
    assert (error.code, error.retryable, error.retry_after_s) == ("rate_limited", True, 7)


def test_a_single_model_fails_as_it_failed() -> None:
    failure = ModelError("no", code="model_auth")

    assert asked(FIRST, errors={"openai/first": failure})[0] is failure


def test_fallbacks_are_named_models_or_litellm_names() -> None:
    cheap = Model(model="openai/cheap", params={"temperature": 0})
    definitions = Definitions(models={"best": Model(model="openai/best", fallbacks=["cheap", "local/smollm2"]), "cheap": cheap})

    assert definitions.with_fallbacks(definitions.model_of("best"))[1:] == [cheap, Model(model="local/smollm2")]


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


def test_a_changed_part_of_a_request_has_another_digest() -> None:
    tool = ToolSchema(name="t", parameters={})
    request = FIRST, [{"role": "user", "content": "hi"}], Options(tools=[tool], schema={"type": "object"})
    before = digests_of(*request)

    changed = {
        "model": digests_of(SECOND, *request[1:]),
        "messages": digests_of(FIRST, [{"role": "user", "content": "ho"}], request[2]),
        "params": digests_of(FIRST.model_copy(update={"params": {"top_p": 1}}), *request[1:]),
        "tools": digests_of(*request[:2], Options(**{**request[2], "tool_choice": "none"})),
        "schema": digests_of(*request[:2], Options(tools=[tool])),
    }

    assert set(before) == {"model", "messages", "tools", "schema"}
    for part, after in changed.items():
        assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {part}
