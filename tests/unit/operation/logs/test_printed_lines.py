"""Text that steps print."""

from __future__ import annotations

import io
import logging

import pytest

from cantata.operation.logs.lines import LOGGER, MAX_LINE_CHARS, PrintedText, log_printed


@pytest.fixture(autouse=True)
def propagated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of this suite may have configured logs before."""
    monkeypatch.setattr(logging.getLogger(LOGGER), "propagate", True)


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


def test_a_handler_that_writes_to_standard_output_does_not_log_its_own_lines(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(PrintedText(stream))  # what a LOGGING of the user adds
    logging.getLogger().addHandler(handler)
    caplog.set_level("INFO")
    try:
        with log_printed():
            logging.getLogger("shop").info("charged")
            PrintedText(stream).write("printed\n")
    finally:
        logging.getLogger().removeHandler(handler)

    assert stream.getvalue() == "charged\nprinted\nprinted\n"
    assert [(record.name, record.message) for record in caplog.records] == [("shop", "charged"), (LOGGER, "printed")]


def test_a_line_without_an_end_is_not_kept_whole(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    with log_printed():
        for _ in range(3):
            PrintedText(io.StringIO()).write("x" * MAX_LINE_CHARS)

    assert [len(message) for message in caplog.messages] == [2 * MAX_LINE_CHARS, MAX_LINE_CHARS]
