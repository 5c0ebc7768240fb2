"""The messages of bad inputs are those of the golden file, which is reviewed as text."""

from __future__ import annotations

import pytest

from tests.unit import write_messages

REMEDY = "run this to write it anew, then read the diff: python -m tests.unit.write_messages"


@pytest.mark.parametrize("room", write_messages.ROOMS)
def test_the_messages_of_a_room_are_as_written(room: str) -> None:
    _, head, rest = write_messages.GOLDEN.read_text("utf-8").partition(write_messages.heading(room))

    assert head + rest.partition(write_messages.MARK)[0] == write_messages.section(room), REMEDY


def test_the_file_has_nothing_else() -> None:
    for path, text in write_messages.files().items():
        assert path.read_text("utf-8").splitlines()[:3] == text.splitlines()[:3], REMEDY
        assert len(path.read_text("utf-8")) == len(text), REMEDY


@pytest.mark.parametrize("room", write_messages.ROOMS)
def test_every_input_of_the_corpus_has_a_message(room: str) -> None:
    assert [entry.given for entry in write_messages.entries_of(room) if not entry.said] == []
