"""The stage of the tests in this folder: one stack, one browser, one gateway without tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.integration.browser.chromium import chromium
from tests.integration.browser.stage import Stage, stage


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The stage of all tests of this folder, which leave it as they found it."""
    with chromium() as browser, stage(tmp_path_factory.mktemp("pages"), browser) as made:
        yield made


@pytest.fixture(scope="package")
def url(deployment: Stage) -> Iterator[str]:
    """A gateway without tokens."""
    with deployment.gateway("--rate", "10000") as address:
        yield address


@pytest.fixture
def page(deployment: Stage) -> Iterator[Page]:
    """A page that must not complain of anything."""
    deployment.models.script([])
    with deployment.page() as made:
        yield made
