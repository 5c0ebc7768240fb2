"""An environment of the user's that has more than ours: Celery's other pools, brokers and backends.

The project, and the stack beside it, are those of the integration tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.neighbours.environments import environment_with_cantata
from tests.integration.conftest import valkey
from tests.integration.user_tasks.conftest import client, models, shop

__all__ = ["client", "models", "python", "shop", "valkey"]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of that environment."""
    return environment_with_cantata("user-workers.lock", Path(__file__).parent) / "bin" / "python"
