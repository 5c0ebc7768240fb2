"""Messages to webhooks that no script of the ledger makes: alerts, and tests."""

from __future__ import annotations

from collections.abc import Callable

from cantata.coordinator.start import Timeout, accept_run, id_of_key
from cantata.models.definitions import Alert, Definitions
from cantata.models.values import JsonValue
from cantata.models.wire import WebhookRequest
from cantata.state.ledger.ledger import Ledger
from cantata.state.ledger.records import Accepted
from cantata.state.redis import clock

DELIVERY = Timeout(25 * 3600.0, "of webhooks")
"""The time of a run that posts: its step gives up after a day."""
DELIVERY_QUEUE = "agents"
"""The queue of such a run: its worker only waits."""


def accept_delivery(
    ledger: Ledger, request: WebhookRequest, definitions: Definitions, definitions_text: str, *, tenant: str = ""
) -> Accepted:
    """Accept a run that posts to a webhook of the definitions; the same request once. The sweep sends its first step, or the caller."""
    labels = {"webhook_of": request.run_id, "tenant": tenant}
    return accept_run(
        ledger, request.id, kind="webhook", request=request.model_dump_json(exclude_defaults=True), timeout=DELIVERY, queue=DELIVERY_QUEUE,
        definitions=with_attempts(definitions), definitions_text=definitions_text,
        labels={name: value for name, value in labels.items() if value},
    )  # fmt: skip


def with_attempts(definitions: Definitions) -> Definitions:
    """Return definitions for the settings of a run that no death of workers should end."""
    return definitions.model_copy(update={"defaults": definitions.defaults.model_copy(update={"max_attempts": 1000})})


def raise_alerts(
    ledger: Ledger, definitions: Definitions, definitions_text: str, on: str, *, key: str, message: str, data: dict[str, JsonValue],
    tenant: str = "", applies: Callable[[Alert], bool] = lambda _: True,
) -> list[str]:  # fmt: skip
    """Post to the webhook of each alert of a configuration `on` this; the same key posts once. Return the ids of the runs that post.

    Args:
        ledger: The ledger.
        definitions: The configuration.
        definitions_text: The same as the ledger stores it.
        on: The condition, as `Alert.on`.
        key: What occurred, such as a schedule and its time.
        message: The same for people, in a line.
        data: The same for programs; small.
        tenant: The tenant that it is about.
        applies: Whether an alert is for what occurred.
    """
    raised = []
    for name, alert in definitions.alerts.items():
        if alert.on == on and applies(alert):
            run_id = id_of_key(f"alert\n{tenant}\n{name}\n{key}")
            request = WebhookRequest(
                id=run_id,
                text=f"{message} (alert {name!r})",
                to=alert.webhook,
                event="alert",
                alert=name,
                at_ms=int(clock.now() * 1000),
                data=data,
            )
            accept_delivery(ledger, request, definitions, definitions_text, tenant=tenant)
            raised.append(run_id)
    return raised
