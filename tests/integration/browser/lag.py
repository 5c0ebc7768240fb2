"""How fast a large run is drawn, and how far behind its events the page is."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from playwright.sync_api import Page

from cantata.client.runs import ChainRun
from tests.integration.browser.stage import Json, tool

ROW, WIDE = 500, 500

WATCH_FIRST_NODE = """
new MutationObserver((changes, watcher) => {
    if (!document.querySelector(".node")) return;
    watcher.disconnect();
    requestAnimationFrame(() => { window.firstNodeMs = performance.now(); });
}).observe(document, {childList: true, subtree: true});
"""
"""Run before a page's own scripts: notes when the first node of the graph was drawn, in milliseconds since the page was asked for."""

WATCH_COUNT = """() => {
    window.counts = [];
    const line = document.querySelector("[data-group^='+'] .node-line");
    const note = () => window.counts.push([parseInt(line.textContent.replace(",", "")), Date.now()]);
    new MutationObserver(note).observe(line, {childList: true, characterData: true, subtree: true});
}"""
"""Notes when the page showed how many of the wide steps are over."""


SCROLL = """() => new Promise((done) => {
    const graph = document.querySelector(".graph-scroller");
    const times = [];
    const next = (at) => {
        times.push(at);
        graph.scrollLeft += 20;
        if (times.length < 100) requestAnimationFrame(next);
        else { graph.scrollLeft = 0; done(times); }
    };
    requestAnimationFrame(next);
})"""
"""Scrolls the graph, and returns when each frame was drawn."""


def frame_ms(page: Page) -> float:
    """The median time between two frames while the graph is scrolled."""
    times: list[float] = page.evaluate(SCROLL)
    return median(after - before for before, after in pairwise(times))


def large_chain(gate: str) -> list[Json]:
    """A row of steps, and as many side by side, all behind one that waits for a gate."""
    row = [tool(f"row-{n}", "add", next_node=f"row-{n + 1}" if n < ROW else None) for n in range(1, ROW + 1)]
    wide = [tool(f"wide-{n}", "add") for n in range(1, WIDE + 1)]
    first = tool("wait", "hold", gate=gate, next_node=["row-1", *(f"wide-{n}" for n in range(1, WIDE + 1))])
    return [first, *row, *wide]


def lags_ms(page: Page, run: ChainRun) -> list[float]:
    """For each count of wide steps that the page showed, how long the first step that is new in it had been over."""
    ends = sorted(event.at_ms for event in run.log() if event.type == "done" and str(event.step).startswith("wide-"))
    counts: list[tuple[int, float]] = page.evaluate("window.counts")
    before = [0, *(count for count, _ in counts)]
    return [at - ends[shown] for shown, (count, at) in zip(before, counts, strict=False) if count > shown]


def figures(page: Page, run: ChainRun) -> dict[str, Any]:
    """First paint and lags of a run that was watched to its end, in milliseconds."""
    lags = lags_ms(page, run)
    return {
        "first_paint": round(page.evaluate("window.firstNodeMs")),
        "lag_median": round(median(lags)),
        "lag_most": round(max(lags)),
        "shown": len(lags),
    }
