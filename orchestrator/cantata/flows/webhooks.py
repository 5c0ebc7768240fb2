"""The webhooks of a run, chosen when it is submitted, and the graph of a run that posts to one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions, Webhook, fault_of_url
from cantata.flows.graph import Graph, Step
from cantata.flows.wire import WebhookRequest
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue

DELIVER = "deliver"
"""The step that posts."""
QUEUE = "webhooks"
"""The queue of the runs that post. Agents workers serve it too, with slots beside those of their turns."""
TIMEOUT_S = 30.0  # of an attempt, with the reading of the result
MAX_RETRIES = 1000  # more than fit into the day after which the step gives up

_EVENTS = "end|wait|failure"
_ASKED = re.compile(rf"(?:((?:{_EVENTS})(?:,(?:{_EVENTS}))*)=)?(.+)")


def webhooks_of(
    definitions: Definitions, asked: Sequence[str], *, name: str, labels: Mapping[str, str]
) -> list[JsonValue]:
    """Return the webhooks of a run as the ledger stores them: {to, on: {event: true}, alert?}.

    Args:
        definitions: The run's definitions; their webhooks `on` some event are for each run with their labels, their alerts for failures.
        asked: The webhooks of the request: `NAME` or `URL`, or `EVENT,...=NAME`; without events those of the webhook, else `end`.
        name: The name of the workflow, team, agent or chain.
        labels: The labels of the run.

    Raises:
        ConfigError: There is no such webhook for this run, or a URL is invalid.
    """
    allowed = {each: hook for each, hook in definitions.webhooks.items() if hook.labels.items() <= labels.items()}
    chosen: dict[str, set[str]] = {each: {*hook.on} for each, hook in allowed.items() if hook.on}
    for text in asked:
        match = _ASKED.fullmatch(text)
        events, to = (match[1] or "", match[2]) if match else ("", "")
        check_target(to, allowed)
        usual = allowed[to].on if to in allowed else ()
        chosen.setdefault(to, set()).update(events.split(",") if events else usual or ["end"])
    found: list[JsonValue] = [{"to": to, "on": dict.fromkeys(sorted(on), True)} for to, on in chosen.items()]
    for alert_name, alert in definitions.alerts.items():
        if alert.on == "failed_runs" and alert.name in (None, name):
            found.append({"to": alert.webhook, "on": {"failure": True}, "alert": alert_name})
    return found


def check_target(to: str, known: Mapping[str, Webhook]) -> None:
    """Raise ConfigError unless `to` is one of these webhooks, or a URL that can be posted to."""
    if to not in known and (fault := fault_of_url(to)):
        message = f"there is no webhook {to[:200]!r} for this run{did_you_mean(to, known)}"
        raise ConfigError(
            fault if ":" in to else f"{message}; expected a name under 'webhooks', or a URL", source="webhooks"
        )


def plan_delivery(request: WebhookRequest) -> Graph:
    """Return the graph of a run that posts to a webhook. A test is tried once."""
    params: dict[str, JsonValue] = {"delivery": request.model_dump(mode="json", exclude_defaults=True)}
    retries = 0 if request.event == "test" else MAX_RETRIES
    step = Step(
        id=DELIVER,
        kind="webhook.deliver",
        queue=QUEUE,
        params=params,
        retries=retries,
        timeout_s=TIMEOUT_S,
        cheap=False,
    )
    return Graph(steps=(step,), terminals=(DELIVER,))
