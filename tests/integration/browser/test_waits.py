"""The words for a step that waits: for an answer, a time or a limit it passes no queue."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser.stage import PATIENCE_S, Stage, tool
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)  # a busy machine draws slowly


@pytest.mark.slow("a browser draws it")
def test_a_step_that_waits_for_an_answer_is_in_no_queue(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(
        tool("before", "echo", next_node="approve"),
        {"node_id": "approve", "kind": "wait", "next_node": "then"},
        tool("then", "echo"),
    )

    page.goto(f"{url}/pages/run/{run.run_id}")
    expect(page.locator('[data-node="approve"]')).to_contain_text("Waits for an answer")
    page.get_by_role("tab", name="Time line").click()
    row = page.locator(".time-list .time-row", has_text="approve")
    expect(row).to_have_accessible_name(re.compile("approve: Waits for an answer, waits for an answer since "))
    expect(row.locator(".span.hold")).to_be_visible()
    expect(row.locator(".span.wait")).to_have_count(0)
    expect(page.locator(".time-legend")).to_contain_text("waited for an answer")
    row.click()
    facts = page.locator(".step-facts")
    expect(facts).to_contain_text(re.compile(r"Waitsfor an answer since \d"))
    expect(facts).not_to_contain_text("ueue")

    run.signal("approve", True)
    expect(row).to_have_accessible_name(re.compile("approve: Done, waited for an answer for "))
    expect(facts).to_contain_text(re.compile(r"Waitedfor an answer for \d"))
    expect(page.locator("#app")).not_to_contain_text("for an answer since")
    then = page.locator(".time-list .time-row", has_text="then")
    expect(then).to_have_accessible_name(re.compile("then: Done, waited .* in a queue, worked "))


@pytest.mark.slow("a browser draws it")
def test_a_sleep_a_limit_and_a_tool_that_asks_are_named(deployment: Stage, url: str, page: Page) -> None:
    asleep = deployment.client.submit_workflow("naps", {})
    first, held = (deployment.client.submit_turn("Hello", agent="limited") for _ in range(2))

    page.goto(f"{url}/pages/run/{asleep.run_id}?tab=time")
    row = page.locator(".time-list .time-row", has_text="sleep")
    expect(row).to_have_accessible_name(re.compile("Sleeps, sleeps since "))
    expect(row.locator(".span.wait")).to_have_count(0)

    until(lambda: "succeeded" in (first.status(), held.status()), "the call that the limit lets through")
    second = held if first.status() == "succeeded" else first
    page.goto(f"{url}/pages/run/{second.run_id}?tab=time")
    row = page.locator(".time-list .time-row", has_text="limited")
    expect(row).to_have_accessible_name(
        re.compile("Held back by a limit, waited .* in a queue, held back .* by limits")
    )
    expect(page.locator(".time-legend")).to_contain_text("held back by limits")

    deployment.models.script(
        [{"after_tools": 0, "tool_calls": [{"name": "ask_legal", "arguments": {"text": "May I?"}}]}]
    )
    asking = deployment.client.submit_turn("May I?", agent="careful")
    page.goto(f"{url}/pages/run/{asking.run_id}?step=careful")
    expect(page.locator(".call")).to_contain_text("waits for an answer")
    expect(page.locator("[data-node]", has_text="ask_legal")).to_contain_text("Waits for an answer")
    deployment.models.script([{"reply": "You may."}])
    (step,) = asking.waiting_steps()
    asking.signal(step, "yes")
    expect(page.locator(".role-tool")).to_contain_text("yes")
    expect(page.locator(".call")).not_to_contain_text("waits for an answer")
    for run in (asleep, second):
        run.cancel()


@pytest.mark.slow("a browser draws it")
def test_a_turn_that_waited_for_its_session_is_not_said_to_have_been_in_a_queue(
    deployment: Stage, url: str, page: Page
) -> None:
    deployment.models.script([{"match": "first", "reply": "yes", "delay_s": 1.5}, {"reply": "yes"}])
    _, second = (deployment.client.submit_turn(text, agent="writer", session="waits") for text in ("first", "second"))
    second.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{second.run_id}?tab=time&step=@start")
    page.get_by_label("Internal steps").check()
    row = page.locator(".time-list .time-row", has_text="start").first
    expect(row).to_have_accessible_name(re.compile("start: Done, worked "))
    expect(row.locator(".span.wait")).to_have_count(0)
    expect(page.locator(".step-facts")).not_to_contain_text("in a queue")
