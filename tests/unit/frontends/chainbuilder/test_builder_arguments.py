"""A head chain's answer is read as the tasks that it lists."""

from __future__ import annotations

import pytest

from cantata_frontends.chainbuilder import tasks_in


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("1. Find\n2) Sort\n3: Tell", ["Find", "Sort", "Tell"]),
        ("Here are the tasks:\n\n- Find it\n- Sort it\n\nThat is all.", ["Find it", "Sort it"]),
        ("1. Find all\n   the names\n2. Sort", ["Find all the names", "Sort"]),
        ("* Find\n* [ ] Sort", ["Find", "[ ] Sort"]),
        ('["Find", " Sort "]', ["Find", "Sort"]),
        ('```json\n["Find"]\n```', ["Find"]),
        ("Find\n\nSort\n", ["Find", "Sort"]),
        ("1.5 litres are too much", ["1.5 litres are too much"]),
        ("[1, 2]", ["[1, 2]"]),
        ("", []),
        (" \n", []),
    ],
)
def test_tasks_are_items_or_marked_lines_or_all_lines(text: str, tasks: list[str]) -> None:
    assert tasks_in(text) == tasks
