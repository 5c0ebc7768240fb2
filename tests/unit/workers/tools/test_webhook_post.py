"""Signatures of webhooks, and the addresses that they may go to."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from cantata.errors import StepError
from cantata.flows.definitions import Webhook
from cantata_workers.tools import webhook_post
from cantata_workers.tools.webhook_post import (
    HOST_POSTS,
    TENANT_POSTS,
    NoAnswer,
    PostsBusy,
    is_public,
    place,
    post,
    sign,
)
from tests.acceptance.pages import blocks

BODY = b'{"test": 2432232314}'


def test_a_message_is_signed_as_standard_webhooks_says() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the example of the specification, and its signature

    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)

    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("secret", "message"), [("whsec_no base64!", "not base64"), ("", "is empty"), ("whsec_", "is empty")]
)
def test_a_secret_that_signs_nothing_is_an_error_without_its_text(secret: str, message: str) -> None:
    with pytest.raises(StepError, match=message) as refused:
        sign(secret, "m", 1, BODY)
    assert "no base64!" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "198.18.0.1", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff0e::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
        "0.1.2.3", "192.0.0.1", "192.0.0.9", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.175.48.1", "198.19.255.255",
        "198.51.100.1", "203.0.113.1", "239.1.1.1", "240.0.0.1", "100.127.255.255", "172.31.255.255", "fec0::1", "feff::1",
        "fe80::1", "fc00::1",
        "64:ff9b::808:808", "64:ff9b:1::1", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", "100::1", "100:0:0:1::1", "2001::1", "2001:2::1",
        "2001:10::1", "2001:20::1", "2001:db8::1", "2002::1", "3fff::1", "3fff:fff::1", "5f00::1", "4000::1", "::8.8.8.8", "::127.0.0.1",
        "::ffff:0:127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "ff02::1", "ff05::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_of_the_public_internet_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "100.63.255.255",
        "100.128.0.0",
        "172.32.0.1",
        "223.255.255.255",
        "2001:200::1",
        "2a00::1",
    ],
)
def test_a_public_address_is_known(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_a_private_address_is_not_connected_to(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "s")

    with pytest.raises(StepError, match="not public; set 'allow_private'") as refused:
        asyncio.run(post(Webhook(url=f"http://{host}/"), "m", BODY))

    assert refused.value.code == "address_refused"


def test_a_missing_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUR_SECRET", raising=False)
    with pytest.raises(StepError, match="OUR_SECRET is not set"):
        asyncio.run(post(Webhook(url="http://127.0.0.1:1/", secret_env="OUR_SECRET", allow_private=True), "m", BODY))


def test_a_host_that_refuses_connections_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "s")
    with pytest.raises(NoAnswer):
        asyncio.run(post(Webhook(url="http://127.0.0.1:1/", allow_private=True), "m", BODY))


@contextmanager
def server(answer: Callable[[socket.socket, threading.Event], None], host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that reads a message, and then answers as it is told, until the block ends."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            answer(connection, ended)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server((host, 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://{host}:{listening.getsockname()[1]}/"
        ended.set()


def drip(connection: socket.socket, ended: threading.Event) -> None:
    """Send a byte of a head at a time, without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    while not ended.wait(0.02):
        connection.sendall(b"x")


def swell(connection: socket.socket, ended: threading.Event) -> None:
    """Send a head without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.is_set():
        connection.sendall(b"x: " + b"x" * 60_000 + b"\r\n")


def endless(connection: socket.socket, ended: threading.Event) -> None:
    """Send a status, and a body without end."""
    connection.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-type: text/plain\r\n\r\n")
    while not ended.is_set():
        connection.sendall(b"x" * 65536)


def slow_body(connection: socket.socket, ended: threading.Event) -> None:
    """Send a status, and a byte of a body now and then."""
    connection.sendall(b"HTTP/1.1 500 Oh\r\ncontent-length: 1000000\r\n\r\n")
    while not ended.wait(0.02):
        connection.sendall(b"x")


def hang(connection: socket.socket, ended: threading.Event) -> None:
    """Answer nothing."""
    ended.wait()


def hook_at(url: str) -> Webhook:
    return Webhook(url=url, allow_private=True)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "s")
    monkeypatch.setattr(webhook_post, "POST_S", 0.5)


@pytest.mark.parametrize(("answer", "status"), [(endless, 202), (slow_body, 500)])
def test_a_body_without_end_costs_nothing_beyond_the_status(
    answer: Callable[..., None], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "s")
    with server(answer) as url:
        assert asyncio.run(post(hook_at(url), "m", BODY)) == status


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("answer", "message"), [(hang, "no answer in 0.5 s"), (drip, "no answer in 0.5 s"), (swell, "Protocol")]
)
def test_a_head_without_end_is_no_answer(answer: Callable[..., None], message: str) -> None:
    with server(answer) as url, pytest.raises(NoAnswer, match=message):
        asyncio.run(post(hook_at(url), "m", BODY))


async def post_in_place(url: str, message_id: str, *, tenant: str = "") -> int:
    """Post as the step does."""
    with place(hook_at(url), tenant=tenant):
        return await post(hook_at(url), message_id, BODY)


@pytest.mark.parametrize("url", ["http://[::1", "http://xn--\ud800/"])
def test_a_url_without_a_host_is_no_answer(url: str) -> None:
    with pytest.raises(NoAnswer), place(Webhook.model_construct(url=url)):
        pass


def test_a_host_gets_a_few_messages_at_once_and_others_do_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "s")

    async def post_all(dead: str, living: str) -> None:
        tasks = [asyncio.create_task(post_in_place(dead, f"m{number}")) for number in range(HOST_POSTS + 3)]
        refused, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 3:
            refused, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        assert await post_in_place(living, "m") == 202
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [*[asyncio.CancelledError] * HOST_POSTS, *[PostsBusy] * 3]

    with server(hang) as dead, server(endless) as living:
        asyncio.run(post_all(dead, living.replace("127.0.0.1", "localhost")))

    assert webhook_post._under_way == {}, "nothing is kept of a host without posts"


def test_a_tenant_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", "s")

    async def post_all(dead: Sequence[str], living: str) -> None:
        tasks = [asyncio.create_task(post_in_place(url, "m", tenant="evil")) for url in dead for _ in range(HOST_POSTS)]
        assert len(tasks) == TENANT_POSTS
        await asyncio.sleep(0)
        with pytest.raises(PostsBusy, match="12 messages for tenant 'evil'"):
            await post_in_place(living, "m", tenant="evil")
        assert await post_in_place(living, "m", tenant="acme") == 202
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with ExitStack() as stack:
        dead = [stack.enter_context(server(hang, f"127.0.0.{number}")) for number in range(2, 5)]
        asyncio.run(post_all(dead, stack.enter_context(server(endless))))


@pytest.mark.usefixtures("short")
def test_look_ups_that_hang_leave_the_threads_of_the_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, look_up = threading.Event(), socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        if host.endswith(".invalid"):
            ended.wait()
            raise OSError("no such host")
        return look_up(host, *rest, **more)

    async def look_up_beside() -> object:
        posts = [
            asyncio.create_task(post(Webhook(url=f"http://h{number}.invalid/"), "m", BODY)) for number in range(40)
        ]
        await asyncio.sleep(0.05)
        found = await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)  # as model calls do
        for each in posts:
            each.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    try:
        assert asyncio.run(asyncio.wait_for(look_up_beside(), 5))
    finally:
        ended.set()


def test_the_example_of_the_page_verifies_a_message_and_no_other() -> None:
    (block,) = [block for block in blocks() if block.page == "docs/webhooks.md" and block.language == "python"]
    example: dict[str, Any] = {}
    exec(compile(block.text, str(block), "exec"), example)
    now = int(time.time())

    def headers(at: int) -> dict[str, str]:
        return {"webhook-id": "m", "webhook-timestamp": str(at), "webhook-signature": sign("secret", "m", at, BODY)}

    is_ours = example["is_ours"]
    assert is_ours(headers(now), BODY, "secret")
    assert not is_ours(headers(now), BODY + b" ", "secret")
    assert not is_ours(headers(now), BODY, "another")
    assert not is_ours({**headers(now), "webhook-id": "n"}, BODY, "secret")
    assert not is_ours(headers(now - 301), BODY, "secret")
