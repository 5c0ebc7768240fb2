"""Imports of libraries before worker processes are forked: no user code, no connection, no thread.

What a child imports itself is its own memory, and so is each page with an object that it uses: counting references writes to it.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

COMMON = (
    "cantata_workers.process.service", "celery.apps.worker", "celery.concurrency.prefork", "celery.concurrency.thread",
    "celery.app.control", "celery.app.log", "celery.worker.components", "celery.worker.strategy",  # imported as a worker starts
)  # fmt: skip
OF_FIRST_CALL = ("openai.resources", "cantata_workers.models.local.provider")
"""Imported by LiteLLM's first call, and by us before it. Each child would do so for itself, with 23 MB."""

litellm_modules: set[str] = set()
"""Modules that were imported with LiteLLM. A process that calls no model has them only because its parent imported them before the fork."""
keeps_litellm = False
"""Whether this process calls models. To clear the set instead would write to its names, with 4 MB of shared pages."""


def common() -> None:
    """Import Celery, the two pools that are used, and our own modules: 1.2 s."""
    with _garbage_collection_disabled():
        for name in COMMON:
            importlib.import_module(name)


def models() -> None:
    """Import LiteLLM: 2 to 6 s and 170 MB."""
    before = set(sys.modules)
    with _garbage_collection_disabled():
        importlib.import_module("cantata_workers.models.llm.library").import_litellm()
        for name in OF_FIRST_CALL:
            importlib.import_module(name)
    litellm_modules.update(sys.modules.keys() - before)


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection: the objects of imports stay, and scanning them takes a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
