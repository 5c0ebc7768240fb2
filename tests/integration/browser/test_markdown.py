"""Markdown of users and models in the inbox, the panel of a wait and the home page: formatted, and harmless whatever it says."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser import hostile
from tests.integration.browser.stage import PATIENCE_MS, PATIENCE_S, Stage
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)  # a busy machine draws slowly

QUESTION = """## Refund order 4711?

It arrived **broken**, see [the terms](https://example.org/terms).

| item | price |
|---|---|
| lamp | 30 |
"""
LINKS = """Look:

- [one](javascript:window.harmed='one'), <a href="javascript:window.harmed='two'">two</a>
- [three](data:text/html,<script>parent.harmed='three'</script>)
- ![four](x onerror=window.harmed='four'), <javascript:window.harmed='five'>, [six]( java\tscript:window.harmed='six')
- [seven](https://example.org/"onmouseover="window.harmed='seven')
- `<img src=x onerror=window.harmed='eight'>` **<svg/onload=window.harmed='nine'>**

[ten]: javascript:window.harmed='ten'
[ten]
"""
WIDE_TABLE = f"| {'| '.join(['heading'] * 60)} |\n|{'---|' * 60}\n" + f"| {'| '.join(['x' * 40] * 60)} |\n"
LONG_TABLE = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 100_000
DEEP = "> " * 2400 + "- " * 100
HOSTILE = (f"# {hostile.MARKUP}", LINKS, WIDE_TABLE, LONG_TABLE, DEEP, f"**{hostile.OVERRIDE}**")


@pytest.mark.slow("a browser draws it")
def test_questions_and_contexts_are_formatted(deployment: Stage, url: str, page: Page) -> None:
    context = {"note": "- first\n- **second**", "amount": 30}
    run = deployment.chain(
        {"node_id": "pay", "kind": "wait", "question": QUESTION, "input": context}, chain_id="refund 4711"
    )
    plain = deployment.chain({"node_id": "ok", "kind": "wait", "question": "Is 2 * 3 * 4 right?"})

    page.goto(f"{url}/pages/inbox")
    item = page.get_by_role("article", name="Refund order 4711?")
    expect(item.locator(".formatted h2")).to_have_text("Refund order 4711?")
    expect(item.locator(".formatted strong")).to_have_text("broken")
    expect(item.locator(".formatted td")).to_have_text(["lamp", "30"])
    expect(item.get_by_role("link", name="the terms")).to_have_attribute("href", "https://example.org/terms")
    item.get_by_text("Context", exact=True).click()
    expect(item.locator(".value li")).to_have_text(["first", "second"])
    expect(item.locator(".value pre")).to_have_text('{\n  "amount": 30\n}')
    item.locator(".formatted").get_by_role("button", name="Plain text").click()
    expect(item.locator(".formatted")).to_contain_text("## Refund order 4711?")
    expect(page.get_by_role("article", name="Is 2 * 3 * 4 right?")).to_be_visible()

    page.goto(f"{url}/pages/home")
    waiting = page.get_by_role("region", name="Waiting for a person")
    expect(waiting.locator(".asked strong")).to_have_text("broken")
    waiting.get_by_role("link", name="refund 4711: pay").click()
    expect(page.locator(".signal td")).to_have_text(["lamp", "30"])

    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".run-state")).to_have_text("Succeeded")
    plain.cancel()
    until(lambda: run.status() == "succeeded", "the answer")


@pytest.mark.slow("a browser draws it")
def test_hostile_markdown_does_no_harm(deployment: Stage, url: str, page: Page) -> None:
    runs = [
        deployment.chain({"node_id": "ask", "kind": "wait", "question": text[:20_000], "input": {"text": text}})
        for text in HOSTILE
    ]
    until(lambda: all(run.waiting_steps() for run in runs), "all to wait", PATIENCE_S)
    page.add_init_script(hostile.WATCH)

    for path, place in (("inbox", "article"), ("home", ".asked")):
        page.goto(f"{url}/pages/{path}")
        shown = page.locator(place)
        expect(shown.nth(4 if path == "home" else len(runs) - 1)).to_be_attached()
        expect(shown.locator(".markdown li").first).to_be_attached()
        for summary in page.locator("summary", has_text="Context").all():
            summary.click(timeout=PATIENCE_MS)
        for link in page.locator("#app .markdown a").all():
            assert re.match("https://|mailto:", link.get_attribute("href") or "mailto:"), link.inner_text()
            link.dispatch_event("mouseover")
        assert page.evaluate(hostile.HARM) == hostile.UNHARMED, path
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), path

    for run in runs:
        page.goto(f"{url}/pages/run/{run.run_id}?step=ask")
        expect(page.locator(".signal")).to_be_visible()
        assert page.evaluate(hostile.HARM) == hostile.UNHARMED
        run.cancel()
