"""Text that steps print."""

from __future__ import annotations

import io

import pytest

from cantata.observability.logs.printed import MAX_LINE_CHARS, PrintedText, log_printed


def test_each_line_of_a_step_is_logged_and_all_text_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stream = io.StringIO()
    output = PrintedText(stream)

    output.write("of no step\n")
    with log_printed():
        output.write("one, ")
        output.write("in pieces\n\ntwo\nthr")
        output.write("ee")
    output.write("of no step\n")

    assert caplog.messages == ["one, in pieces", "two", "three"]
    assert stream.getvalue() == "of no step\none, in pieces\n\ntwo\nthreeof no step\n"
    assert not output.isatty()  # type: ignore[operator]  # an attribute of the stream


def test_a_line_without_an_end_is_not_kept_whole(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    with log_printed():
        for _ in range(3):
            PrintedText(io.StringIO()).write("x" * MAX_LINE_CHARS)

    assert [len(message) for message in caplog.messages] == [2 * MAX_LINE_CHARS, MAX_LINE_CHARS]
