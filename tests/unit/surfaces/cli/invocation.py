"""A command, run in this process as a user types it."""

from __future__ import annotations

from collections.abc import Mapping

from click.testing import CliRunner, Result

from cantata.surfaces.cli.main import submit

NO_SERVICE = {"REDIS_URL": None, "CANTATA_CONFIG": None, "CANTATA_BROKER_URL": None, "CANTATA_LOG_LEVEL": None}


def run(*words: str, given: str | None = None, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(submit, list(words), input=given, env={**NO_SERVICE, **(env or {})})
