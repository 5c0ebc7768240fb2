"""Messages to webhooks: what they say, and that they are posted again for a day."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import ParamSpec, TypeVar

from cantata.errors import CantataError, MustWait, StepError, UnavailableError
from cantata.flows.definitions import Webhook
from cantata.flows.graph import Outcome
from cantata.flows.wire import ChainRequest, WebhookRequest
from cantata.ledger.encoding import to_json
from cantata.ledger.redis import clock
from cantata.ledger.runs import alert_counts
from cantata.ledger.runs.results import chain_response, turn_result
from cantata.operation import fault_points
from cantata.settings import settings
from cantata.values import JsonValue, stored
from cantata_workers.process.step_context import StepContext, handles

P = ParamSpec("P")
Result = TypeVar("Result")

GIVE_UP_S = 24 * 3600.0  # after the event
MIN_DELAY_S, MAX_DELAY_S = 5.0, 3600.0  # between two attempts
BUSY_MIN_S, BUSY_MAX_S = 1.0, 60.0  # until a message is tried again that finds no place: a quarter of its age
MAX_BYTES = 1_000_000  # of a message; a larger result is left out
TOO_LARGE = f"the result is larger than {MAX_BYTES / 1e6:g} MB; read it at the link"

_threads = ThreadPoolExecutor(4, "webhook message")  # they read runs; the loop's own are for model calls


@handles("webhook.deliver")
async def webhook_deliver(context: StepContext) -> Outcome:
    """Post a message to a webhook; an alert of failed runs only if so many have failed."""
    request = stored(WebhookRequest, context.params["delivery"])
    hook = context.definitions.webhooks.get(request.to) or Webhook(url=request.to)
    is_counted = context.begun.failures > 0  # an earlier attempt was to post
    if (
        request.alert
        and request.event == "failure"
        and not is_counted
        and not await _in_thread(_is_due, context, request)
    ):
        return Outcome(output={"posted": False})
    from cantata_workers.tools.webhook_post import NoAnswer, PostsBusy, place, post  # noqa: PLC0415  # loads httpx, which few processes need

    try:
        with place(hook, tenant=context.begun.tenant):  # before the run's result is read: thousands may find none
            body = await _in_thread(_message, context, request, hook)
            fault_points.at("tool-started")
            status = await post(hook, request.id, body.encode())
    except PostsBusy as error:
        raise MustWait(_busy_delay_s(request), f"its worker posts {error} already") from None
    except NoAnswer as error:
        raise _failure(context, request, f"{request.to}: {error}") from None
    except StepError as error:
        raise (
            error if error.code == "address_refused" else _failure(context, request, f"{request.to}: {error}")
        ) from None
    fault_points.at("tool-finished")
    if 200 <= status < 300:
        return Outcome(output={"posted": True, "status": status})
    if status == 410:
        raise StepError(
            f"{request.to} answered 410: it wants no more messages; remove the webhook", code="webhook_gone"
        )
    hint = "; redirects are not followed: set 'url' to the new place" if 300 <= status < 400 else ""
    raise _failure(context, request, f"{request.to} answered {status}{hint}")


async def _in_thread(function: Callable[P, Result], *args: P.args, **named: P.kwargs) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(function, *args, **named))


def _busy_delay_s(request: WebhookRequest) -> float:
    """Return the delay of a message that finds no place: thousands that wait for long are tried seldom, and leave the queue to others."""
    age_s = clock.now() - request.at_ms / 1000
    return min(BUSY_MAX_S, max(BUSY_MIN_S, age_s / 4)) * (0.5 + random.random() / 2)


def _failure(context: StepContext, request: WebhookRequest, message: str) -> StepError:
    """Return the error of an attempt, after which there is another one, unless that would be after a day."""
    delay_s = min(MAX_DELAY_S, MIN_DELAY_S * 2.0 ** min(context.begun.failures, 20)) * (0.5 + random.random() / 2)
    if clock.now() + delay_s > request.at_ms / 1000 + GIVE_UP_S:
        return StepError(
            f"{message}; it is given up after 24 h: `submit runs retry {context.begun.run_id}` posts it again",
            code="webhook_failed",
        )
    return StepError(message, code="webhook_failed", retryable=True, retry_after_s=delay_s)


# --- the message ------------------------------------------------------------------------------------------------------------


def _is_due(context: StepContext, request: WebhookRequest) -> bool:
    alert = context.definitions.alerts[str(request.alert)]
    name = f"{context.begun.definitions[:16]}:{request.alert}:{context.begun.tenant}"
    return alert_counts.is_due(
        context.process.ledger,
        name,
        request.run_id,
        request.at_ms,
        request.id,
        count=alert.count,
        within_s=alert.within_s,
    )


def _message(context: StepContext, request: WebhookRequest, hook: Webhook) -> str:
    """Return the body of a message as JSON."""
    about: dict[str, JsonValue] = {"message": request.text, "tenant": context.begun.tenant, **request.data}
    if request.run_id or "batch" in request.data:
        place = f"runs/{request.run_id}" if request.run_id else f"batches/{request.data['batch']}"
        about["link"] = f"{(settings().gateway_url or '').rstrip('/')}/{place}"
    if request.run_id:
        about |= {"run_id": request.run_id, "status": request.status}
    about |= {name: value for name, value in (("step", request.step), ("alert", request.alert)) if value}
    kind = (
        "alert"
        if request.alert
        else "test"
        if request.event == "test"
        else f"{'run' if request.run_id else 'batch'}.{request.event}"
    )
    whole: dict[str, JsonValue] = {
        "type": kind,
        "timestamp": datetime.fromtimestamp(request.at_ms / 1000, UTC).isoformat(),
        "data": about,
    }
    if kind.startswith("run.") and hook.body == "result":
        text = to_json({**whole, "data": {**about, **_result(context, request.run_id)}})
        if len(text.encode()) <= MAX_BYTES:
            return text
        about["note"] = TOO_LARGE
    return to_json(whole)


def _result(context: StepContext, run_id: str) -> Mapping[str, JsonValue]:
    ledger = context.process.ledger
    try:
        kind, request, _, labels = ledger.runs.request_of(run_id)
        nodes = [node.node_id for node in stored(ChainRequest, request).nodes] if kind == "chain" else []
        if ledger.reader.outputs_exceed(run_id, nodes, MAX_BYTES):
            return {"note": TOO_LARGE}
        record = ledger.reader.read(run_id, nodes)
    except UnavailableError:
        raise
    except CantataError as error:
        return {"note": str(error)}
    result = chain_response(record) if kind == "chain" else turn_result(record)
    return {"kind": kind, "labels": dict(labels), "result": result.model_dump(mode="json")}
