"""The log of a run in a browser: its tail is live, stands still for a reader, is filtered, saved, and bounded."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from playwright.sync_api import Page, expect

from cantata.client.runs import ChainRun
from tests.integration.browser import hostile
from tests.integration.browser.stage import PATIENCE_S, Json, Stage, tool
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)  # a busy machine draws slowly

KEPT_LINES, KEPT_BYTES = 200_000, 500_000_000
"""More than a run keeps now: the page reads however many there are."""
AT_ONCE = 1000

Write = Callable[..., None]


@pytest.fixture
def open_run(deployment: Stage) -> Iterator[ChainRun]:
    """A run that is open until the test ends."""
    gate = deployment.gate()
    run = deployment.chain(tool("first", "hold", gate=str(gate)))
    until(lambda: run.status() == "running", "the run")
    yield run
    gate.touch()
    run.wait(PATIENCE_S)


@pytest.fixture
def write(deployment: Stage, open_run: ChainRun) -> Write:
    """Writes lines to the log of the open run, as workers do."""

    def append(events: Sequence[str], **fields: object) -> None:
        line: Json = {"at": time.time(), "level": "info", "step": "first", "worker": "tools@here", **fields}
        texts = [json.dumps({**line, "event": event}) for event in events]
        for start in range(0, len(texts), AT_ONCE):
            deployment.client.ledger.runs.append_log(
                open_run.run_id, texts[start : start + AT_ONCE], most=KEPT_LINES, most_bytes=KEPT_BYTES
            )

    return append


@pytest.mark.slow("a browser draws it")
def test_the_tail_is_live_and_stands_still_for_a_reader(url: str, page: Page, open_run: ChainRun, write: Write) -> None:
    write([f"line {number}" for number in range(300)])

    page.goto(f"{url}/pages/run/{open_run.run_id}?tab=logs")
    lines = page.locator(".log-list li")
    expect(lines).to_have_count(300)
    expect(lines.last).to_be_in_viewport()
    write(["one more"])
    expect(page.get_by_text("one more")).to_be_in_viewport()
    expect(page.get_by_text("Following")).to_be_visible()

    page.get_by_role("log").hover()
    page.mouse.wheel(0, -2000)
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    before = page.evaluate("document.querySelector('.log-list').scrollTop")
    write(["first news", "second news"])
    expect(page.get_by_role("button", name="Follow (2 new lines)")).to_be_visible()
    assert page.evaluate("document.querySelector('.log-list').scrollTop") == before
    expect(page.get_by_text("second news")).to_have_count(0)
    page.get_by_role("button", name="Follow (2 new lines)").click()
    expect(page.get_by_text("second news")).to_be_in_viewport()
    write(["third news"])
    expect(page.get_by_text("third news")).to_be_in_viewport()

    page.get_by_role("log").focus()
    page.keyboard.press("PageUp")
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_text("Following")).to_be_visible()


@pytest.mark.slow("a browser draws it")
def test_lines_are_filtered_by_step_level_and_text_and_saved(
    url: str, page: Page, open_run: ChainRun, write: Write
) -> None:
    write(["usual", "The Mailbox is full"])
    write(["careful"], level="warning", fields={"code": "E42"})
    write(["broken"], level="error", step="other", fields={"exception": "Traceback\n  boom"})
    write([hostile.MARKUP], level="error", worker=hostile.OVERRIDE)
    page.add_init_script(hostile.WATCH)

    page.goto(f"{url}/pages/run/{open_run.run_id}?tab=logs")
    lines = page.locator(".log-list li")
    expect(lines).to_have_count(5)
    expect(lines.nth(2)).to_have_text(re.compile("warning.*first.*tools@here.*careful.*code=E42"))
    expect(lines.nth(3).locator("details")).to_contain_text("exception")
    page.get_by_label("Search the log").fill("mailbox")
    expect(lines).to_have_count(1)
    page.get_by_label("Search the log").fill("e42")
    expect(lines).to_have_count(1)
    page.get_by_label("Search the log").fill("")
    page.get_by_label("Level").select_option("Warning and above")
    expect(lines).to_have_count(3)
    page.get_by_label("Step of the log").select_option("first")
    expect(lines).to_have_count(2)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    saved = [json.loads(line) for line in waiting.value.path().read_text().splitlines()]
    assert [line["event"] for line in saved] == ["careful", hostile.MARKUP]
    assert waiting.value.suggested_filename == f"{open_run.run_id}-log.jsonl"
    assert page.evaluate(hostile.HARM) == hostile.UNHARMED

    lines.first.get_by_role("button", name="first").click()
    expect(page.get_by_label("Step", exact=True).get_by_role("heading", name="first")).to_be_visible()
    expect(lines).to_have_count(2)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (6_000, "6,000"),
        pytest.param(
            100_000, "100.0k", marks=pytest.mark.thorough("a hundred pages are read; the plain form reads six")
        ),
    ],
)
@pytest.mark.slow("a browser reads thousands of lines")
def test_of_many_lines_the_page_keeps_the_newest(
    url: str, page: Page, open_run: ChainRun, write: Write, number: int, shown: str
) -> None:
    write([f"line {each} {'x' * 80}" for each in range(number)])

    page.goto(f"{url}/pages/run/{open_run.run_id}?tab=logs")
    lines = page.locator(".log-list li")
    expect(lines.last).to_contain_text(f"line {number - 1} ", timeout=120_000)  # a hundred pages, on a busy machine
    expect(lines).to_have_count(5000)
    expect(lines.first).to_contain_text(f"line {number - 5000} ")
    expect(page.get_by_role("log")).to_contain_text(f"The newest 5,000 of {shown} lines")
    write([f"later {number}" for number in range(700)])
    expect(lines.last).to_contain_text("later 699")
    expect(lines.last).to_be_in_viewport()
    expect(lines).to_have_count(5000)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    assert waiting.value.path().read_text().count("\n") == number + 700


@pytest.mark.slow("a browser draws it")
def test_what_workers_log_is_there_when_the_run_is_over(deployment: Stage, url: str, page: Page) -> None:
    run = deployment.chain(tool("bad", "fail", message="the mailbox is full"))
    run.wait(PATIENCE_S)

    page.goto(f"{url}/pages/run/{run.run_id}?tab=logs")

    expect(page.locator(".log-list li", has_text="the mailbox is full").first).to_be_visible()
    expect(page.locator(".log-list li", has_text="step_failed")).to_be_visible()
    expect(page.get_by_text("Following")).to_have_count(0)
