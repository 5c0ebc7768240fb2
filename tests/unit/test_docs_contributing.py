"""CONTRIBUTING.md names rooms and files that exist."""

from __future__ import annotations

import re

from tests.acceptance.pages import TOP

TEXT = (TOP / "CONTRIBUTING.md").read_text("utf-8")


def test_the_map_has_every_room() -> None:
    orchestrator = TEXT.partition("\norchestrator/cantata/\n")[2].partition("\norchestrator/cantata_frontends/")[0]
    rooms = re.findall(r"^  (\w+)/ ", orchestrator, re.MULTILINE)

    assert sorted(rooms) == sorted(
        path.parent.name for path in (TOP / "orchestrator" / "cantata").glob("*/__init__.py")
    )


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:orchestrator|workers|deploy|docs|tests)/[\w./-]+)`", TEXT)

    assert [path for path in named if "NAME" not in path and not (TOP / path).exists()] == []
