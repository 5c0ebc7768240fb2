"""Bounds of what a tenant has open."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from cantata.surfaces.gateway.open_requests import OTHERS, OpenRequests
from cantata.surfaces.http.rejections import RequestRejected


def test_a_tenant_with_too_many_streams_may_still_call_and_others_may_stream() -> None:
    requests = OpenRequests(max_waiting=3)
    with ExitStack() as streams:
        for _ in range(3):
            streams.enter_context(requests.request("acme")).wait()

        with requests.request("acme") as call:
            with pytest.raises(
                RequestRejected, match=r"3 streams, WebSockets and waiting requests of this tenant are open"
            ) as refused:
                call.wait()
            assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (
                429,
                "too_many_open",
                5.0,
            )
        with requests.request("globex") as other:
            other.wait()

    assert not requests.open + requests.waiting, "nothing is left of requests that have ended"
    with requests.request("acme") as again:
        again.wait()
        again.wait()
        assert requests.waiting["acme"] == 1, "a request counts once"


def test_requests_that_do_not_end_are_bounded_too() -> None:
    requests = OpenRequests(max_waiting=3)
    with ExitStack() as slow:
        for _ in range(3 + OTHERS):
            slow.enter_context(requests.request("acme"))
        with pytest.raises(RequestRejected, match="253 requests of this tenant are open"), requests.request("acme"):
            pass
        with requests.request("globex"):
            assert requests.open["globex"] == 1
