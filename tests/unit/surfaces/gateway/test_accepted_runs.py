"""A run that was accepted is answered as accepted, however busy its tenant is."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from starlette.responses import Response

from cantata.surfaces.gateway.api.routes import accepted
from cantata.surfaces.http.blocking_calls import CALLER, BlockingCalls


def test_the_answer_waits_for_room_and_is_no_refusal() -> None:
    async def main() -> None:
        CALLER.set("acme")
        gate, call = threading.Event(), BlockingCalls("the gateway", threads=2, max_waiting=10, max_of_one=1)
        service: Any = SimpleNamespace(call=call, prefix="")
        run: Any = SimpleNamespace(run_id="r", kind="chain", status=lambda: "running")
        hog = asyncio.create_task(call(gate.wait))
        await asyncio.sleep(0)
        response = Response()
        answer = asyncio.create_task(accepted(run, response, service))
        await asyncio.sleep(0)
        assert not answer.done()

        gate.set()

        assert await hog
        assert ((await answer).status, response.status_code, response.headers["Location"]) == (
            "running",
            202,
            "/runs/r",
        )
        call.close()

    asyncio.run(main())
