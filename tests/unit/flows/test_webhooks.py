"""The webhooks of a run: those of its configuration, those that it asks for, and its alerts."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError
from cantata.flows.definitions import Alert, Definitions, Webhook
from cantata.flows.webhooks import DELIVER, plan_delivery, webhooks_of
from cantata.flows.wire import WebhookRequest

URL = "https://example.org/hook"
DEFINITIONS = Definitions(
    webhooks={
        "all": Webhook(url=URL, on=["end", "wait"]),
        "asked": Webhook(url=URL),
        "acme": Webhook(url=URL, labels={"tenant": "acme"}),
        "acme_all": Webhook(url=URL, on=["failure"], labels={"tenant": "acme"}),
    }
)
ALL = {"to": "all", "on": {"end": True, "wait": True}}


def test_a_run_has_the_webhooks_of_the_configuration_that_are_for_each_run() -> None:
    assert webhooks_of(DEFINITIONS, [], name="it", labels={}) == [ALL]
    assert webhooks_of(DEFINITIONS, [], name="it", labels={"tenant": "acme", "x": "y"}) == [
        ALL,
        {"to": "acme_all", "on": {"failure": True}},
    ]
    assert webhooks_of(Definitions(), [], name="it", labels={}) == []


@pytest.mark.parametrize(
    ("asked", "to", "on"),
    [
        ("asked", "asked", {"end"}),
        ("wait=asked", "asked", {"wait"}),
        ("wait,failure=asked", "asked", {"failure", "wait"}),
        ("failure=all", "all", {"end", "failure", "wait"}),
        (URL, URL, {"end"}),
        (f"failure={URL}?end=1", f"{URL}?end=1", {"failure"}),
        (f"{URL}?wait=asked", f"{URL}?wait=asked", {"end"}),
    ],
)
def test_a_request_names_webhooks_or_urls_and_their_events(asked: str, to: str, on: set[str]) -> None:
    found = webhooks_of(DEFINITIONS, [asked], name="it", labels={})

    assert {"to": to, "on": dict.fromkeys(sorted(on), True)} in found
    assert len(found) == (1 if to == "all" else 2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("askd", "there is no webhook 'askd' for this run; did you mean 'asked'"),
        ("acme", "there is no webhook 'acme' for this run"),
        ("done=asked", "there is no webhook 'done=asked'"),
        ("", "there is no webhook ''"),
        ("ftp://example.org", "must be http:// or https://"),
        ("https://me:secret@example.org/", "without a password"),
    ],
)
def test_what_a_run_may_not_ask_for_is_refused_by_name(asked: str, message: str) -> None:
    with pytest.raises(ConfigError, match="webhooks: ") as refused:
        webhooks_of(DEFINITIONS, [asked], name="it", labels={})
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_alert_of_failed_runs_is_a_webhook_of_the_runs_with_its_name() -> None:
    alerts = {
        "one": Alert(on="failed_runs", webhook="asked", name="it"),
        "any": Alert(on="failed_runs", webhook="asked"),
    }
    definitions = DEFINITIONS.model_copy(update={"alerts": {**alerts, "code": Alert(on="mixed_code", webhook="asked")}})

    def of(name: str) -> list[object]:
        return [
            hook["alert"]
            for hook in webhooks_of(definitions, [], name=name, labels={})
            if isinstance(hook, dict) and "alert" in hook
        ]

    assert of("it") == ["one", "any"]
    assert of("other") == ["any"]


def test_a_test_message_is_tried_once_and_any_other_for_a_day() -> None:
    message = WebhookRequest(id="m", text="t", to="asked", event="end", at_ms=1)

    (step,) = plan_delivery(message).steps
    (test,) = plan_delivery(message.model_copy(update={"event": "test"})).steps

    assert (step.id, step.queue, test.retries) == (DELIVER, "webhooks", 0)
    assert step.retries > 24, "even if the pause is an hour each time"
    assert WebhookRequest.model_validate(step.params["delivery"]) == message
