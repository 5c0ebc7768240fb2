"""The pytest plugin: the fixtures `scripted_model` and `cantata_stack`. What they need is imported when a test uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cantata.testing.killable_stack import KillableStack
    from cantata.testing.server import ScriptedModels


def _let_models_reach(server: ScriptedModels, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OPENAI_API_BASE", server.url)
    patch.setenv("OPENAI_API_KEY", "sk-scripted")


@pytest.fixture(scope="session")
def _cantata_models() -> Iterator[ScriptedModels]:
    from cantata.testing.server import ScriptedModels  # noqa: PLC0415  # loads pydantic

    with ScriptedModels() as server:
        yield server


@pytest.fixture(scope="session")
def _cantata_stack(
    _cantata_models: ScriptedModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KillableStack]:
    from cantata.testing.killable_stack import KillableStack  # noqa: PLC0415  # loads Celery, pydantic and redis

    with pytest.MonkeyPatch.context() as patch:  # the workers keep this environment
        _let_models_reach(_cantata_models, patch)
        stack = KillableStack(tmp_path_factory.mktemp("cantata"))
    yield stack
    stack.stop()


@pytest.fixture
def scripted_model(_cantata_models: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> ScriptedModels:
    """A scripted model server, without rules and requests; models of OpenAI reach it, in this process and in `cantata_stack`."""
    _cantata_models.clear()
    _let_models_reach(_cantata_models, monkeypatch)
    return _cantata_models


@pytest.fixture
def cantata_stack(_cantata_stack: KillableStack, scripted_model: ScriptedModels) -> Iterator[KillableStack]:
    """A stack with workers, virtual time and fault points: one a session, without runs at the begin of a test."""
    yield _cantata_stack
    _cantata_stack.clear()
