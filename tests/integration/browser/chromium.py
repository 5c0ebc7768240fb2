"""The Chromium that this machine has, driven without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Skips the test where there is none; where CI says that there must be one, fails it."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        word = f"there is no Chromium on PATH: {', '.join(NAMES)}"
        pytest.fail(word) if os.environ.get("CI") == "true" else pytest.skip(word)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()
