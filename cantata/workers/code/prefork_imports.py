"""Imports what worker processes need, before they are forked: nothing of the user's, no connection, no thread."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

litellm_modules: set[str] = set()
"""Modules that were imported with LiteLLM. A process that calls no model has them only because its parent imported them before the fork."""


def common() -> None:
    """Celery, both of its pools that are used, and our own: 1.2 s."""
    with _without_looking_for_garbage():
        for name in ("cantata.workers.service", "celery.apps.worker", "celery.concurrency.prefork", "celery.concurrency.thread"):
            importlib.import_module(name)


def models() -> None:
    """LiteLLM: 2 to 6 s and 150 MB."""
    before = set(sys.modules)
    with _without_looking_for_garbage():
        importlib.import_module("cantata.workers.models.llm.library").import_litellm()
    litellm_modules.update(sys.modules.keys() - before)


@contextmanager
def _without_looking_for_garbage() -> Iterator[None]:
    """Do not look for garbage among what imports make for good: that is a quarter of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
