"""Settings from the environment: all variables that Cantata reads, with their meanings and defaults.

OPENAI_API_KEY and the like, FLOWER_* and OTEL_* are read by the libraries that they belong to.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from cantata.errors import ConfigError, Fault
from cantata.values import Value

PLACEHOLDERS = frozenset({"CHANGE-ME", "PASSWORD"})
"""Placeholders of passwords in the files of deploy/; nothing starts with them."""


DEFAULT_NAMESPACE = "cantata"


def _namespace(name: str) -> str:
    if not re.fullmatch("[a-z0-9_-]{1,40}", name) or name == "celery":
        raise ValueError(f"a namespace has 1 to 40 of a-z, 0-9, _ and -, and is not 'celery'; found {name[:60]!r}")
    return name


def _trace_url(template: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#\"<>\x00-\x1f]+[^\s\"<>\x00-\x1f]*", template):
        raise ValueError(
            "the address of a trace begins with http:// or https:// and a host, and has no spaces, quotes or angle brackets"
        )
    unknown = set(re.findall(r"\{(\w*)\}", template)) - {"trace_id", "span_id"}
    if unknown or "{trace_id}" not in template:
        raise ValueError(
            "the address of a trace has {trace_id} where the id stands, and may have {span_id}; "
            + (f"{', '.join(sorted(unknown))!r} is neither" if unknown else "there is no {trace_id}")
        )
    return template


class Settings(Value):
    """The settings of a process."""

    redis_url: str | None = Field(
        default=None, alias="REDIS_URL", repr=False, description="the Redis with the ledger; an embedded one if absent"
    )
    broker_url: str | None = Field(
        default=None,
        alias="CANTATA_BROKER_URL",
        repr=False,
        description="Celery's broker; the ledger's Redis if absent. "
        "With `none` a process that submits runs sends no message: the coordinator's sweep does",
    )
    namespace: Annotated[str, AfterValidator(_namespace)] = Field(
        default=DEFAULT_NAMESPACE,
        alias="CANTATA_NAMESPACE",
        description="the prefix of every key, queue and "
        "exchange, 1 to 40 of a-z, 0-9, _ and -; the same for all processes of an installation, unique among those that share a Redis",
    )
    app: str | None = Field(
        default=None,
        alias="CANTATA_APP",
        description="the Celery application of your own project, such as shop.celery:app. Its tasks "
        "can be steps, and its broker carries our messages too, unless CANTATA_BROKER_URL names another",
    )
    wait_replicas: int = Field(
        default=0,
        ge=0,
        alias="CANTATA_WAIT_REPLICAS",
        description="replicas of Redis that must acknowledge the writes that a run "
        "depends on; not with a Redis Cluster",
    )
    redis_server: str | None = Field(
        default=None,
        alias="CANTATA_REDIS_SERVER",
        description="the server program of the embedded Redis, 7.0 or newer; the pinned Valkey if absent",
    )
    home: Path = Field(default=Path(".cantata"), alias="CANTATA_HOME", description="the folder of the embedded stack")
    config: Path | None = Field(
        default=None, alias="CANTATA_CONFIG", description="the configuration file, if the command line names none"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="WARNING",
        alias="CANTATA_LOG_LEVEL",
        description="the lowest level that is logged; DEBUG adds tracebacks",
    )
    log_format: Literal["json", "human"] | None = Field(
        default=None,
        alias="CANTATA_LOG_FORMAT",
        description="the format of log lines on standard error; by default human on a terminal, else json",
    )
    run_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"] = Field(
        default="INFO",
        alias="CANTATA_RUN_LOG_LEVEL",
        description="the lowest level of log lines that are kept with their run, for `submit logs`",
    )
    drain_s: float = Field(
        default=6.0,
        ge=0,
        le=86_400,
        alias="CANTATA_DRAIN_S",
        description="seconds in which a stopping worker may finish its steps; "
        "it releases the rest, uncounted. It needs up to 3 s more to end",
    )
    tool_memory_mb: int | None = Field(
        default=None,
        ge=128,
        alias="CANTATA_TOOL_MEMORY_MB",
        description="memory limit of each process of a tools worker, in megabytes; none if absent",
    )
    tools_in_agents: bool | None = Field(
        default=None,
        alias="CANTATA_TOOLS_IN_AGENTS",
        description="1: agents workers call quick functions for their models themselves, "
        "so they need the code and environment of tools workers; 0: they never do. By default they do where one command starts both, "
        "unless CANTATA_TOOL_MEMORY_MB limits the memory of functions",
    )
    heartbeat_file: Path | None = Field(
        default=None,
        alias="CANTATA_HEARTBEAT_FILE",
        description="a file that a worker touches every 1 to 2 s while it is connected to Redis and ready",
    )
    lenient: bool = Field(
        default=False,
        alias="CANTATA_LENIENT",
        description="1: a worker that cannot import what its queues need is ready nevertheless, and serves the rest",
    )
    task_events: bool = Field(
        default=True,
        alias="CANTATA_TASK_EVENTS",
        description="0: workers send no task events, and Flower shows no tasks",
    )
    gateway_tokens: str | None = Field(
        default=None,
        alias="CANTATA_GATEWAY_TOKENS",
        repr=False,
        description="tokens of the gateway: JSON or YAML, token → tenant or rights",
    )
    gateway_tokens_file: Path | None = Field(
        default=None, alias="CANTATA_GATEWAY_TOKENS_FILE", description="the same in a file, which has precedence"
    )
    published_on_loopback: bool = Field(
        default=False,
        alias="CANTATA_PUBLISHED_ON_LOOPBACK",
        description="1: the ports of gateway and Flower are published, for "
        "example by Docker, on loopback only. Then they need no tokens or passwords to listen on another address, and accept only "
        "requests for this machine's names",
    )
    flower_url: str | None = Field(
        default=None,
        alias="CANTATA_FLOWER_URL",
        description="the URL of Flower for browsers: the gateway's pages link to its tasks",
    )
    trace_url: Annotated[str, AfterValidator(_trace_url)] | None = Field(
        default=None,
        alias="CANTATA_TRACE_URL",
        description="the URL of a trace, to which the run pages link, with `{trace_id}`; with `{span_id}` too, steps have links; "
        "a variable of the gateway and Flower",
    )
    gateway_url: str | None = Field(
        default=None,
        alias="CANTATA_GATEWAY_URL",
        description="the URL of the gateway for people, for the links in webhooks; a variable of the agents workers",
    )
    webhook_secret: str | None = Field(
        default=None,
        alias="CANTATA_WEBHOOK_SECRET",
        repr=False,
        description="the secret of the signatures of webhooks that name no other variable; of the agents workers",
    )
    access_log: bool = Field(
        default=False,
        alias="CANTATA_ACCESS_LOG",
        description="1: the gateway logs each request in a line on standard error, whatever CANTATA_LOG_LEVEL is",
    )
    audit_days: float = Field(
        default=30.0,
        gt=0,
        le=3660,
        alias="CANTATA_AUDIT_DAYS",
        description="days that entries of the audit log are kept; the same for all processes of an installation",
    )
    audit_entries: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        alias="CANTATA_AUDIT_ENTRIES",
        description="entries of the audit log that each tenant has at most, the newest; likewise",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        alias="CANTATA_METRICS_PORT",
        description="the port on which workers and the gateway serve their metrics; 0: any free port; none if absent",
    )
    metrics_host: str = Field(
        default="127.0.0.1", alias="CANTATA_METRICS_HOST", description="the address of the metrics port"
    )
    metrics_tenants: int = Field(
        default=0,
        ge=0,
        le=1000,
        alias="CANTATA_METRICS_TENANTS",
        description="tenants with series of their own in metrics with the label `tenant`; others are `other`, and with 0 it is empty",
    )


VARIABLES: dict[str, str] = {field.alias: name for name, field in Settings.model_fields.items() if field.alias}
"""Environment variable → field."""


def settings() -> Settings:
    """Return the current settings; an empty variable counts as absent. Raises ConfigError with every invalid variable."""
    found = {variable: value for variable in VARIABLES if (value := os.environ.get(variable, "").strip())}
    for level in ("CANTATA_LOG_LEVEL", "CANTATA_RUN_LOG_LEVEL"):
        if level in found:
            found[level] = found[level].upper()
    if "CANTATA_LOG_FORMAT" in found:
        found["CANTATA_LOG_FORMAT"] = found["CANTATA_LOG_FORMAT"].lower()
    try:
        return Settings.model_validate(found)
    except ValidationError as error:
        raise ConfigError(
            [_fault(str(each["loc"][0]), each["msg"]) for each in error.errors()], source="environment"
        ) from None


def namespace_named(name: str | None) -> str:
    """Return the given namespace, or that of the environment. Raises ConfigError if it is invalid."""
    try:
        return settings().namespace if name is None else _namespace(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _fault(variable: str, message: str) -> Fault:
    """Return the fault of a variable, without its value, which may be a secret."""
    text = message.removeprefix("Value error, ")  # pydantic's, for errors of our own checks
    return Fault(f"{text[:1].lower()}{text[1:]}; correct the variable or unset it", where=variable)
