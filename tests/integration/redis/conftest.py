"""Redis in the ways that operators run it, and the models that workers ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cantata.testing import ScriptedModels
from tests.integration.redis.servers import OPEN, Clustered, running


@pytest.fixture(scope="package")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    """A cluster of three nodes with the user of our example beside the usual one; a test that breaks it mends it."""
    cluster = Clustered(tmp_path_factory.mktemp("cluster"), OPEN)
    with running(*cluster.nodes):
        cluster.form()
        yield cluster


@pytest.fixture(scope="session")
def models() -> Iterator[ScriptedModels]:
    """A model server that echoes."""
    with ScriptedModels() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def asks_our_models(models: ScriptedModels) -> Iterator[None]:
    """Workers that these tests start ask it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789")
        for name in ("REDIS_URL", "CANTATA_BROKER_URL", "CANTATA_HOME"):
            patch.delenv(name, raising=False)
        yield
