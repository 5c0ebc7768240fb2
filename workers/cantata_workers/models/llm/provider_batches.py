"""Batches of providers through LiteLLM: chat completions that are answered within a day, at about half the price."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cantata.flows.definitions import Model
from cantata.operation import fault_points
from cantata.values import ErrorInfo, JsonValue, Usage
from cantata_workers.models.llm.completions import model_errors, request_of
from cantata_workers.models.llm.library import has_price, load
from cantata_workers.models.llm.model_replies import Reply, ReplyBuilder
from cantata_workers.models.llm.openai_messages import Messages, ToolNames

MARK = "cantata_run"  # in the metadata of a batch: the run that created it
LISTED, MAX_PAGES = 100, 20  # batches of a page, and pages, that are searched for a mark
OPEN = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class ProviderBatch(NamedTuple):
    """A batch as its provider shows it."""

    id: str
    status: str
    done: int
    """Rows that are answered, or failed."""
    files: Sequence[str]
    """The files of its answers and of its errors."""
    error: str


def request_line(row: str, model: Model, messages: Messages, schema: Mapping[str, JsonValue] | None) -> str:
    """Return the line of a row in the input file of a batch."""
    request = request_of(model.model, messages, model.params, ToolNames.of(()), schema=schema)
    name, _ = _named(model)
    body = {key: value for key, value in request.items() if key not in _connection_params()} | {"model": name}
    return (
        json.dumps(
            {"custom_id": row, "method": "POST", "url": "/v1/chat/completions", "body": body}, ensure_ascii=False
        )
        + "\n"
    )


async def find(model: Model, mark: str) -> str | None:
    """Return the batch with this mark among the newest ones of the provider; None if there is none."""
    after = None
    for _ in range(MAX_PAGES):
        with _calling(model) as options:
            page = await load().alist_batches(after=after, limit=LISTED, **options)
        found = list(page.data or ())
        if known := next((each for each in found if (each.metadata or {}).get(MARK) == mark), None):
            return str(known.id)
        if not found or not getattr(page, "has_more", False):
            return None
        after = found[-1].id
    return None


async def create(model: Model, mark: str, lines: str) -> str:
    """Create a batch with this mark, and return its id."""
    with _calling(model) as options:
        file = await load().acreate_file(file=("rows.jsonl", lines.encode()), purpose="batch", **options)
        fault_points.at("model-sent")
        batch = await load().acreate_batch(
            completion_window="24h",
            endpoint="/v1/chat/completions",
            input_file_id=file.id,
            metadata={MARK: mark},
            **options,
        )
    fault_points.at("model-answered")
    return str(batch.id)


async def retrieve(model: Model, batch_id: str) -> ProviderBatch:
    """Return a batch as it is now."""
    with _calling(model) as options:
        batch = await load().aretrieve_batch(batch_id=batch_id, **options)
    counts, errors = batch.request_counts, getattr(batch.errors, "data", None) or ()
    done = (counts.completed + counts.failed) if counts else 0
    files = [each for each in (batch.output_file_id, batch.error_file_id) if each]
    return ProviderBatch(batch_id, str(batch.status), done, files, "; ".join(str(each.message) for each in errors))


async def cancel(model: Model, batch_id: str) -> None:
    """Have the provider cancel a batch."""
    with _calling(model) as options:
        await load().acancel_batch(batch_id=batch_id, **options)


async def replies(model: Model, batch: ProviderBatch) -> dict[str, Reply | ErrorInfo]:
    """Return the replies and errors of a batch that is over, by row; rows without either are absent."""
    found: dict[str, Reply | ErrorInfo] = {}
    for file_id in batch.files:
        with _calling(model) as options:
            content = await load().afile_content(file_id=file_id, **options)
        for line in content.content.decode().splitlines():
            if line.strip():
                answer = json.loads(line)
                try:
                    found[str(answer["custom_id"])] = _reply(model, answer)
                except Exception as error:  # noqa: BLE001  # a form that is not known must not cost other rows their answers
                    found[str(answer["custom_id"])] = ErrorInfo(
                        code="bad_reply", message=f"the answer cannot be read: {error!r}: {line[:200]}"
                    )
    return found


def _reply(model: Model, answer: Mapping[str, Any]) -> Reply | ErrorInfo:
    response = answer.get("response") or {}
    body = response.get("body") or {}
    if answer.get("error") or (response.get("status_code") or 200) >= 400:
        found = answer.get("error") or (body.get("error") if isinstance(body, dict) else body)
        error = found if isinstance(found, dict) else {"message": found}
        return ErrorInfo(
            code=f"batch_{error.get('code') or 'row_failed'}", message=str(error.get("message") or error)[:400]
        )
    builder = ReplyBuilder()
    builder.set_response(body)
    return Reply(
        text=builder.text,
        usage=_usage(model, body.get("usage") or {}),
        model=model.model,
        finish_reason=builder.finish_reason,
    )


def _usage(model: Model, reported: Mapping[str, Any]) -> Usage:
    litellm, cost = load(), None
    if reported and has_price(model.model):  # without a usage it is not known, and not 0
        name, provider = _named(model)
        cost = sum(litellm.cost_calculator.batch_cost_calculator(litellm.Usage(**reported), name, provider))
    tokens = (reported.get(key) or 0 for key in ("prompt_tokens", "completion_tokens"))
    return Usage(input_tokens=next(tokens), output_tokens=next(tokens), cost_usd=cost, model_calls=1)


def _named(model: Model) -> tuple[str, str]:
    """Return the provider's name of a model, and the provider."""
    with model_errors(model.model, model.params):
        name, provider, *_ = load().get_llm_provider(model=model.model, api_base=model.params.get("api_base"))
    return str(name), str(provider)


def _connection_params() -> set[str]:
    return {*load().types.router.GenericLiteLLMParams.model_fields, "base_url", "extra_headers"}


@contextmanager
def _calling(model: Model) -> Iterator[dict[str, Any]]:
    """Yield the options of calls to a model's provider, and turn their errors into ModelErrors."""
    options = {name: value for name, value in model.params.items() if name in _connection_params()}
    _, provider = _named(model)
    with model_errors(model.model, model.params):
        yield {**options, "custom_llm_provider": provider, "max_retries": 0}
