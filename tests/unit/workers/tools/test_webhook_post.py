"""Signatures of webhooks, and the addresses that they may go to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cantata.errors import StepError
from cantata.models.definitions import Webhook
from cantata.workers.tools.webhook_post import NoAnswer, is_public, post, sign
from tests.acceptance.pages import blocks

BODY = b'{"test": 2432232314}'


def test_a_message_is_signed_as_standard_webhooks_says() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the example of the specification, and its signature

    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)

    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(("secret", "message"), [("whsec_no base64!", "not base64"), ("", "is empty"), ("whsec_", "is empty")])
def test_a_secret_that_signs_nothing_is_an_error_without_its_text(secret: str, message: str) -> None:
    with pytest.raises(StepError, match=message) as refused:
        sign(secret, "m", 1, BODY)
    assert "no base64!" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "198.18.0.1", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff0e::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
    ],
)  # fmt: skip
def test_an_address_that_is_not_of_the_public_internet_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
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
