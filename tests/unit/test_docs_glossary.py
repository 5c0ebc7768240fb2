"""The glossary has every public term, and the pages use its words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.pages import PAGES, TOP

TERMS = re.findall(
    r"\w+",
    """
    run turn chain workflow step attempt lease outcome expand join ledger event sweep dispatch canvas
    permit budget tenant schedule overlap backfill session signal wait approval fork retry resume check
    """,
)
PHRASES = ["log lines", "rate limit", "memory namespace"]
REPLACED = (
    "desk|shelf|shelves|crew|kin|twins?|heart|hops?|forum|told|telling|growers?|grown|growth"
    "|mend|mends|mended|strikes?|struck|dearest|anew|story|stories"
)
"""Words that no page needs for anything else. Code of examples may have them."""

CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("term", [*TERMS, *PHRASES])
def test_every_public_term_has_its_entry(term: str) -> None:
    glossary = (TOP / "docs" / "glossary.md").read_text("utf-8")

    assert re.search(rf"^\| {term} \| \S.*\|$", glossary, re.MULTILINE)


def test_entries_are_short_and_in_order() -> None:
    entries = re.findall(r"^\| (.*?) \| (.*) \|$", (TOP / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)[1:]

    assert [term for term, _ in entries] == sorted(term for term, _ in entries)
    assert [term for term, meaning in entries if len(meaning) > 240] == []


@pytest.mark.parametrize("page", [*PAGES, TOP / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_no_page_uses_a_word_that_the_vocabulary_replaces(page: Path) -> None:
    prose = CODE.sub("", page.read_text("utf-8"))

    assert re.findall(rf"(?i)\b(?:{REPLACED})\b", prose) == []
