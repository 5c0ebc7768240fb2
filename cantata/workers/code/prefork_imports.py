"""Imports of libraries before worker processes are forked: no user code, no connection, no thread."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

litellm_modules: set[str] = set()
"""Modules that were imported with LiteLLM. A process that calls no model has them only because its parent imported them before the fork."""


def common() -> None:
    """Import Celery, the two pools that are used, and our own modules: 1.2 s."""
    with _garbage_collection_disabled():
        for name in ("cantata.workers.service", "celery.apps.worker", "celery.concurrency.prefork", "celery.concurrency.thread"):
            importlib.import_module(name)


def models() -> None:
    """Import LiteLLM: 2 to 6 s and 150 MB."""
    before = set(sys.modules)
    with _garbage_collection_disabled():
        importlib.import_module("cantata.workers.models.llm.library").import_litellm()
    litellm_modules.update(sys.modules.keys() - before)


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection: the objects of imports stay, and scanning them takes a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
