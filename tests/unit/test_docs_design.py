"""The walks of docs/design.md name files that exist, and functions that are in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ROOTS = (TOP, TOP / "orchestrator" / "cantata", TOP / "workers" / "cantata_workers")
NAMED = re.findall(
    r"`([\w/]+\.(?:py|lua))`(?: \(((?:`[\w.]+`(?:, )?)+)\))?", (TOP / "docs" / "design.md").read_text("utf-8")
)


@pytest.mark.parametrize(("file", "names"), sorted(set(NAMED)))
def test_a_file_of_a_walk_has_what_the_walk_names(file: str, names: str) -> None:
    found = [root / file for root in ROOTS if (root / file).is_file()]
    assert found, "there is no such file"
    text = "\n".join(each.read_text("utf-8") for each in found)

    for name in re.findall(r"[\w.]+", names):
        assert re.search(rf"\b(?:def|class|function) {name.rpartition('.')[2]}\b|^{name} = ", text, re.MULTILINE), name
