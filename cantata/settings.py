"""What the environment says: every variable that Cantata reads, what it means, and what holds without it.

Variables of others, such as OPENAI_API_KEY, FLOWER_* and OTEL_*, are read by those they belong to.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from cantata.errors import ConfigError, Fault
from cantata.models.values import Value

PLACEHOLDERS = frozenset({"CHANGE-ME", "PASSWORD"})
"""What stands in the files of deploy/ where a password is to be put; nothing is started with it."""


DEFAULT_NAMESPACE = "cantata"


def _namespace(name: str) -> str:
    if not re.fullmatch("[a-z0-9_-]{1,40}", name) or name == "celery":
        raise ValueError(f"a namespace has 1 to 40 of a-z, 0-9, _ and -, and is not 'celery'; found {name[:60]!r}")
    return name


class Settings(Value):
    """The settings of one process."""

    redis_url: str | None = Field(
        default=None, alias="REDIS_URL", repr=False, description="the Redis that keeps the runs; an embedded one if absent"
    )
    broker_url: str | None = Field(
        default=None, alias="CANTATA_BROKER_URL", repr=False, description="Celery's broker, if it is not that Redis"
    )
    namespace: Annotated[str, AfterValidator(_namespace)] = Field(
        default=DEFAULT_NAMESPACE, alias="CANTATA_NAMESPACE", description="the prefix of every key, queue and "
        "exchange, 1 to 40 of a-z, 0-9, _ and -; the same for all processes of an installation, another for each that shares its Redis",
    )  # fmt: skip
    wait_replicas: int = Field(
        default=0, ge=0, alias="CANTATA_WAIT_REPLICAS", description="replicas of Redis that must have what a run depends on before it "
        "counts; not with a Redis Cluster",
    )  # fmt: skip
    redis_server: str | None = Field(
        default=None, alias="CANTATA_REDIS_SERVER", description="the server program of the embedded Redis, 7.0 or newer; the pinned "
        "Valkey if absent",
    )  # fmt: skip
    home: Path = Field(default=Path(".cantata"), alias="CANTATA_HOME", description="the folder of the embedded stack")
    config: Path | None = Field(
        default=None, alias="CANTATA_CONFIG", description="the configuration file, where the command line names none"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="WARNING", alias="CANTATA_LOG_LEVEL", description="the least that is logged; DEBUG also shows where an error arose"
    )
    log_format: Literal["json", "human"] | None = Field(
        default=None, alias="CANTATA_LOG_FORMAT", description="how standard error shows it; on a terminal human if absent, else json"
    )
    run_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"] = Field(
        default="INFO", alias="CANTATA_RUN_LOG_LEVEL", description="the least that workers keep with the run it is of, for `submit logs`"
    )
    drain_s: float = Field(
        default=6.0, ge=0, alias="CANTATA_DRAIN_S", description="seconds in which a stopping worker may finish its steps; "
        "it releases the rest, uncounted. It needs up to 3 s more to end",
    )  # fmt: skip
    tool_memory_mb: int | None = Field(
        default=None,
        ge=128,
        alias="CANTATA_TOOL_MEMORY_MB",
        description="megabytes a process of a tools worker may use; not bounded if absent",
    )
    heartbeat_file: Path | None = Field(
        default=None, alias="CANTATA_HEARTBEAT_FILE", description="a file that a worker touches each second, while Redis hears of it"
    )
    task_events: bool = Field(default=True, alias="CANTATA_TASK_EVENTS", description="0: workers send no events, and Flower shows no tasks")
    gateway_tokens: str | None = Field(
        default=None,
        alias="CANTATA_GATEWAY_TOKENS",
        repr=False,
        description="who may ask the gateway: JSON or YAML, token → tenant or rights",
    )
    gateway_tokens_file: Path | None = Field(
        default=None, alias="CANTATA_GATEWAY_TOKENS_FILE", description="the same in a file, which goes before it"
    )
    published_on_loopback: bool = Field(
        default=False, alias="CANTATA_PUBLISHED_ON_LOOPBACK", description="1: whatever publishes the ports of gateway and Flower, such "
        "as Docker, does so on loopback only. Then they need no tokens or passwords to listen on another address, and answer only "
        "requests for this machine's names",
    )  # fmt: skip
    flower_url: str | None = Field(
        default=None, alias="CANTATA_FLOWER_URL", description="where a browser finds Flower: the gateway's pages link to its tasks"
    )
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, alias="CANTATA_METRICS_PORT", description="where workers and the gateway show their metrics; 0: any "
        "port that is free; nowhere if absent",
    )  # fmt: skip
    metrics_host: str = Field(
        default="127.0.0.1", alias="CANTATA_METRICS_HOST", description="the address that the metrics port is opened at"
    )


VARIABLES: dict[str, str] = {field.alias: name for name, field in Settings.model_fields.items() if field.alias}
"""Environment variable → field."""


def settings() -> Settings:
    """The settings as they are now; a variable that is set to nothing counts as absent. A ConfigError names every one that is wrong."""
    found = {variable: value for variable in VARIABLES if (value := os.environ.get(variable, "").strip())}
    for level in ("CANTATA_LOG_LEVEL", "CANTATA_RUN_LOG_LEVEL"):
        if level in found:
            found[level] = found[level].upper()
    if "CANTATA_LOG_FORMAT" in found:
        found["CANTATA_LOG_FORMAT"] = found["CANTATA_LOG_FORMAT"].lower()
    try:
        return Settings.model_validate(found)
    except ValidationError as error:
        raise ConfigError([_fault(str(each["loc"][0]), each["msg"]) for each in error.errors()], source="environment") from None


def namespace_named(name: str | None) -> str:
    """Return the namespace of this name, or that of the environment. Raises ConfigError for what is none."""
    try:
        return settings().namespace if name is None else _namespace(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _fault(variable: str, message: str) -> Fault:
    """What is wrong with a variable; its value is not shown, since it may be a secret."""
    said = message.removeprefix("Value error, ")  # pydantic's, for errors of our own checks
    return Fault(f"{said[:1].lower()}{said[1:]}; correct the variable or unset it", where=variable)
