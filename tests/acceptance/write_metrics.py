"""`python -m tests.acceptance.write_metrics`: writes the tables of docs/metrics.md from the families and the alert rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from cantata.operation.metrics.families import FAMILIES

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "metrics.md"
ALERTS = TOP / "deploy" / "monitoring" / "alerts.yml"

Rule = dict[str, Any]


def rules() -> list[Rule]:
    """The alert rules, in order."""
    groups: list[Rule] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def written(page: str) -> str:
    """The page with its tables as they should be."""
    for name, lines in (("worker", _families("worker")), ("gateway", _families("gateway")), ("alerts", _alerts())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}{''.join(lines)}{end}{rest.split(end)[1]}"
    return page


def _families(source: str) -> Iterator[str]:
    yield from _row(("metric", "type", "labels", "what it says"))
    yield from _row(["---"] * 4)
    for family in FAMILIES:
        if family.source in (source, "both"):
            yield from _row(
                (f"`{family.name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), family.help)
            )


def _alerts() -> Iterator[str]:
    yield from _row(("alert", "severity", "after", "what it means, and what to do"))
    yield from _row(["---"] * 4)
    for rule in rules():
        yield from _row((rule["alert"], rule["labels"]["severity"], rule["for"], rule["annotations"]["description"]))


def _row(cells: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
