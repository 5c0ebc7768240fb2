"""Tokens, and what means this machine."""

from __future__ import annotations

import re

import pytest

from cantata.errors import ConfigError
from cantata.surfaces.gateway.access import read_tokens
from cantata.surfaces.gateway.serve import check_address
from cantata.surfaces.http.origins import is_loopback

ANNA = "a-token-of-anna-0123"


def test_a_token_leads_to_its_tenant() -> None:
    tokens = read_tokens(f'{{"{ANNA}": "anna", "a-token-of-nobody-01": ""}}', "tokens")

    anna, nobody = tokens.grant_of(ANNA), tokens.grant_of("a-token-of-nobody-01")
    assert anna is not None
    assert nobody is not None
    assert (len(tokens), anna.tenant, nobody.tenant) == (2, "anna", "")
    assert tokens.grant_of(ANNA[:-1]) is tokens.grant_of("") is tokens.grant_of("\udcff") is None


def test_a_token_that_says_nothing_of_its_rights_may_chat_and_read() -> None:
    grant = read_tokens(f"{ANNA}: {{tenant: anna}}", "tokens").grant_of(ANNA)

    assert grant == read_tokens(f"{ANNA}: anna", "tokens").grant_of(ANNA)
    assert grant is not None
    assert (grant.scopes, grant.approve_own) == (["chat", "read"], False)
    assert re.fullmatch(r"token-[0-9a-f]{8}", grant.name)


@pytest.mark.parametrize(
    ("rights", "message"),
    [
        ("{tenant: a, scope: [chat]}", "token 1: scope: unknown key 'scope'; did you mean 'scopes'?"),
        (
            "{tenant: a, scopes: [write]}",
            "token 1: scopes[0]: expected 'chat', 'submit', 'signal', 'read', 'operator' or 'admin', found 'write'",
        ),
        ("{scopes: [chat]}", "'tenant' is missing"),
        (
            "{tenant: a, scopes: [operator]}",
            "token 1 has the tenant 'a' and the scope 'operator', which is for all tenants",
        ),
        ("{a-token-of-otto-0123: otto}", "a key that looks like a token"),
    ],
)
def test_a_fault_in_a_token_s_rights_is_named(rights: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tokens(f"{ANNA}: {rights}", "tokens")

    assert message in str(refused.value)
    assert "0123" not in str(refused.value)


def test_tokens_are_not_kept_as_they_are() -> None:
    assert ANNA not in repr(vars(read_tokens(f"{ANNA}: anna", "tokens")))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "12: x", f"{ANNA}: [x]", f"{ANNA}é: anna", f"{ANNA}: anna\n{ANNA}: otto", f'{{"{ANNA}": ']
)
def test_every_fault_of_a_file_is_told_without_a_token(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tokens(text, "tokens")

    assert ANNA not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_address(host, has_tokens=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_any_other_address_does(host: str) -> None:
    assert not is_loopback(host)
    check_address(host, has_tokens=True)
    check_address(host, has_tokens=False, is_published_on_loopback=True)
    with pytest.raises(ConfigError, match="tokens are required"):
        check_address(host, has_tokens=False)
