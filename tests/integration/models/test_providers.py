"""The table of providers is that of the LiteLLM which is installed."""

from __future__ import annotations

import pytest

from cantata.config.native import PROVIDERS
from tests.acceptance.write_providers import known


@pytest.mark.thorough("LiteLLM is imported anew; the table changes with the lock alone")
@pytest.mark.slow("LiteLLM is imported, which takes seconds")
def test_the_table_of_providers_is_that_of_litellm() -> None:
    assert known() == PROVIDERS, "run `python -m tests.acceptance.write_providers`"
