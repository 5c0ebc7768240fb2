"""Counts requests to models, what they took and what they cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from cantata.errors import ModelError
from cantata.observability import metrics
from cantata.workers.models.llm.model_replies import Reply

P = ParamSpec("P")


def counted(ask: Callable[Concatenate[str, P], Coroutine[Any, Any, Reply]]) -> Callable[Concatenate[str, P], Coroutine[Any, Any, Reply]]:
    """What asks a model, whose name comes first, and is counted."""

    @wraps(ask)
    async def asked(model: str, /, *args: P.args, **more: P.kwargs) -> Reply:
        since, outcome, usage = time.perf_counter(), "error", None
        try:
            reply = await ask(model, *args, **more)
            outcome, usage = "ok", reply.usage
        except ModelError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        else:
            return reply
        finally:
            metrics.record_model_call(model, outcome, time.perf_counter() - since, usage)

    return asked
