"""`install`: Cantata in an existing Celery application, which stays as it is."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import structlog

from cantata.client.async_client import AsyncClient
from cantata.client.client import Client
from cantata.config import loading as configuration
from cantata.errors import ConfigError
from cantata.flows.chains.declared_inputs import sound, turn_faults
from cantata.flows.definitions import Definitions
from cantata.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from celery import Celery, Task

    from cantata.values import JsonValue


class Installation:
    """Cantata beside a Celery application: clients for its processes, and tasks of it that submit runs."""

    def __init__(
        self, app: Celery, config: str | Path | Definitions | None, redis_url: str | None, namespace: str | None
    ) -> None:
        """Note what clients are made from; `install` describes the arguments."""
        self.app = app
        self._options: dict[str, Any] = {"config": config, "redis_url": redis_url, "namespace": namespace, "app": app}
        self._clients: dict[int, AsyncClient] = {}

    @property
    def client(self) -> Client:
        """The client of this process, connected when it is first used. A forked process gets one of its own.

        Raises UnavailableError if Redis cannot be reached, ConfigError if the configuration has faults.
        """
        return self.async_client.blocking()

    @property
    def async_client(self) -> AsyncClient:
        """The client for coroutines of this process, which uses the same connections."""
        known = self._clients.get(os.getpid())
        return known or self._clients.setdefault(
            os.getpid(), AsyncClient.of(self._connect)
        )  # another thread may have set it meanwhile

    def _connect(self) -> Client:
        if not structlog.is_configured():  # by default it prints to standard output, where a program's data may be
            structlog.configure(
                logger_factory=structlog.stdlib.LoggerFactory(), wrapper_class=structlog.stdlib.BoundLogger
            )
        return Client(**self._options)

    def task(self, name: str, /, **options: Any) -> Task[Any, Any]:
        """Register a task `cantata.NAME` of the application that submits a run, and return it.

        The worker that executes it does not wait: the task's result is the run's id. The same task id gives the same run.

        Args:
            name: A chain, agent or team of the configuration. A chain gets the task's keyword arguments as its input, or its one
                argument as the user's text; agents and teams get only a text.
            options: Options of the task, as of `app.task`.
        """

        def submit(task: Task[Any, Any], text: str | None = None, /, **chain_input: JsonValue) -> str:
            return self._submit(name, text, chain_input, task.request.id)

        def check_arguments(text: str | None = None, /, **_: JsonValue) -> None:
            if text is not None:
                self._check_takes_text(name)

        options = {
            "name": f"cantata.{name}",
            "__header__": staticmethod(check_arguments),
            **options,
        }  # Celery calls this in `apply_async`
        registered: Task[Any, Any] = cast(Any, self.app).task(submit, bind=True, **options)
        return registered

    def _check_takes_text(self, name: str) -> None:
        """Raise TypeError for a chain that needs inputs which a text does not give, as far as this process has the configuration."""
        with suppress(ConfigError):  # then the worker that executes the task tells
            chain = self._declared.chains.get(name)
            declared = sound(chain.inputs) if chain else None
            if chain and declared and any(turn_faults(name, chain)):
                given = ", ".join(f"{each}=..." for each in sorted(declared.required))
                raise TypeError(f"chain {name!r} takes keyword arguments only: {name}.delay({given})")

    @cached_property
    def _declared(self) -> Definitions:
        config = self._options["config"]
        if isinstance(config, Definitions):
            return config
        return configuration.load(configuration.find(None if config is None else str(config)))

    def _submit(self, name: str, text: str | None, chain_input: dict[str, JsonValue], task_id: str | None) -> str:
        definitions = self.client.definitions
        if name in definitions.chains and text is None:
            return self.client.submit_chain(name, initial_input=chain_input, idempotency_key=task_id).run_id
        kinds = (("workflow", definitions.chains), ("agent", definitions.agents), ("team", definitions.teams))
        kind = next((kind for kind, named in kinds if name in named), None)
        if kind is None:
            known = [each for _, named in kinds for each in named]
            raise ConfigError(
                f"the configuration has no chain, agent or team {name!r}{did_you_mean(name, known)}",
                source=f"cantata.{name}",
            )
        if text is None or chain_input:
            raise ConfigError(
                f"{kind} {name!r} gets one text, such as task.delay('...'), and no named arguments",
                source=f"cantata.{name}",
            )
        turn: dict[str, Any] = {kind: name}
        return self.client.submit_turn(text, idempotency_key=task_id, **turn).run_id


def install(
    app: Celery,
    config: str | Path | Definitions | None = None,
    *,
    redis_url: str | None = None,
    namespace: str | None = None,
) -> Installation:
    """Return Cantata for a Celery application. Nothing in the application changes, and nothing is connected yet.

    Args:
        app: The application. Its broker carries Cantata's messages too, unless CANTATA_BROKER_URL names another.
        config: A configuration file or definitions; searched for, as the command line does, if None.
        redis_url: The Redis that keeps the runs: REDIS_URL if None, else the application's own, as broker or as result backend.
        namespace: The prefix of all keys and queues: CANTATA_NAMESPACE if None.
    """
    return Installation(app, config, redis_url, namespace)
