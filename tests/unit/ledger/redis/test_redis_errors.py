"""What docs/redis.md shows can be used, and what it quotes is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cantata.ledger.redis import redis_errors
from cantata.ledger.redis.address import parse

PAGE = (Path(__file__).parents[4] / "docs" / "redis.md").read_text("utf-8")
URLS = re.findall(r"^(?:REDIS_URL|CANTATA_BROKER_URL)=(\S+)$", PAGE, re.MULTILINE)
SENTENCES = re.findall(r"\| `([^`]+)` \|$", PAGE.partition("## Errors")[2], re.MULTILINE)
SOURCE = Path(redis_errors.__file__).read_text("utf-8")


@pytest.mark.parametrize("url", URLS)
def test_each_url_is_one(url: str) -> None:
    found = parse(url)

    assert found.tls == url.startswith("rediss")
    assert found.kind == (re.findall(r"\+(\w+)://", url) or ["server"])[0]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_each_sentence_is_said(sentence: str) -> None:
    parts = [part for part in re.split(r"…|\(.*?\)|Redis at|Redis |;", sentence) if len(part) > 10]
    said = re.sub(r"\{\w+\}", "", SOURCE)

    assert parts
    assert [part for part in parts if part.strip() not in re.sub(r"\s+", " ", said)] == []


def test_all_examples_are_found() -> None:
    assert len(URLS) == 8
    assert len(SENTENCES) == 10
