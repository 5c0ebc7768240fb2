"""The run pages on phones, tablets and desktops: the whole menu, tables in boxes of their own, labels of time that are legible."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from cantata.ledger.redis.keys import run_key
from tests.integration.browser.stage import PATIENCE_S, Json, Stage, tool

pytestmark = pytest.mark.timeout(240)  # a busy machine draws slowly

PAGES = {
    "/home": "Queues", "/": "first, bad", "/inbox": "Is it right?", "/schedules": "every 1h", "/batches": "rows-of-two",
    "/batch/rows-of-two": "Failed rows", "/workers": "coordinator",
}  # fmt: skip
"""Path → a text of the page."""
TABS = ("graph", "time", "events", "logs", "request")
ENTRIES = ["Home", "Runs", "Inbox", "Schedules", "Batches", "Workers"]
OUTSIDE = """() => [...document.querySelectorAll("#app *")].filter((element) => {
    const { left, right, width } = element.getBoundingClientRect();
    if (!width || (left >= -1 && right <= innerWidth + 1)) return false;
    for (let box = element.parentElement; box; box = box.parentElement) {
        const style = getComputedStyle(box);
        if (style.overflowX !== "visible" || style.clipPath !== "none") return false;
    }
    return !element.matches(".skip");
}).map((element) => element.outerHTML.slice(0, 100))"""
"""What stands beside the screen, and in no box that scrolls."""
COVERED = """(cell) => {
    const own = cell.querySelector(".state").getBoundingClientRect();
    return [...cell.parentElement.children].filter((other) => other !== cell && other.textContent.trim()).filter((other) => {
        const text = document.createRange();
        text.selectNodeContents(other);
        const { left, right, top, bottom } = text.getBoundingClientRect();
        return left < own.right && right > own.left && top < own.bottom - 1 && bottom > own.top + 1;
    }).map((other) => other.className);
}"""
"""The cells of a row whose texts lie over its state."""
LABELS = """() => {
    const lane = document.querySelector(".time-head .lane").getBoundingClientRect();
    return [...document.querySelectorAll(".time-head .mark")].map((mark) => {
        const text = document.createRange();
        text.selectNodeContents(mark);
        const { left, right } = text.getBoundingClientRect();
        return { text: mark.textContent, left: left - lane.left, right: right - lane.left, width: lane.width };
    });
}"""


@pytest.mark.parametrize(
    "width",
    [
        360,
        pytest.param(390, marks=pytest.mark.thorough("360 is narrower")),
        768,
        pytest.param(1280, marks=pytest.mark.thorough("768 is narrower")),
    ],
)
@pytest.mark.slow("a browser draws it")
def test_the_menu_is_whole_and_no_page_scrolls_sideways(deployment: Stage, url: str, width: int) -> None:
    failed = deployment.chain(tool("first", "add", next_node="bad"), tool("bad", "fail", message="x" * 300))
    failed.wait(PATIENCE_S)
    table = f"| {' | '.join(['a long heading'] * 12)} |\n|{'---|' * 12}\n| {'x' * 200} |"
    waiting = deployment.chain({"node_id": "ok", "kind": "wait", "question": f"Is it right?\n\n{table}"})
    chain: Json = {"nodes": [{"node_id": "a", "kind": "tool", "name": "echo"}], "entry_node": "a"}
    deployment.client.schedules.create("hourly", {"every": "1h", "chain": chain})
    deployment.models.script([{"match": "^b$", "status": 400, "reply": "no"}, {"reply": "yes"}])
    feed = deployment.client.feed_batch(["a", "b"], agent="writer", name="rows-of-two")
    for group in feed.groups():
        feed.deliver(group)
    runs = {f"/run/{failed.run_id}?tab={tab}": "All runs" for tab in TABS}
    runs |= {f"/run/{failed.run_id}?tab=compare&with={waiting.run_id}": "Compare with the run"}

    try:
        assert_whole(deployment, url, width, {**PAGES, **runs, f"/run/{waiting.run_id}?step=ok": "Is it right?"})
    finally:
        waiting.cancel()
        deployment.client.schedules.delete("hourly")


def assert_whole(deployment: Stage, url: str, width: int, pages: Mapping[str, str]) -> None:
    """Each page has all entries of the menu on a screen of this width, and nothing beside it."""
    with deployment.page(viewport={"width": width, "height": 780}) as page:
        for path, text in pages.items():
            page.goto(f"{url}/pages{path}")
            expect(page.get_by_text(text).first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") == width, path
            assert page.evaluate(OUTSIDE) == [], path
            menu = page.get_by_role("navigation", name="Pages").get_by_role("link")
            assert menu.all_inner_texts() == ENTRIES
            for entry in menu.all():
                box = entry.bounding_box()
                assert box
                assert box["x"] >= 0, path
                assert box["x"] + box["width"] <= width, path
                assert width > 980 or box["height"] >= 32, "a finger hits it"


@pytest.mark.slow("a browser draws it")
def test_the_labels_of_a_time_line_neither_overlap_nor_are_cut(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(tool("first", "add"))
    run.wait(PATIENCE_S)
    redis, key = deployment.client.redis, run_key(deployment.client.redis, run.run_id)
    ended_ms = int(float(redis.hget(key, "closed_at") or 0))

    for span_s in (0.35, 9, 47, 340, 3_000, 80_000, 400_000):
        redis.hset(key, "created_at", str(ended_ms - round(span_s * 1000)))  # as if it had begun so long before
        page.goto(f"{url}/pages/run/{run.run_id}?tab=time")
        for width in (360, 390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 780})
            expect(page.locator(".time-head .mark").nth(1)).to_be_visible()
            marks = page.evaluate(LABELS)
            for before, after in pairwise(marks):
                assert before["right"] + 4 <= after["left"], (span_s, width, before, after)
            assert all(mark["right"] <= mark["width"] for mark in marks), (span_s, width, marks)


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.slow("a browser draws it")
def test_the_longest_states_are_legible_in_lists(deployment: Stage, url: str, width: int) -> None:
    run = deployment.chain(tool("only", "fail", message="no", on_error="skip"), labels={"mark": f"legible-{width}"})
    run.wait(PATIENCE_S)
    deployment.models.script([{"match": "^b$", "status": 400, "reply": "no"}, {"reply": "yes"}])
    feed = deployment.client.feed_batch(["a", "b"], agent="writer", name="legible")
    for group in feed.groups():
        feed.deliver(group)

    with deployment.page(viewport={"width": width, "height": 780}) as page:
        for path, state in ((f"?q=legible-{width}", "Succeeded with failures"), ("batches", "Done with failures")):
            page.goto(f"{url}/pages/{path}")
            cell = page.locator("tbody tr", has_text="legible").locator(".cell-status")
            expect(cell).to_have_text(state)
            shown = cell.evaluate(
                "(cell) => [cell.scrollWidth <= cell.clientWidth, cell.offsetHeight <= cell.parentElement.offsetHeight]"
            )
            assert shown == [True, True], path
            others = cell.evaluate(COVERED)
            assert others == [], path
