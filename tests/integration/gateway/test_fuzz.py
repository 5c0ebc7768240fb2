"""The short form of `./run faults --fuzz`: a few seconds of each part, always the same."""

from __future__ import annotations

import random

import pytest

from tests.examples import FEWER
from tests.faults.fuzz import parts
from tests.integration.gateway.conftest import Deployment, Gateway

SECONDS = 3.0 if FEWER == 1 else 1.0


@pytest.mark.thorough("a form of `./run faults --fuzz`; what the document allows and what not is held by gateway/test_document.py")
@pytest.mark.slow("a few seconds of fuzzing")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rounds", [parts.by_schema, parts.by_chats, parts.by_chains])
def test_what_nobody_should_send_breaks_nothing(deployment: Deployment, gateway: Gateway, rounds: parts.Round) -> None:
    fed = parts.feed(deployment, gateway, random.Random(12), SECONDS, rounds)

    assert fed.violations == []


@pytest.mark.thorough("a form of `./run faults --fuzz`")
@pytest.mark.timeout(300)
def test_what_reads_texts_gives_a_value_or_an_error_of_its_own() -> None:
    fed = parts.read(random.Random(12), SECONDS)

    assert fed.violations == []
