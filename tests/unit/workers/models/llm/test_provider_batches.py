"""Answers of a provider's batch, and the search for one, on LiteLLM's calls as a provider may answer them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from cantata.flows.definitions import Model
from cantata.values import ErrorInfo
from cantata_workers.models.llm import provider_batches
from cantata_workers.models.llm.provider_batches import MARK, MAX_PAGES, ProviderBatch, find, replies

MODEL = Model(model="openai/m")
OK = {
    "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What stands for LiteLLM; each test adds the call that it is about."""
    router = SimpleNamespace(GenericLiteLLMParams=SimpleNamespace(model_fields={}))
    fake = SimpleNamespace(
        get_llm_provider=lambda **_: ("m", "openai", None, None), types=SimpleNamespace(router=router)
    )
    monkeypatch.setattr(provider_batches, "load", lambda: fake)
    monkeypatch.setattr(provider_batches, "has_price", lambda _: False)
    return fake


@pytest.mark.parametrize(
    "odd",
    [
        {"error": "overloaded"}, {"error": {"code": None, "message": None}}, {"response": {"status_code": 500, "body": "no"}},
        {"response": {"status_code": None, "body": "text"}}, {"response": {"body": {"choices": []}}}, {"response": None},
    ],
)  # fmt: skip
def test_an_odd_answer_is_the_error_of_its_row_alone(library: SimpleNamespace, odd: dict[str, Any]) -> None:
    rows = [{"custom_id": "0", **odd}, {"custom_id": "1", "response": {"status_code": 200, "body": OK}}]
    text = "\n".join(map(json.dumps, rows))

    async def content(**_: object) -> SimpleNamespace:
        return SimpleNamespace(content=text.encode())

    library.afile_content = content

    found = asyncio.run(replies(MODEL, ProviderBatch("b", "completed", 2, ["file"], "")))

    assert isinstance(found["0"], ErrorInfo) or found["0"].text == ""
    assert not isinstance(found["1"], ErrorInfo)
    assert found["1"].text == "yes"


def test_an_answer_without_usage_has_no_known_cost(library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"choices": OK["choices"]}

    async def content(**_: object) -> SimpleNamespace:
        return SimpleNamespace(
            content=json.dumps({"custom_id": "0", "response": {"status_code": 200, "body": body}}).encode()
        )

    library.afile_content = content
    monkeypatch.setattr(provider_batches, "has_price", lambda _: True)

    (found,) = asyncio.run(replies(MODEL, ProviderBatch("b", "completed", 1, ["file"], ""))).values()

    assert not isinstance(found, ErrorInfo)
    assert (found.usage.cost_usd, found.usage.model_calls) == (None, 1)


def test_a_batch_that_is_not_among_the_newest_was_not_created(library: SimpleNamespace) -> None:
    pages: list[object] = []

    async def page(*, after: str | None, **_: object) -> SimpleNamespace:
        pages.append(after)
        others = [
            SimpleNamespace(id=f"b{len(pages)}", metadata=None),
            SimpleNamespace(id=f"c{len(pages)}", metadata={MARK: "another"}),
        ]
        return SimpleNamespace(data=others, has_more=True)

    library.alist_batches = page

    assert asyncio.run(find(MODEL, "mine")) is None
    assert pages == [None, *(f"c{number}" for number in range(1, MAX_PAGES))]
