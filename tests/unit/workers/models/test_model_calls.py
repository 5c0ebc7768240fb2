"""One model after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from cantata.errors import CantataError, ModelError, MustPause
from cantata.flows.definitions import Definitions, Model
from cantata.values import ToolSchema, Usage
from cantata_workers.models import llm, model_calls
from cantata_workers.models.dialects.conversation import Message
from cantata_workers.models.llm.caching import Options
from cantata_workers.models.model_calls import MAX_MESSAGE_CHARS, MAX_TOTAL_CHARS, digests_of, recorded_prompt
from cantata_workers.process.step_context import StepContext

FIRST, SECOND, THIRD = (Model(model=f"openai/{name}") for name in ("first", "second", "third"))


def asked(
    *models: Model,
    errors: Mapping[str, CantataError],
    left_s: float | None = 600.0,
    retries: int = 0,
    fallback_on: Sequence[str] = (),
) -> tuple[llm.Reply | CantataError, list[str]]:
    """What comes of asking models of which some fail, and which were asked, in a run that may take so much longer."""
    calls: list[str] = []
    begun = SimpleNamespace(failures=0, run_id="r", step_id="s", spec=SimpleNamespace(retries=retries))
    ledger = SimpleNamespace(runs=SimpleNamespace(append_event=lambda *_, **__: None, seconds_left=lambda _: left_s))
    process = SimpleNamespace(ledger=ledger)
    context = cast(
        StepContext, SimpleNamespace(begun=begun, process=process, answer_model=None, definitions=Definitions())
    )

    async def call(_context: StepContext, model: Model, _messages: object, **_: object) -> llm.Reply:
        calls.append(model.model)
        if model.model in errors:
            raise errors[model.model]
        return llm.Reply(text="ok", usage=Usage(model_calls=1), model=model.model, finish_reason="stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_calls, "_reply_of", call)
        patch.setattr(llm, "context_window", {"openai/first": 1000, "openai/second": 500, "openai/third": 2000}.get)
        try:
            return asyncio.run(model_calls.call_models(context, models, [], fallback_on=fallback_on)), calls
        except CantataError as error:
            return error, calls


def slow(seconds: float | None) -> ModelError:
    """The error of a provider that asks to wait so long."""
    return ModelError("slow down", code="rate_limited", retryable=True, retry_after_s=seconds)


def test_the_table_of_errors_says_where_the_next_model_is_asked() -> None:
    def next_models(code: str, fallback_on: Sequence[str]) -> list[str]:
        return asked(
            FIRST, SECOND, THIRD, errors={"openai/first": ModelError("no", code=code)}, fallback_on=fallback_on
        )[1][1:]

    asks = {code: [next_models(code, []), next_models(code, [code])] for code in llm.ERRORS}

    assert {code: found for code, found in asks.items() if found != [["openai/second"], ["openai/second"]]} == {
        "model_context": [["openai/third"], ["openai/third"]],  # whose context is larger
        "refusal": [[], ["openai/second"]],
        "content_filter": [[], ["openai/second"]],
        "model_bad_request": [[], []],
    }


def test_a_request_that_is_wrong_is_not_tried_elsewhere() -> None:
    wrong = ModelError("too long", code="model_bad_request")

    error, calls = asked(FIRST, SECOND, errors={"openai/first": wrong})

    assert error is wrong
    assert calls == ["openai/first"]


def test_when_all_fail_the_last_error_has_all_messages() -> None:
    errors = {
        "openai/first": ModelError("first is slow", code="model_timeout", retryable=True),
        "openai/second": ModelError("second is busy", code="rate_limited", retryable=True, retry_after_s=0.5),
    }

    error, _ = asked(FIRST, SECOND, errors=errors)

    assert isinstance(error, ModelError)
    assert str(error) == "first is slow; then second is busy"
    assert (error.code, error.retryable, error.retry_after_s) == ("rate_limited", True, 0.5)


@pytest.mark.parametrize("pause", [slow(3600), slow(11), MustPause(11, "slow down", is_queued=True)])
def test_a_fallback_is_asked_at_once_instead_of_a_long_pause(pause: CantataError) -> None:
    reply, calls = asked(FIRST, SECOND, errors={"openai/first": pause}, retries=3)

    assert isinstance(reply, llm.Reply)
    assert calls == ["openai/first", "openai/second"]


def test_a_short_pause_is_waited_for_before_a_fallback_is_asked() -> None:
    queued = MustPause(9, "slow down", is_queued=True)

    assert asked(FIRST, SECOND, errors={"openai/first": queued}, retries=3) == (queued, ["openai/first"])
    assert str(asked(FIRST, SECOND, errors={"openai/first": slow(9)}, retries=3)[0]) == "slow down"
    assert asked(FIRST, SECOND, errors={"openai/first": slow(9)}, retries=0)[1] == ["openai/first", "openai/second"]


def test_fallback_after_s_is_the_models_own() -> None:
    patient = FIRST.model_copy(update={"fallback_after_s": 100})

    assert asked(patient, SECOND, errors={"openai/first": MustPause(60, "slow down", is_queued=True)})[1] == [
        "openai/first"
    ]


@pytest.mark.parametrize(("asked_s", "waits_s"), [(7.0, 7.0), (3600.0, 60.0)])
def test_without_a_fallback_the_step_waits_uncounted_and_asks_again_after_the_shared_pause(
    asked_s: float, waits_s: float
) -> None:
    pause, _ = asked(FIRST, errors={"openai/first": slow(asked_s)})

    assert isinstance(pause, MustPause)
    assert (pause.seconds, pause.is_queued) == (waits_s, False)
    assert "slow down" in str(pause)


@pytest.mark.parametrize("pause", [slow(30), MustPause(30, "slow down", is_queued=True)])
def test_a_pause_beyond_the_runs_deadline_fails_with_the_providers_words(pause: CantataError) -> None:
    error, _ = asked(FIRST, errors={"openai/first": pause}, left_s=20)

    assert isinstance(error, ModelError)
    assert (error.code, error.retryable) == ("rate_limited", False)
    assert str(error) == "slow down; the run ends in 20 s, before the pause of 30 s that the provider asks for"


def test_of_several_paused_models_the_first_that_is_free_is_waited_for() -> None:
    pause, calls = asked(FIRST, SECOND, errors={"openai/first": slow(50), "openai/second": slow(20)})

    assert isinstance(pause, MustPause)
    assert pause.seconds == 20
    assert calls == ["openai/first", "openai/second"]


def test_a_fallback_that_fails_for_good_does_not_end_the_wait_for_the_first() -> None:
    pause, _ = asked(
        FIRST, SECOND, errors={"openai/first": slow(20), "openai/second": ModelError("no key", code="model_auth")}
    )

    assert isinstance(pause, MustPause)
    assert pause.seconds == 20


def test_a_pause_below_a_second_is_a_counted_retry() -> None:
    error = slow(0.2)

    assert asked(FIRST, errors={"openai/first": error}, retries=1)[0] is error


def test_a_single_model_fails_as_it_failed() -> None:
    failure = ModelError("no", code="model_auth")

    assert asked(FIRST, errors={"openai/first": failure})[0] is failure


def test_fallbacks_are_named_models_or_litellm_names() -> None:
    cheap = Model(model="openai/cheap", params={"temperature": 0})
    definitions = Definitions(
        models={"best": Model(model="openai/best", fallbacks=["cheap", "local/smollm2"]), "cheap": cheap}
    )

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
