"""CONTRIBUTING.md names rooms and files that exist."""

from __future__ import annotations

import re

from tests.acceptance.pages import TOP

TEXT = (TOP / "CONTRIBUTING.md").read_text("utf-8")


def test_the_map_has_every_room() -> None:
    rooms = re.findall(r"^  (\w+)/ ", TEXT, re.MULTILINE)

    assert sorted(rooms) == sorted(path.parent.name for path in (TOP / "cantata").glob("*/__init__.py"))


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:cantata|deploy|docs|tests)/[\w./-]+)`", TEXT)

    assert [path for path in named if "NAME" not in path and not (TOP / path).exists()] == []
