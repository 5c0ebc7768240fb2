"""The run pages in a real browser, before a real stack."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, Route, expect

from cantata.client.runs import ChainRun
from cantata.engine.fleet import registry
from cantata.features.batches.batch_store import BatchTarget
from cantata.ledger.redis.keys import key_of, run_key
from cantata.operation.traces import conventions
from tests.integration.browser import hostile, lag
from tests.integration.browser.stage import EXPECTED, PATIENCE_S, Stage, tool
from tests.integration.redis.servers import free_port
from tests.waiting import at_best, until

pytestmark = pytest.mark.timeout(240)  # a busy machine draws slowly

LOOKS: dict[str, Any] = {
    "desktop": {"size": {"width": 1200, "height": 800}, "scheme": "light", "rules": {}},
    "dark": {"size": {"width": 1200, "height": 800}, "scheme": "dark", "rules": {"runOnly": ["color-contrast"]}},
    "phone": {
        "size": {"width": 390, "height": 780},
        "scheme": "light",
        "rules": {"runOnly": ["scrollable-region-focusable"]},
    },
}
"""Looks of a page, each with the rules of axe that depend on it."""
VIOLATIONS = """(rules) => axe.run({resultTypes: ["violations"], ...rules})
    .then((found) => found.violations.map((each) => `${each.id}: ${each.help}: ${each.nodes[0].html}`))"""


@pytest.mark.slow("a browser draws it")
def test_a_run_is_watched_as_it_grows(deployment: Stage, url: str, page: Page) -> None:
    gate = deployment.gate()
    run = deployment.chain(
        tool("read", "echo", next_node="kind", kind="numbers"),
        {
            "node_id": "kind",
            "kind": "branch",
            "condition": "read.kind == 'numbers'",
            "true_node": "wait",
            "false_node": "words",
        },
        tool("words", "add", next_node="sum"),
        tool("wait", "hold", next_node="each", gate=str(gate), value=[1, 2, 3]),
        {"node_id": "each", "kind": "map", "items_path": "wait", "map_node": "one", "next_node": "sum"},
        {"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "item"}},
        tool("sum", "echo", input_map={"all": "each"}),
    )

    page.goto(f"{url}/pages/run/{run.run_id}")
    expect(page.locator('[data-node="wait"]')).to_contain_text("Running")
    expect(page.locator(".run-state")).to_have_text("Running")
    page.evaluate("window.stayed = true")
    gate.touch()
    expect(page.locator(".run-state")).to_have_text("Succeeded")

    expect(page.locator('[data-node="sum"]')).to_contain_text("Done")
    expect(page.locator('[data-group="each"]')).to_contain_text("3 of 3")
    expect(page.locator(".answer")).to_contain_text("2")
    expect(page.locator(".edge.not-taken text")).to_have_text("false")
    expect(page.locator(".edge.taken text")).to_have_text("true")
    assert page.evaluate("window.stayed")


@pytest.mark.thorough("a gateway of its own; what it serves below a prefix is held by gateway/test_pages.py")
def test_the_pages_work_below_a_prefix(deployment: Stage, page: Page) -> None:
    gate = deployment.gate()
    run = deployment.chain(tool("wait", "hold", gate=str(gate)))

    with deployment.gateway("--url-prefix", "team/cantata/") as url:
        page.goto(f"{url}/team/cantata")
        page.get_by_role("link", name=re.compile("wait")).first.click()
        expect(page).to_have_url(f"{url}/team/cantata/pages/run/{run.run_id}")
        expect(page.locator('[data-node="wait"]')).to_contain_text("Running")
        gate.touch()
        expect(page.locator(".run-state")).to_have_text("Succeeded")
        page.get_by_role("link", name="All runs").click()
        expect(page).to_have_url(f"{url}/team/cantata/pages/")
        page.goto("about:blank")  # before this gateway ends


def test_a_schedule_is_listed_paused_and_run_now(deployment: Stage, url: str, page: Page) -> None:
    chain = {"nodes": [{"node_id": "a", "kind": "tool", "name": "echo"}], "entry_node": "a"}
    deployment.client.schedules.create("hourly", {"every": "1h", "chain": chain, "note": "<b>bold</b>"})

    page.goto(f"{url}/pages/")
    page.get_by_role("link", name="Schedules").click()
    expect(page.locator("table.schedules tbody tr")).to_contain_text("every 1h")
    page.get_by_role("link", name="hourly").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("main")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("main ol li")).to_have_count(5)
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".run-state")).to_have_text("Succeeded")
    deployment.client.schedules.delete("hourly")


def test_cancelling_asks_first(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(tool("wait", "hold", gate=str(deployment.gate())))
    page.goto(f"{url}/pages/run/{run.run_id}")
    expect(page.locator('[data-node="wait"]')).to_contain_text("Running")

    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="No, leave it").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert run.status() == "running"
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the run").click()

    expect(page.locator(".run-state")).to_have_text("Cancelled")
    expect(page.locator('[data-node="wait"]')).to_contain_text("Skipped")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    assert run.status() == "cancelled"


@pytest.mark.thorough("what the page is sent of a map is held by gateway/test_pages.py")
def test_a_map_is_a_counted_node_that_opens(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(
        {"node_id": "each", "kind": "map", "items_path": "input.items", "map_node": "one"},
        {"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "item"}},
        initial_input={"items": list(range(205))},
    )
    run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{run.run_id}")
    each = page.locator('[data-group="each"]')
    expect(each).to_contain_text("205 of 205")
    expect(page.locator(".chip")).to_have_count(0)
    each.get_by_role("button").first.click()
    expect(page.locator(".chip")).to_have_count(200)

    expect(each).to_contain_text("and 5 more items")
    page.locator(".chip").nth(7).click()
    expect(page.get_by_label("Step", exact=True)).to_contain_text("Output")
    expect(page).to_have_url(re.compile(r"step=each%2F7$"))
    each.locator(".group-head").click()
    expect(page.locator(".chip")).to_have_count(0)


@pytest.mark.thorough("what the page is sent of a map is held by gateway/test_pages.py")
def test_the_time_line_tells_the_items_of_a_map_that_is_folded_in_the_graph(
    deployment: Stage, url: str, page: Page
) -> None:
    run = deployment.chain(
        {"node_id": "each", "kind": "map", "items_path": "input.items", "map_node": "one"},
        {"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "item"}},
        initial_input={"items": [1, 2, 3]},
    )
    run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{run.run_id}?tab=time")

    expect(page.locator(".time-list .time-row").filter(has_text="each [")).to_have_count(3)
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator('[data-group="each"]')).to_contain_text("3 of 3")
    expect(page.locator(".chip")).to_have_count(0)


@pytest.mark.thorough("what the page is sent of a step is held by gateway/test_pages.py")
def test_a_step_shows_its_messages_and_tool_calls(deployment: Stage, url: str, page: Page) -> None:
    call = {"name": "search", "arguments": {"query": "E42"}}
    deployment.models.script(
        [{"after_tools": 0, "tool_calls": [call]}, {"after_tools": 1, "reply": "E42 says that **the disk** is full."}]
    )
    run = deployment.client.submit_turn("What is E42?", agent="clerk")
    run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{run.run_id}")
    expect(page.locator(".answer .markdown strong")).to_have_text("the disk")
    page.locator(".answer").get_by_role("button", name="Plain text").click()
    expect(page.locator(".answer")).to_contain_text("E42 says that **the disk** is full.")
    page.locator("[data-node]", has_text="clerk").last.click()

    panel = page.get_by_label("Step", exact=True)
    expect(page.locator("[data-node='clerk/r1']")).to_be_in_viewport(ratio=1)
    expect(panel.locator(".role-system")).to_contain_text("You are careful, and short.")
    expect(panel.locator(".role-user")).to_contain_text("What is E42?")
    expect(panel.locator(".call")).to_contain_text("search")
    expect(panel.locator(".call")).to_contain_text('"query": "E42"')
    expect(panel.locator(".role-tool")).to_contain_text("E42: the disk is full")
    expect(panel.locator(".role-assistant").last).to_contain_text("E42 says that the disk is full.")
    expect(panel.get_by_text("Output", exact=True)).to_have_count(0)  # it is the last message
    expect(panel.locator(".step-facts")).to_contain_text("gpt-4o-mini")
    expect(panel.locator(".step-facts")).to_contain_text(re.compile(r"Tokens\d+ \(\d+ in, \d+ out\)"))


@pytest.mark.thorough("void tokens are held by gateway/test_chat.py")
def test_replies_are_streamed_and_struck_through_when_their_attempt_is_discarded(
    deployment: Stage, url: str, page: Page
) -> None:
    gone, good = "These words are cut off soon and never count at all", "Those words stay"
    deployment.models.script(
        [
            {"match": "Speak", "times": 1, "reply": gone, "chunk_delay_s": 0.15, "truncate": 1700},
            {"reply": good, "chunk_delay_s": 0.15},
        ]
    )
    run = deployment.client.submit_turn("Speak", agent="writer")

    page.goto(f"{url}/pages/run/{run.run_id}?tab=events")
    expect(page.locator(".reply").first).to_contain_text("These words")
    expect(page.locator("del.reply")).to_contain_text("These words")
    expect(page.locator("span.reply").last).to_have_text(good)
    expect(page.locator(".run-state")).to_have_text("Succeeded")


@pytest.mark.thorough("what the page is sent of attempts is held by gateway/test_pages.py")
def test_a_failure_tells_its_attempts_and_is_retried(deployment: Stage, url: str, page: Page) -> None:
    gate = deployment.gate()
    run = deployment.chain(
        tool("first", "add", next_node="shaky"),
        tool("shaky", "fail_until", retry=2, gate=str(gate), message="no luck today"),
    )
    run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{run.run_id}")
    expect(page.locator(".head .card.bad")).to_contain_text("no luck today")
    expect(page.locator('[data-node="shaky"] .badge')).to_have_text("\N{MULTIPLICATION SIGN}3")
    page.locator('[data-node="shaky"]').click()
    story = page.locator(".attempts li")
    expect(story).to_have_count(3)
    expect(story.nth(0)).to_contain_text("tried again")
    expect(story.nth(2)).to_contain_text("Failed")
    expect(page.locator(".panel .card.bad")).to_be_hidden()  # the error is in the head, beside it
    expect(page.locator(".logs")).to_contain_text("looking for a gate")
    gate.touch()
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()

    expect(page).not_to_have_url(re.compile(run.run_id))
    expect(page.locator(".run-state")).to_have_text("Succeeded")
    expect(page.locator(".answer")).to_contain_text("went well")
    expect(page.get_by_role("link", name=re.compile(run.run_id[:8]))).to_be_visible()


@pytest.mark.slow("a browser draws it")
def test_a_failed_item_is_named_and_its_run_is_run_again_with_another_input_and_compared(
    deployment: Stage, url: str, page: Page
) -> None:
    run = deployment.chain(
        {"node_id": "each", "kind": "map", "items_path": "input.items", "map_node": "one", "next_node": "sum"},
        {"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "item"}},
        tool("sum", "echo", input_map={"all": "each"}),
        initial_input={"items": [1, "two"]},
    )
    run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{run.run_id}")
    error = page.locator(".head .card.bad")
    expect(error).to_contain_text("tool_error in each [1]")
    expect(error.locator("details[open]")).to_contain_text("TypeError")
    expect(page.locator("[data-node]")).to_have_count(2)
    page.get_by_label("Internal steps").check()
    expect(page.locator("[data-node='@start'], [data-node='each/@gather']")).to_have_count(2)
    error.get_by_role("button", name="each [1]").click()
    expect(page.get_by_label("Step", exact=True).get_by_role("heading", name="each [1]")).to_be_visible()

    page.get_by_role("button", name="Run again").click()
    page.get_by_label("Input, as JSON").fill('{"items": [1, 2]}')
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator(".run-state")).to_have_text("Succeeded")
    page.get_by_role("button", name="Compare").click()
    rows = page.get_by_role("region", name="Steps of both runs").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="sum")).to_contain_text("Skipped")


@pytest.mark.thorough("axe reads each page; roles, names and keys are held by the plain tests")
@pytest.mark.slow("a browser draws it")
def test_axe_finds_no_fault_in_the_page_of_a_run(deployment: Stage, url: str, page: Page) -> None:
    table = "| a | b |\n|---|---|\n| 1 | [there](https://example.org) |\n\nSee [this](https://example.org) and `code`."
    deployment.models.script([{"reply": table}])
    turn = deployment.client.submit_turn("Show a table", agent="writer")
    failed = deployment.chain(tool("first", "add", next_node="bad"), tool("bad", "fail", message="no"))
    waiting = deployment.chain({"node_id": "ask", "kind": "wait", "question": "Go on?"})
    turn.wait(PATIENCE_S)
    failed.wait(PATIENCE_S)
    addresses = [
        turn.run_id, f"{turn.run_id}?step=writer", f"{failed.run_id}?step=bad", f"{waiting.run_id}?step=ask",
        *(f"{failed.run_id}?tab={tab}" for tab in ("time", "events", "logs", "request", f"compare&with={turn.run_id}")),
    ]  # fmt: skip
    for address in addresses:
        page.goto(f"{url}/pages/run/{address}")
        expect(page.locator(".run-state")).to_be_visible()
        expect(page.locator(".node, .time-row, .event, .logs li, .boxed, .compare table").first).to_be_visible()
        assert list(barriers(page, "desktop", "dark")) == [], address
    waiting.cancel()


def barriers(page: Page, *looks: str) -> Iterator[str]:
    """What axe finds in a page in some of its looks."""
    page.evaluate(AXE_SCRIPT)
    for name in looks:
        look = LOOKS[name]
        page.set_viewport_size(look["size"])
        page.emulate_media(color_scheme=look["scheme"])
        yield from (f"{name}: {each}" for each in page.evaluate(VIOLATIONS, look["rules"]))
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name


def test_a_waiting_step_is_given_its_value(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(
        {"node_id": "approve", "kind": "wait", "next_node": "then"}, tool("then", "echo", input_map={"said": "approve"})
    )

    page.goto(f"{url}/pages/run/{run.run_id}?step=approve")
    page.get_by_label("or another value").fill('{"by": "Anna"}')
    page.get_by_role("button", name="Send").click()

    expect(page.locator(".answer")).to_contain_text('"by": "Anna"')


def test_a_step_of_a_workflow_in_python_shows_its_line(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.client.submit_workflow("asks", {})

    page.goto(f"{url}/pages/run/{run.run_id}?step=asks/0.wait/approve")

    expect(page.locator(".step-facts")).to_contain_text(re.compile(r"Linepage_tools\.py:\d+"))
    run.cancel()


@pytest.mark.slow("a browser draws it, from three gateways")
def test_a_run_and_its_attempts_link_to_their_trace_where_its_address_is_set(
    deployment: Stage, url: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = deployment.chain(tool("only", "add"))
    run.wait(PATIENCE_S)
    trace = f"{conventions.trace_id(run.run_id):032x}"
    root, span = conventions.run_span(run.run_id), conventions.step_span(run.run_id, "only", 1)

    page.goto(f"{url}/pages/run/{run.run_id}?step=only")
    expect(page.locator(".attempts li")).to_have_count(1)
    expect(page.locator("a[href*='traces.example']")).to_have_count(0)
    for template, links in {
        "https://traces.example/{trace_id}?s={span_id}": [f"{trace}?s={root:016x}", f"{trace}?s={span:016x}"],
        "https://traces.example/{trace_id}": [trace],
    }.items():
        monkeypatch.setenv("CANTATA_TRACE_URL", template)
        with deployment.gateway() as address:
            page.goto(f"{address}/pages/run/{run.run_id}?step=only")
            expect(page.locator(".attempts li")).to_have_count(1)
            found = page.locator("a[href*='traces.example']")
            expect(found).to_have_count(len(links))
            assert [link.get_attribute("href") for link in found.all()] == [
                f"https://traces.example/{each}" for each in links
            ]
            page.goto("about:blank")  # before this gateway ends


@pytest.mark.thorough("a hundred and twenty runs; the lists are held by gateway/test_pages.py")
def test_many_runs_are_found_and_keep_their_place(deployment: Stage, url: str, page: Page) -> None:
    runs = [
        deployment.chain(tool("only", "add"), labels={"batch": "many", "number": f"no-{number:03}"})
        for number in range(120)
    ]
    failing = deployment.chain(tool("only", "fail", message="the only one that fails"), labels={"batch": "many"})
    for run in (*runs, failing):
        run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/?q=many")
    rows = page.locator(".runs tbody tr:not(.spacer)")
    expect(rows.first).to_contain_text("the only one that fails")

    def last_is_shown() -> bool:
        page.keyboard.press("End")  # again and again: what is read meanwhile makes the page longer
        return page.get_by_text("121 runs, to the end").count() == 1 and "no-000" in rows.last.inner_text()

    until(last_is_shown, "the last of the runs")
    assert rows.count() < 80
    deployment.chain(tool("only", "add"), labels={"batch": "many", "number": "late"}).wait(PATIENCE_S)
    page.get_by_role("button", name="1 new run").click()
    expect(rows.first).to_contain_text("late")

    page.get_by_label("Search runs").fill("no-077")
    expect(rows).to_have_count(1)
    page.get_by_label("Search runs").fill("many")
    page.get_by_role("button", name="Failed").click()
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile(r"status=failed"))
    page.get_by_label("Kind").select_option("turn")
    expect(page.get_by_text("No run matches this filter.")).to_be_visible()
    page.get_by_label("Kind").select_option("chain")
    rows.first.get_by_role("link").click()
    expect(page.locator(".run-state")).to_have_text("Failed")
    page.go_back()
    expect(rows).to_have_count(1)


@pytest.mark.slow("a browser draws it")
def test_the_list_shows_by_itself_what_happens(deployment: Stage, url: str, page: Page) -> None:
    gate = deployment.gate()
    page.goto(f"{url}/pages/?q=by-itself")
    expect(page.get_by_text("No run matches this filter.")).to_be_visible()

    run = deployment.chain(tool("wait", "hold", gate=str(gate)), labels={"mark": "by-itself"})
    expect(page.locator(".cell-status")).to_have_text("Running")
    refusal = f'{int(time.time() * 1000)} {{"message": "the code has changed"}}'  # as release.lua writes it
    deployment.client.redis.hset(run_key(deployment.client.redis, run.run_id), "refused", refusal)
    expect(page.locator(".cell-title")).to_contain_text("Stopped: the code has changed")
    gate.touch()
    expect(page.locator(".cell-status")).to_have_text("Succeeded")
    expect(page.locator(".cell-title")).not_to_contain_text("Stopped")


@pytest.mark.slow("a browser draws it")
def test_selected_runs_are_retried_and_what_fails_is_said(deployment: Stage, url: str) -> None:
    labels = {"mark": "together"}
    gate = deployment.gate()
    held = deployment.chain(tool("wait", "hold", gate=str(gate)), chain_id="held", labels=labels)
    failing = [
        deployment.chain(tool("only", "fail", message="no luck"), chain_id=name, labels=labels)
        for name in ("first", "second")
    ]
    for run in failing:
        run.wait(PATIENCE_S)
    with deployment.page(faults=EXPECTED) as page:
        error = {"error": {"code": "gone", "message": "its request is gone"}}
        page.route(f"**/runs/{failing[1].run_id}/retry", lambda route: route.fulfill(status=404, json=error))

        page.goto(f"{url}/pages/?since=1h")
        expect(page.get_by_role("button", name=re.compile(r"Failed [1-9]"))).to_be_visible()
        page.goto(f"{url}/pages/?q=together&since=1h")
        expect(
            page.get_by_role("button", name="Failed", exact=True), "counts are not of a text that is searched"
        ).to_be_visible()
        page.get_by_label("Select all runs that are shown").check()
        bar = page.get_by_role("region", name="Selected runs")
        expect(bar.get_by_role("button", name="Cancel 1")).to_be_visible()
        bar.get_by_role("button", name="Retry 2").click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()

        expect(bar.get_by_role("status")).to_contain_text("1 run retried, 1 not:")
        expect(bar.get_by_role("listitem")).to_have_text("second: its request is gone")
        expect(page.locator(".row-link", has_text="first")).to_have_count(2)
        page.get_by_label("Select held").check()
        bar.get_by_role("button", name="Cancel 1").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
        expect(bar.get_by_role("status")).to_have_text("1 run cancelled.")
    assert held.status() == "cancelled"


@pytest.mark.slow("a browser draws it")
def test_all_runs_that_match_are_cancelled_after_a_preview(deployment: Stage, url: str, page: Page) -> None:
    waiting = {"node_id": "ok", "kind": "wait"}
    runs = [deployment.chain(waiting, chain_id=f"flood-{number}") for number in range(60)]
    other = deployment.chain(waiting, chain_id="calm")
    until(lambda: all(run.status() == "waiting" for run in (*runs, other)), "the waits", PATIENCE_S)

    page.goto(f"{url}/pages/?q=flood-")
    page.get_by_text("Actions on all matching runs").click()
    page.get_by_role("button", name="Cancel all…").click()
    dialog = page.get_by_role("dialog", name="Cancel 60 runs?")
    expect(dialog).to_contain_text("flood-59")
    expect(dialog).to_contain_text("flood-0")
    assert [*barriers(page, "desktop")] == []
    late = deployment.chain(waiting, chain_id="flood-late")
    dialog.get_by_role("button", name="No, leave them").click()
    assert {run.status() for run in runs} == {"waiting"}
    page.get_by_role("button", name="Cancel all…").click()
    page.get_by_role("dialog", name="Cancel 61 runs?").get_by_role("button", name="Cancel them").click()

    expect(page.get_by_text("61 runs cancelled.")).to_be_visible()
    assert {run.status() for run in (*runs, late)} == {"cancelled"}
    assert other.status() == "waiting"
    page.get_by_role("button", name="Retry all…").click()
    page.get_by_role("dialog", name="Retry 61 runs?").get_by_role("button", name="No, leave them").click()
    page.goto(f"{url}/pages/?q=calm")
    page.get_by_text("Actions on all matching runs").click()
    page.get_by_label("Step").fill("ok")
    page.get_by_role("button", name="Signal all…").click()
    page.get_by_role("dialog", name="Signal 1 run?").get_by_role("button", name="Signal them").click()
    expect(page.get_by_text("1 run signalled.")).to_be_visible()
    until(lambda: other.status() == "succeeded", "the end", PATIENCE_S)


@pytest.mark.slow("workers heed a decision with their next announcement")
def test_a_queue_is_paused_and_a_worker_drained_by_buttons_and_pages_say_so(
    deployment: Stage, url: str, page: Page
) -> None:
    page.goto(f"{url}/pages/workers")
    queue = page.get_by_role("table").first.get_by_role("row", name=re.compile("^tools"))
    queue.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog", name="Pause the queue tools?").get_by_role("button", name="Pause it").click()
    expect(queue).to_contain_text("paused since")
    until(lambda: any("tools" in each.held for each in deployment.client.fleet.workers()), "the pause", PATIENCE_S)
    run = deployment.chain(tool("held-up", "echo"))
    try:
        page.goto(f"{url}/pages/run/{run.run_id}")
        expect(page.get_by_text("Queue tools is paused since")).to_be_visible()
        page.goto(f"{url}/pages/home")
        expect(page.get_by_text("paused since", exact=False).first).to_be_visible()
    finally:
        page.goto(f"{url}/pages/workers")
        queue.get_by_role("button", name="Resume").click()
        page.get_by_role("dialog").get_by_role("button", name="Resume it").click()
        expect(queue.get_by_role("button", name="Pause")).to_be_visible()
    run.wait(PATIENCE_S)
    assert run.status() == "succeeded"

    worker = page.get_by_role("table").last.get_by_role("row", name=re.compile("^tools"))
    worker.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain it").click()
    expect(worker).to_contain_text("drained")
    worker.get_by_role("button", name="Undrain").click()
    page.get_by_role("dialog").get_by_role("button", name="Let it work").click()
    expect(worker.get_by_role("button", name="Drain", exact=True)).to_be_visible()


LISTS = {  # path → a text of the page
    "/home": "Waiting for a person", "/": "Select all", "/?since=2026-01-01T00:00&status=failed": "from", "/inbox": "Is it right?",
    "/schedules": "nightly", "/schedule/nightly": "Declaration", "/batches": "letters", "/batch/letters": "Failed rows",
    "/workers": "coordinator",
}  # fmt: skip


@pytest.mark.thorough("each page is judged in three looks; what they show is held by the other tests")
@pytest.mark.slow("a browser draws it")
def test_no_list_has_a_barrier_for_keyboard_or_screen_reader(deployment: Stage, url: str, page: Page) -> None:
    deployment.chain(tool("only", "fail", message="no luck"), chain_id="broken").wait(PATIENCE_S)
    waiting = deployment.chain({"node_id": "ok", "kind": "wait", "question": "Is it right?"})
    chain = {"nodes": [{"node_id": "a", "kind": "tool", "name": "echo"}], "entry_node": "a"}
    deployment.client.schedules.create("nightly", {"every": "1h", "chain": chain})
    deployment.models.script([{"match": "^b$", "status": 400, "reply": "no"}, {"reply": "yes"}])
    feed = deployment.client.feed_batch(["a", "b"], agent="writer", name="letters")
    for group in feed.groups():
        feed.deliver(group)
    found: list[str] = []

    for path, text in LISTS.items():
        page.goto(f"{url}/pages{path}")
        expect(page.get_by_text(text).or_(page.get_by_label(text)).first).to_be_visible()
        found += [f"{path}, {each}" for each in barriers(page, *LOOKS)]

    assert found == []
    waiting.cancel()
    deployment.client.schedules.delete("nightly")


@pytest.mark.thorough("a gateway is ended and started again; that its events go on is held by gateway/test_http.py")
def test_a_page_goes_on_when_its_gateway_comes_back(deployment: Stage) -> None:
    port, gate = free_port(), deployment.gate()
    run = deployment.chain(
        tool("wait", "hold", gate=str(gate), value="held", next_node="then"),
        tool("then", "echo", input_map={"a": "wait"}),
    )
    with deployment.page(faults=EXPECTED) as page:
        with deployment.gateway(port=port) as address:
            page.goto(f"{address}/pages/run/{run.run_id}")
            expect(page.locator('[data-node="wait"]')).to_contain_text("Running")
        expect(page.get_by_text("The connection was lost")).to_be_visible()
        gate.touch()
        run.wait(PATIENCE_S)
        assert page.locator(".run-state").inner_text() == "Running"
        with deployment.gateway(port=port):
            expect(page.locator(".run-state")).to_have_text("Succeeded")
            expect(page.locator('[data-node="then"]')).to_contain_text("Done")
            expect(page.get_by_text("The connection was lost")).to_have_count(0)


@pytest.mark.thorough("another size of the screen")
def test_a_phone_has_room_for_all(deployment: Stage, url: str) -> None:
    run = deployment.chain(tool("first", "add", next_node=["left", "right"]), tool("left", "add"), tool("right", "add"))
    run.wait(PATIENCE_S)
    with deployment.page(viewport={"width": 390, "height": 780}, has_touch=True, color_scheme="dark") as page:
        for address in (
            "/pages/",
            f"/pages/run/{run.run_id}",
            f"/pages/run/{run.run_id}?tab=time",
            f"/pages/run/{run.run_id}?tab=events",
        ):
            page.goto(url + address)
            expect(page.locator(".runs tbody tr, .run-state").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") == 390, address
        page.goto(f"{url}/pages/run/{run.run_id}")
        page.locator('[data-node="first"]').tap()
        panel = page.get_by_label("Step", exact=True)
        expect(panel).to_contain_text("Output")
        box = panel.bounding_box()
        assert box
        assert (box["x"], box["width"]) == (0, 390)
        page.get_by_label("Close the step").tap()
        expect(panel).to_have_count(0)
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        page.get_by_label("Show the light theme").tap()
        page.reload()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


@pytest.mark.thorough("the plain tests press the same controls by mouse")
def test_everything_is_reached_by_keyboard(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(tool("first", "add", next_node="second"), tool("second", "add"), labels={"mark": "keyboard"})
    run.wait(PATIENCE_S)
    focused = "document.activeElement.dataset.node ?? document.activeElement.textContent"

    page.goto(f"{url}/pages/?q=keyboard")
    expect(page.locator(".row-link")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the content"
    page.locator(".chip-toggle").last.focus()
    for _ in range(
        5
    ):  # past the button that saves the filter, the actions on all runs, and the boxes that select all and this one
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".run-state")).to_have_text("Succeeded")

    expect(page.locator('[data-node="second"]')).to_be_visible()
    page.locator("#tab-graph").focus()
    for _ in range(5):
        page.keyboard.press("Tab")
    assert page.evaluate(focused) == "first"
    page.keyboard.press("ArrowRight")
    expect(page.locator('[data-node="second"]')).to_be_focused()
    page.keyboard.press("Enter")
    panel = page.get_by_label("Step", exact=True)
    expect(panel.get_by_role("heading", name="second")).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(page.locator('[data-node="second"]')).to_be_focused()
    page.locator("#tab-graph").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Time line")).to_be_focused()
    row = page.get_by_label("Time line", exact=True).get_by_role("button", name=re.compile("second: Done"))
    expect(row).to_be_visible()
    lane = row.locator(".lane").bounding_box()
    assert lane
    assert lane["width"] > 200, "its bars are seen"


@pytest.mark.thorough("a gateway of its own; what tokens show is held by gateway/test_access.py")
def test_a_token_shows_the_runs_of_its_tenant(deployment: Stage) -> None:
    tokens = {"token-of-anna-0123456789": "anna", "token-of-otto-0123456789": "otto"}
    file = deployment.folder / "tokens.json"
    file.write_text(json.dumps(tokens))
    runs = {name: deployment.chain(tool("only", "add"), labels={"tenant": name}) for name in tokens.values()}
    for run in runs.values():
        run.wait(PATIENCE_S)
    with deployment.gateway("--tokens-file", str(file)) as address, deployment.page(faults=EXPECTED) as page:
        page.goto(f"{address}/pages/run/{runs['anna'].run_id}")
        page.get_by_label("Token").fill("no-token-that-is-known")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("This token is unknown.")
        page.get_by_label("Token").fill("token-of-anna-0123456789")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".run-state")).to_have_text("Succeeded")

        page.goto(f"{address}/pages/")
        expect(page.locator(".row-link")).to_have_count(1)
        page.goto(f"{address}/pages/run/{runs['otto'].run_id}")
        expect(page.get_by_role("heading", name="There is no such run")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_focused()
        assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.slow("a browser draws it")
def test_the_home_page_tells_what_is_wrong_with_the_fleet(deployment: Stage, url: str, page: Page) -> None:
    fleet = deployment.client.fleet
    page.goto(f"{url}/pages/home")
    problems = page.get_by_role("status", name="Problems")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()

    fleet.pause_queue("tools", by="anna")
    try:
        expect(problems).to_contain_text("tools")
        expect(problems).to_contain_text("paused")
        expect(problems).to_contain_text("anna")
    finally:
        fleet.resume_queue("tools")
    expect(problems).not_to_contain_text("anna")


@pytest.mark.slow("a browser draws it")
def test_an_operator_sees_all_tenants_and_chooses_one(deployment: Stage) -> None:
    tokens = {
        "token-of-acme-0123456789": {"tenant": "acme"},
        "token-of-sre-0123456789": {"tenant": "", "scopes": ["operator"]},
    }
    file = deployment.folder / "tokens.json"
    file.write_text(json.dumps(tokens))
    runs = {name: deployment.chain(tool("only", "add"), labels={"tenant": name}) for name in ("acme", "globex")}
    batches = {name: deployment.client.of(name).batches for name in runs}
    for name, run in runs.items():
        run.wait(PATIENCE_S)
        batches[name].open(f"rows-{name}", BatchTarget(kind="agent", name="echo"))
    with deployment.gateway("--tokens-file", str(file)) as address, deployment.page(faults=EXPECTED) as page:
        page.goto(f"{address}/pages/?q={runs['acme'].run_id}")
        page.get_by_label("Token").fill("token-of-acme-0123456789")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".row-link")).to_have_count(1)
        expect(page.get_by_label("Tenant")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").fill("token-of-sre-0123456789")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".row-link")).to_have_count(1)

        page.get_by_label("Tenant").select_option("globex")
        expect(page.locator(".empty")).to_contain_text("No run matches")
        page.goto(f"{address}/pages/batches")
        expect(page.locator(".row-link")).to_have_text(["rows-globex"])
        page.get_by_label("Tenant").select_option("All tenants")
        expect(page.locator(".row-link").filter(has_text="rows-acme")).to_be_visible()
        page.locator(".row-link").filter(has_text="rows-acme").click()
        expect(page.get_by_role("heading", name="Batch rows-acme")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        page.goto(f"{address}/pages/home")
        page.get_by_role("link", name="rows-globex").click()
        expect(page.get_by_role("heading", name="Batch rows-globex")).to_be_visible()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert batches["acme"].find("rows-acme").state == "paused"
    for name, each in batches.items():
        each.cancel(f"rows-{name}")


@pytest.mark.slow("a browser draws it, and a call is made again after a second")
def test_a_bulk_action_of_one_tenant_is_never_sent_for_another(deployment: Stage) -> None:
    file = deployment.folder / "tokens.json"
    file.write_text(json.dumps({"token-of-sre-0123456789": {"tenant": "", "scopes": ["operator"]}}))
    waits = {
        name: deployment.chain({"node_id": "w", "kind": "wait"}, labels={"tenant": name}) for name in ("of-a", "of-b")
    }
    sent: list[str] = []
    with deployment.gateway("--tokens-file", str(file)) as address, deployment.page(faults=EXPECTED) as page:

        def refuse(route: Route) -> None:
            sent.append(route.request.url.partition("?")[2])
            route.fulfill(status=429, json={"error": {"code": "busy", "message": "busy", "faults": []}})

        page.route(re.compile(r"/runs/bulk(\?|$)"), refuse)
        page.goto(f"{address}/pages/")
        page.get_by_label("Token").fill("token-of-sre-0123456789")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Tenant").select_option("of-a")
        page.get_by_text("Actions on all matching runs").click()
        page.get_by_role("button", name="Cancel all…").click()
        with page.expect_request(re.compile(r"/runs/bulk(\?|$)")):
            page.get_by_role("button", name="Cancel them").click()
        page.get_by_label("Tenant").select_option("of-b")
        page.wait_for_timeout(2500)  # the second try would come after one
    assert sent
    assert {*sent} == {"tenant=of-a"}
    for run in waits.values():
        run.cancel()


@pytest.mark.slow("a browser draws it")
def test_an_inbox_is_answered_by_keyboard_and_what_others_answer_goes_away(
    deployment: Stage, url: str, page: Page
) -> None:
    properties = {
        "approved": {"type": "boolean"},
        "note": {"type": "string", "title": "Why?"},
        "size": {"enum": ["S", "L"]},
        "order": {"type": "integer"},
    }
    schema = {"type": "object", "properties": properties, "required": ["approved", "note"]}
    asked = {
        "kind": "wait",
        "question": "Pay 3 for tea?",
        "input": {"amount": 3, "order": 1234567890123456789, "items": []},
        "who": ["legal"],
        "answer_schema": schema,
    }
    run, other = (
        deployment.chain({"node_id": "pay", **asked}),
        deployment.chain({"node_id": "ship", "kind": "wait", "question": "Ship it?"}),
    )

    page.goto(f"{url}/pages/")
    page.get_by_role("button", name="Waiting").click()
    expect(page.locator(".row-link")).to_have_count(2)
    page.get_by_role("link", name="Inbox").click()
    first, second = page.get_by_role("article", name="Pay 3 for tea?"), page.get_by_role("article", name="Ship it?")
    expect(first).to_contain_text("for legal")
    first.get_by_text("Context").click()
    expect(first).to_contain_text('"amount": 3,\n  "order": 1234567890123456789,\n  "items": []')
    first.get_by_text("Answer", exact=True).focus()
    page.keyboard.press("Enter")
    first.get_by_label("approved").select_option("Yes")
    first.get_by_label("Why?").fill("We need it")
    first.get_by_label("order").fill("-1234567890123456789")
    first.get_by_label("order").press("Enter")
    expect(first).to_have_count(0)
    expect(page.get_by_text("Answered: Pay 3 for tea?")).to_be_visible()
    assert run.result(PATIENCE_S).final_output == {
        "approved": True,
        "note": "We need it",
        "order": -1234567890123456789,
    }

    expect(second).to_be_visible()
    other.signal("ship", {"by": "another"})
    expect(second).to_have_count(0)
    expect(page.get_by_text("No step waits for a person.")).to_be_visible()

    several = [
        deployment.chain({"node_id": "ok", "kind": "wait", "question": f"Is {number} right?"}) for number in (1, 2)
    ]
    for number in (1, 2):
        page.get_by_role("checkbox", name=f"Is {number} right?").check()
    page.get_by_role("region", name="Answer 2 selected steps").get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Answered: 2 steps")).to_be_visible()
    assert [each.result(PATIENCE_S).final_output for each in several] == [True, True]


@pytest.mark.thorough("a gateway of its own; what tokens may is held by gateway/test_scopes.py")
def test_what_a_token_may_not_do_is_off_and_says_why(deployment: Stage) -> None:
    rights = {"reader": {"scopes": ["read"]}, "asker": {"scopes": ["submit", "signal", "read"]}}
    file = deployment.folder / "rights.json"
    file.write_text(
        json.dumps(
            {f"token-of-{name}-0123456789": {"tenant": "", "name": name, **each} for name, each in rights.items()}
        )
    )
    run = deployment.chain({"node_id": "ask", "kind": "wait"}, labels={"requested_by": "asker"})
    with deployment.gateway("--tokens-file", str(file)) as address:
        for name, reason in (("reader", "lacks the scope 'signal'"), ("asker", "another token must approve it")):
            with deployment.page(faults=EXPECTED) as page:
                page.goto(f"{address}/pages/run/{run.run_id}?step=ask")
                page.get_by_label("Token").fill(f"token-of-{name}-0123456789")
                page.get_by_role("button", name="Sign in").click()
                form = page.locator(".signal")
                expect(form.get_by_role("note")).to_contain_text(reason)
                expect(form.get_by_role("button", name="Approve")).to_be_disabled()
                cancel = page.get_by_role("button", name="Cancel", exact=True)
                if name == "reader":
                    expect(cancel).to_be_disabled()
                    expect(page.locator(".head-line").get_by_role("note")).to_contain_text("lacks the scope 'submit'")
                else:
                    expect(cancel).to_be_enabled()
    run.cancel()


@pytest.mark.thorough("a thousand steps are drawn")
def test_a_thousand_steps_are_drawn_at_once_and_kept_up_with(deployment: Stage, url: str, page: Page) -> None:
    gate = deployment.gate()
    run = deployment.chain(*lag.large_chain(str(gate)))
    page.add_init_script(lag.WATCH_FIRST_NODE)
    expect_running(deployment, run)

    crowd = page.locator("[data-group^='+']")

    def first_paint_ms() -> float:
        page.goto(f"{url}/pages/run/{run.run_id}")
        expect(crowd).to_contain_text("0 of 500")
        return float(page.evaluate("window.firstNodeMs"))

    assert at_best(first_paint_ms, 6000) <= 6000  # on a quiet machine: below 1,000
    assert page.locator(".node").count() < 200
    assert at_best(lambda: lag.frame_ms(page), 20) <= 20  # 60 frames a second
    page.locator(".graph-scroller").click(position={"x": 5, "y": 5})  # it does not follow what runs any more
    page.evaluate(lag.WATCH_COUNT)
    gate.touch()
    expect(crowd).to_contain_text("500 of 500")
    expect(page.locator(".run-state")).to_have_text("Succeeded")
    page.get_by_role("tab", name="Time line").click()
    expect(page.locator("button.time-row").first).to_be_visible()

    assert page.locator("button.time-row").count() < 100
    found = lag.figures(page, run)
    assert found["lag_median"] < 3 * 1000, (
        found
    )  # on a quiet machine the most is below 500; on a busy one the browser may stand still once
    page.goto(f"{url}/pages/run/{run.run_id}?tab=events")
    expect(page.locator(".event-type").last).to_have_text("closed")
    expect(page.locator("li.event")).to_have_count(400)
    page.get_by_role("button", name="Earlier events").click()
    expect(page.locator("li.event")).to_have_count(800)


def expect_running(deployment: Stage, run: ChainRun) -> None:
    """Wait until a step of a run is under way."""
    for event in run.log(timeout_s=PATIENCE_S):
        if event.type == "started" and event.step != "@start":
            return


@pytest.mark.thorough(
    "three pages are drawn; that no script makes markup of text is held by unit/surfaces/pages/test_scripts.py"
)
@pytest.mark.slow("a browser draws it")
def test_what_others_wrote_is_text_wherever_it_stands(deployment: Stage, url: str, page: Page) -> None:
    words, name = hostile.MARKUP, hostile.OVERRIDE
    call = {"name": f"search{words}", "arguments": {"query": words}}
    deployment.models.script([{"after_tools": 0, "tool_calls": [call]}, {"after_tools": 1, "reply": words}])
    agents = deployment.client.definitions.agents
    hostiles = deployment.client.with_definitions(
        deployment.client.definitions.model_copy(update={"agents": {**agents, words: agents["clerk"]}})
    )
    turn = hostiles.submit_turn(words, agent=words, session=words[:90], labels={"mark": "hostile", name: words})
    chain = deployment.chain(
        tool("<script>asks", "echo", text=words, next_node=["large", "bad", "wait"]),
        tool("large", "echo", text=hostile.LARGE),
        tool("bad", "fail", message=words, on_error="skip"),
        {"node_id": "wait", "kind": "wait", "input": {"please": words}},
        chain_id=words[:100],
        labels={"mark": "hostile"},
    )
    turn.wait(PATIENCE_S)
    page.add_init_script(hostile.WATCH)

    def shows(address: str, *texts: str) -> None:
        page.goto(url + address)
        for text in texts:
            expect(page.locator("#main")).to_contain_text(text)
        assert page.evaluate(hostile.HARM) == hostile.UNHARMED, address

    shows("/pages/?q=hostile", "<script>window.harmed")
    shows(f"/pages/run/{turn.run_id}", "<script>window.harmed", "abc\\u202egnp.exe", "<img src=x onerror")
    shows(f"/pages/run/{turn.run_id}?tab=request", '"text": "<script>window.harmed')
    shows(f"/pages/run/{turn.run_id}?tab=events", "reply")
    for step in steps_of(url, turn.run_id):
        shows(f"/pages/run/{turn.run_id}?tab=time&step={quote(step, safe='')}", "Attempts")
        expect(page.locator(".panel")).to_contain_text("start" if step == "@start" else "<script>window.harmed")
    shows(f"/pages/run/{chain.run_id}?tab=events", "please")
    told = {
        "<script>asks": "Output",
        "large": "Large values were truncated",
        "bad": "<script>window.harmed",
        "wait": "waits for a value",
    }
    for step, text in told.items():
        shows(f"/pages/run/{chain.run_id}?step={quote(step)}", text)
    chain.cancel()


@pytest.mark.thorough("it shows that the test of what others wrote can fail")
def test_markup_would_be_noticed(deployment: Stage, url: str) -> None:
    with deployment.page(faults=(*EXPECTED, "Content Security Policy")) as page:
        page.add_init_script(hostile.WATCH)
        page.goto(f"{url}/pages/")
        page.evaluate(
            "(words) => document.querySelector('#app').insertAdjacentHTML('beforeend', words)", hostile.MARKUP
        )
        expect(page.locator("html")).to_have_attribute("data-violations", re.compile(r"\d"))
        found = page.evaluate(hostile.HARM)

    assert found["elements"] > 2
    assert found["violations"]
    assert found["harmed"] is None


def steps_of(url: str, run_id: str) -> list[str]:
    """The ids of a run's steps."""
    return [step["id"] for step in httpx.get(f"{url}/runs/{run_id}/graph").json()["steps"]]


@pytest.mark.slow("a browser draws it")
def test_a_record_that_cannot_be_read_is_a_row_that_says_so(deployment: Stage, url: str, page: Page) -> None:
    client, redis = deployment.client, deployment.client.redis
    run = deployment.chain({"node_id": "ask", "kind": "wait", "question": "Ship it?"})
    until(run.waiting_steps, "the wait")
    client.schedules.create("broken", {"every": "1h", "turn": {"text": "hello", "agent": "writer"}})
    client.batches.open("broken", BatchTarget(kind="agent", name="writer"))
    redis.hset(run_key(redis, run.run_id), "labels", "no JSON")
    for pattern, name in (("*:schedule:/broken", "spec"), ("*:batch:/broken", "identity")):
        (key,) = redis.scan_iter(pattern)
        redis.hset(key, name, "no JSON")
    redis.hset(key_of(redis, registry.WORKERS_KEY), "broken", "no JSON")

    try:
        for path, remedy in (
            ("", f"submit runs cancel {run.run_id}"),
            ("inbox", f"submit runs cancel {run.run_id}"),
            ("workers", "HDEL"),
            ("schedules", "submit schedules delete broken"),
            ("schedule/broken", "submit schedules delete broken"),
            ("batches", "submit batch cancel broken"),
        ):
            page.goto(f"{url}/pages/{path}")
            expect(page.locator("main")).to_contain_text("it cannot be read (")
            expect(page.locator("main")).to_contain_text(remedy)
    finally:
        run.cancel()
        client.ledger.runs.drop([run.run_id])
        client.schedules.delete("broken")
        client.batches.cancel("broken")
        redis.hdel(key_of(redis, registry.WORKERS_KEY), "broken")


@pytest.mark.slow("a browser draws it")
def test_a_batch_is_a_line_with_a_bar_and_shows_its_failed_rows(deployment: Stage, url: str, page: Page) -> None:
    deployment.models.script([{"match": "^row 3$", "status": 400, "reply": "no"}, {"reply": "yes"}])
    rows = [f"row {number}" for number in range(6)]
    feed = deployment.client.feed_batch(rows, agent="writer", name="shown", concurrency=2)
    for group in feed.groups(stop_after=4):
        feed.deliver(group)

    page.goto(f"{url}/pages/batches")
    line = page.locator("tbody tr", has_text="shown")
    expect(line).to_contain_text("Running")
    expect(line.locator(".delivered")).to_contain_text("4")
    line.locator("a").click()
    expect(page.locator("h1")).to_have_text("Batch shown")
    expect(page.locator(".failures tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("main")).to_contain_text("Paused")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download failed rows").click()
    assert [json.loads(line)["row"] for line in waiting.value.path().read_text().splitlines()] == [3]
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("main")).to_contain_text("Running")

    for group in feed.groups():
        feed.deliver(group)

    expect(page.locator("main .state")).to_have_text("Done with failures")
    expect(page.locator("main .state")).to_have_class("state tone-wait")
    expect(page.locator("progress")).to_have_attribute("value", "1")
    good = deployment.client.feed_batch(["row 1"], agent="writer", name="good")
    bad = deployment.client.feed_batch(["row 3"], agent="writer", name="bad")
    for other in (good, bad):
        for group in other.groups():
            other.deliver(group)
    states = {"shown": "Done with failures", "good": "Done", "bad": "Failed"}
    tones = {"Done with failures": "wait", "Done": "good", "Failed": "bad"}
    for path, line_of in (("batches", "tbody tr"), ("home", ".lines li")):
        page.goto(f"{url}/pages/{path}")
        for name, state in states.items():
            shown = page.locator(line_of, has=page.get_by_role("link", name=name, exact=True)).locator(".state")
            expect(shown).to_have_text(state)
            expect(shown).to_have_class(f"state tone-{tones[state]}")
    page.goto(f"{url}/pages/batch/shown")
    page.get_by_role("button", name="Retry failed rows").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.locator(".failures")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("Running")
    feed.batch = deployment.client.batches.cancel("shown")
