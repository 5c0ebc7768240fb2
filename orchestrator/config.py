"""Finds, loads and checks configuration."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from orchestrator.errors import ConfigError, Fault
from orchestrator.formats.a2e import is_request, load_request
from orchestrator.formats.documents import Document, parse
from orchestrator.formats.native import load_definitions
from orchestrator.models.definitions import Agent, Defaults, Definitions
from orchestrator.models.values import Value

DEFAULT_FILE = Path("configs/default.yaml")
BUILT_IN = Definitions(
    agents={"assistant": Agent(description="Answers any text with the default model.")}, defaults=Defaults(agent="assistant")
)


class Settings(Value):
    """What the environment says."""

    redis_url: str | None = Field(
        default=None, alias="REDIS_URL", repr=False, description="the Redis that keeps the runs; an embedded one if absent"
    )
    broker_url: str | None = Field(
        default=None, alias="CANTATA_BROKER_URL", repr=False, description="Celery's broker, if it is not that Redis"
    )
    home: Path = Field(default=Path(".cantata"), alias="CANTATA_HOME", description="the folder of the embedded stack")
    config: Path | None = Field(
        default=None, alias="CANTATA_CONFIG", description="the configuration file, where the command line names none"
    )


def settings() -> Settings:
    """The settings as they are now; a variable that is set to nothing counts as absent."""
    names = (field.alias for field in Settings.model_fields.values())
    return Settings.model_validate({name: value for name in names if name and (value := os.environ.get(name))})


def find(explicit: str | None = None) -> Path | None:
    """The configuration file: the one named, else that of CANTATA_CONFIG, else configs/default.yaml here; None for the built-in one."""
    if explicit:
        return Path(explicit)
    named = settings().config
    if named and not named.exists():
        raise ConfigError("CANTATA_CONFIG names this file, but it does not exist; correct the variable or unset it", source=str(named))
    return named or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)


def load(path: Path | None) -> Definitions:
    """The definitions in this file, or the built-in ones; a ConfigError lists every fault."""
    if path is None:
        return BUILT_IN
    document = read(path)
    if is_request(document):
        raise ConfigError("this is a chain request, not a configuration; `submit chain` runs it", source=document.source)
    return _definitions(document, path)


def read(path: Path) -> Document:
    """The document in this file; a ConfigError if it cannot be read, or is no YAML or JSON."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError("this file does not exist", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"this file is no text in UTF-8: byte {error.start} is wrong", source=str(path)) from error
    except OSError as error:
        raise ConfigError(f"this file cannot be read: {error.strerror}", source=str(path)) from error
    return parse(text, source=str(path))


def check_file(path: Path) -> list[Fault]:
    """All that is wrong with a configuration, or with the form of a chain request, whichever the file is."""
    try:
        document = read(path)
        if is_request(document):
            load_request(document)
        else:
            _definitions(document, path)
    except ConfigError as error:
        return list(error.faults)
    return []


def _definitions(document: Document, path: Path) -> Definitions:
    return load_definitions(document, folder=path.absolute().parent)
