"""Makes the pictures of docs/pages.md: `python -m tests.integration.browser.screenshots`, from the top of the repository."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect

from cantata.client.runs import ChainRun, Run
from tests.integration.browser.chromium import chromium
from tests.integration.browser.stage import PATIENCE_S, Json, Stage, stage, tool
from tests.waiting import until

IMAGES = Path(__file__).parents[3] / "docs" / "images"
MAX_BYTES = 150_000
WIDE = {"width": 1200, "height": 640}
PHONE = {"width": 390, "height": 780}
ITEMS = '"find pages".pages'
DONE_PAGES, ALL_PAGES = 15, 24

ANSWER = """Error E42 means that the disk of the index is full.

Free at least 2 GB, then start the indexer again; it goes on where it stopped."""
QUESTION = "What does error E42 mean, and what do I do?"
TURNS = (
    ("How do I export my invoices of last year?", {"team": "support"}),
    ("Translate the terms of delivery into French", {"team": "legal"}),
    ("Which plan fits a company of forty?", {"team": "sales"}),
    ("My parcel has not arrived. What now?", {"team": "support"}),
)


def report(deployment: Stage) -> ChainRun:
    """A run on its way: some pages are read, others are not; a step that failed once; steps that wait."""
    gates, shaky = [deployment.gate() for _ in range(ALL_PAGES)], deployment.gate()
    for gate in gates[:DONE_PAGES]:
        gate.touch()
    nodes: list[Json] = [
        tool("find pages", "echo", next_node=["enough", "prices"], pages=[{"gate": str(gate)} for gate in gates]),
        {
            "node_id": "enough",
            "kind": "branch",
            "condition": "length(input.sites) > `2`",
            "true_node": "read",
            "false_node": "ask",
        },
        tool("ask", "echo"),
        {
            "node_id": "read",
            "kind": "map",
            "items_path": ITEMS,
            "map_node": "page",
            "next_node": "draft",
            "max_concurrency": 2,
        },
        {"node_id": "page", "kind": "tool", "name": "hold", "input_map": {"gate": "item.gate"}},
        tool("prices", "fail_until", retry=2, next_node="draft", gate=str(shaky), message="503 from the price list"),
        {
            "node_id": "draft",
            "kind": "agent",
            "name": "writer",
            "deps": ["read", "prices", "ask"],
            "next_node": "approve",
        },
        {"node_id": "approve", "kind": "wait", "next_node": "publish"},
        tool("publish", "echo", input_map={"text": "draft"}),
    ]
    run = deployment.chain(
        *nodes, chain_id="weekly report", labels={"team": "research"}, initial_input={"sites": [1, 2, 3]}
    )
    for event in run.log(timeout_s=PATIENCE_S):
        if event.type == "retry":
            shaky.touch()
        if event.type == "started" and event.step == f"read/{DONE_PAGES + 1}":
            break
    return run


def fill(deployment: Stage) -> str:
    """Runs of all sorts; the id of one that asked a tool."""
    call = {"name": "search", "arguments": {"query": "E42"}}
    deployment.models.script([{"after_tools": 0, "match": "E42", "tool_calls": [call]}, {"reply": ANSWER}])
    over: list[Run] = [deployment.client.submit_turn(text, agent="writer", labels=labels) for text, labels in TURNS]
    mail = (tool("count", "add", next_node="send"), tool("send", "fail", message="the mailbox is full"))
    over.append(deployment.chain(*mail, chain_id="nightly mail"))
    for run in over:
        run.wait(PATIENCE_S)
    deployment.chain(
        tool("wait", "hold", gate=str(deployment.gate())),
        chain_id="import of 40,000 addresses",
        labels={"team": "sales"},
    ).cancel()
    asked = deployment.client.submit_turn(QUESTION, agent="clerk", session="anna", labels={"team": "support"})
    asked.wait(PATIENCE_S)
    return asked.run_id


def ask(deployment: Stage) -> list[ChainRun]:
    """Runs that wait for a person: the first asks by a form."""
    properties = {
        "approved": {"type": "boolean", "title": "Refund it?"},
        "note": {"type": "string", "title": "Note to the customer"},
    }
    refund: Json = {
        "node_id": "refund", "kind": "wait", "question": "Order 4711 arrived broken. Refund 30 €?",
        "input": {"order": 4711, "amount_eur": 30},
        "answer_schema": {"type": "object", "properties": properties, "required": ["approved"]}, "who": ["finance"],
    }  # fmt: skip
    publish: Json = {"node_id": "publish", "kind": "wait", "question": "Publish the weekly report?"}
    refunds = deployment.chain(refund, chain_id="refund of order 4711", labels={"team": "support"})
    until(lambda: refunds.status() == "waiting", "the first question")
    return [refunds, deployment.chain(publish, chain_id="weekly report", labels={"team": "research"})]


def work(deployment: Stage) -> None:
    """Schedules, and batches: one is done with a failed row, one is on its way."""
    chain: Json = {"nodes": [{"node_id": "report", "kind": "tool", "name": "echo"}], "entry_node": "report"}
    for name, timing in {
        "nightly-mail": {"cron": "0 2 * * *"},
        "weekly-report": {"cron": "0 7 * * mon"},
        "watch-prices": {"every": "15m"},
    }.items():
        deployment.client.schedules.create(name, {**timing, "chain": chain})
    deployment.client.schedules.trigger("watch-prices")
    deployment.client.schedules.pause("nightly-mail")
    deployment.models.script([{"match": "^letter 3$", "status": 400, "reply": "no"}, {"reply": "yes"}])
    for name, rows, stop_after in (("labels-october", 40, None), ("labels-november", 40, 24)):
        feed = deployment.client.feed_batch(
            [f"letter {number}" for number in range(rows)], agent="writer", name=name, concurrency=8
        )
        for group in feed.groups(stop_after):
            feed.deliver(group)


def lists(deployment: Stage, url: str) -> None:
    """Home, and the lists of schedules and batches."""
    with deployment.page(viewport=WIDE) as page:
        for name, height, text in (
            ("home", 810, "Queues"),
            ("schedules", 350, "watch-prices"),
            ("batches", 280, "labels-october"),
        ):
            page.set_viewport_size({"width": WIDE["width"], "height": height})
            page.goto(f"{url}/pages/{name}")
            expect(page.locator("main")).to_contain_text(text)
            keep(page, name)


def inbox(deployment: Stage, url: str) -> None:
    """The inbox, with an answer on its way."""
    runs = ask(deployment)
    with deployment.page(viewport=WIDE) as page:
        page.goto(f"{url}/pages/inbox")
        expect(page.get_by_role("article")).to_have_count(2)
        first = page.get_by_role("article").first
        first.get_by_text("Context").click()
        first.get_by_text("Answer", exact=True).click()
        first.get_by_label("Refund it?").select_option("Yes")
        keep(page, "inbox")
    for run in runs[1:]:
        run.cancel()


def keep(page: Page, name: str) -> None:
    """Write a picture, without a mark of what was touched last."""
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    picture = page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")
    assert len(picture) <= MAX_BYTES, (name, len(picture))


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        stage(Path(folder), browser) as deployment,
        deployment.gateway() as url,
    ):
        inbox(deployment, url)
        asked = fill(deployment)
        run = report(deployment)
        work(deployment)
        lists(deployment, url)
        with deployment.page(viewport=WIDE) as page:
            page.goto(f"{url}/pages/")
            expect(page.locator(".row-link")).to_have_count(11)
            expect(page.get_by_role("button", name="Failed 1")).to_be_visible()
            keep(page, "runs")
            page.goto(f"{url}/pages/run/{run.run_id}")
            expect(page.locator("[data-group='read']")).to_contain_text(f"{DONE_PAGES} of {ALL_PAGES}")
            page.get_by_role("button", name="Fit").click()
            keep(page, "run")
            page.goto(f"{url}/pages/run/{asked}")
            page.locator("[data-node]", has_text="round 2").click()
            expect(page.locator(".role-tool")).to_be_visible()
            keep(page, "step")
        with deployment.page(viewport=WIDE, color_scheme="dark") as page:
            page.goto(f"{url}/pages/run/{run.run_id}")
            page.locator("[data-group='read'] button").first.click()
            expect(page.locator(".chip")).to_have_count(ALL_PAGES)
            page.get_by_role("button", name="Fit").click()
            keep(page, "run-dark")
        with deployment.page(viewport=PHONE, has_touch=True) as page:
            page.goto(f"{url}/pages/run/{run.run_id}")
            expect(page.locator("[data-node='find pages']")).to_be_visible()
            keep(page, "phone")
        run.cancel()


if __name__ == "__main__":
    main()
