"""Tokens, and what means this machine."""

from __future__ import annotations

import pytest

from orchestrator.errors import ConfigError
from orchestrator.gateway.access import read_tokens
from orchestrator.gateway.serve import check_address
from orchestrator.pages.origins import is_loopback

ANNA = "a-token-of-anna-0123"


def test_a_token_leads_to_its_tenant() -> None:
    tokens = read_tokens(f'{{"{ANNA}": "anna", "a-token-of-nobody-01": ""}}', "tokens")

    assert (len(tokens), tokens.tenant_of(ANNA), tokens.tenant_of("a-token-of-nobody-01")) == (2, "anna", "")
    assert tokens.tenant_of(ANNA[:-1]) is tokens.tenant_of("") is tokens.tenant_of("\udcff") is None


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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example"])
def test_any_other_address_does(host: str) -> None:
    assert not is_loopback(host)
    check_address(host, has_tokens=True)
    with pytest.raises(ConfigError, match="tokens are needed"):
        check_address(host, has_tokens=False)
