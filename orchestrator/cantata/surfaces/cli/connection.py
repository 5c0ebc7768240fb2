"""ServiceConnection: the client of one command; it submits runs and shows them until they are over. They go on after Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from cantata.client.auditing import acting_as, local_actor
from cantata.client.client import Client
from cantata.client.records import answer_text
from cantata.client.requests import CheckedTurn, checked_turn
from cantata.client.runs import ChainRun, TurnRun
from cantata.client.tenant_client import TenantClient
from cantata.client.view import RunView
from cantata.config.user_code.workflow_inputs import input_faults, turn_faults
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions
from cantata.flows.submission import AS_CONFIGURED, Submission
from cantata.flows.wire import ChainResponse, RunResult, TurnRequest
from cantata.operation.embedded import Stack
from cantata.operation.logs import configure_logs
from cantata.surfaces.cli.main import FAILED, INTERRUPTED
from cantata.surfaces.cli.requests import check_tasks, load_checked_chain, load_definitions
from cantata.surfaces.cli.views import live_view, plain_view
from cantata.surfaces.cli.views.progress import await_own
from cantata.text import text_format
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue


class ServiceConnection:
    """The client of one command, and how it shows runs."""

    def __init__(
        self, url: str | None, *, stack: Stack | None, config: str | Definitions | None = None, as_json: bool = False
    ) -> None:
        configure_logs()
        self._url = url
        self._stack = stack
        self._config = config
        self.as_json = as_json
        self._acting = ExitStack()

    @cached_property
    def definitions(self) -> Definitions:
        """The definitions that runs may name; they need no service."""
        return self._config if isinstance(self._config, Definitions) else load_definitions(self._config)

    @cached_property
    def client(self) -> Client:
        """The client; the first use waits for the service."""
        if self._stack:
            if self._stack.has_workers:
                check_tasks(self.definitions)
            await_own(self._stack)
        known = self.__dict__.get("definitions", self._config)  # the configuration is read once
        client = Client(self._stack.url if self._stack else self._url, config=known)
        for warning in client.warnings:
            print_note(f"warning: {warning}")
        return client

    @property
    def _code_folder(self) -> Path | None:
        return Path(self.definitions.folder) if self.definitions.folder else None

    @property
    def runs(self) -> TenantClient:
        """The runs of all tenants."""
        return self.client.of(None)

    def checked_turn(self, turn: TurnRequest) -> CheckedTurn:
        """Check a turn, without a service. Raises ConfigError with its faults."""
        known = self.definitions.workflows.get(turn.workflow or "")
        own = turn_faults(known.function, folder=self._code_folder) if known else ()
        try:
            checked = checked_turn(turn, self.definitions)
        except ConfigError as error:
            raise ConfigError([*error.faults, *own], source=error.source) from error
        if own:
            raise ConfigError([*own], source="turn")
        return checked

    def submit_turn(self, submission: Submission = AS_CONFIGURED, **fields: Any) -> TurnRun:
        """Submit a turn, by the fields of TurnRequest. Raises ConfigError before it waits for the service."""
        own = {"session": submission.session, "timeout_s": submission.timeout_s, "webhooks": [*submission.webhooks]}
        turn = self.checked_turn(TurnRequest.model_validate({**fields, **own}))
        self.print_fleet_warnings()
        return self.client.submit_checked(turn, submission)

    def submit_chain(
        self, file: str, given: dict[str, JsonValue] | None = None, submission: Submission = AS_CONFIGURED
    ) -> ChainRun:
        """Submit the chain request that `file` names. Raises ConfigError before it waits for the service."""
        chain = load_checked_chain(
            file, self.definitions, given=given, timeout_s=submission.timeout_s, webhooks=submission.webhooks
        )
        self.print_fleet_warnings()
        return self.client.submit_checked(chain, submission)

    def submit_workflow(self, name: str, given: Mapping[str, JsonValue], submission: Submission) -> ChainRun:
        """Submit the input of a workflow in Python. Raises ConfigError before it waits for the service."""
        definitions = self.definitions
        known = definitions.workflows.get(name)
        if known is None:
            if name in definitions.chains:
                raise ConfigError(f"{name!r} is a chain, not a workflow in Python; run it with `submit chain {name}`")
            known_names = did_you_mean(name, definitions.workflows) or "; there are none"
            raise ConfigError(
                f"no workflow in Python is called {name!r} under `workflows:` of the configuration{known_names}"
            )
        if faults := [*input_faults(known.function, given, folder=self._code_folder)]:
            raise ConfigError(faults, source=f"workflow {name}")
        self.print_fleet_warnings()
        return self.client.submit_workflow(
            name, given, timeout_s=submission.timeout_s, labels=submission.labels, webhooks=submission.webhooks
        )

    def detach(self, run: TurnRun | ChainRun) -> int:
        """Print the id of a run, which goes on, and return exit status 0."""
        click.echo(json.dumps({"run_id": run.run_id}) if self.as_json else run.run_id)
        self.print_detached(run.run_id, "accepted")
        return 0

    def watch(self, run: TurnRun | ChainRun, *, events: bool = False, since: int | None = None) -> int:
        """Show a run until it is over, print its result, and return the exit status. The run goes on after Ctrl-C."""
        try:
            if events and isinstance(run, ChainRun) and run.request.streaming:
                for event in run.events(since):
                    click.echo(event.model_dump_json())
            elif not self.as_json:
                self._show_progress(run, since)
            return self.print_result(run)
        except KeyboardInterrupt:
            self.print_detached(run.run_id, "interrupted")
            return INTERRUPTED

    def print_result(self, run: TurnRun | ChainRun, timeout_s: float | None = None) -> int:
        """Print the result of a run, or after `timeout_s` its result so far, and return the exit status."""
        try:
            result: RunResult | ChainResponse = run.result(timeout_s)
        except TimeoutError as error:
            print_note(str(error))
            result = run.so_far()
        if self.as_json:
            click.echo(result.model_dump_json())
        else:
            _show(result)
        return 0 if has_succeeded(result) else FAILED

    def __enter__(self) -> Self:
        self._acting.enter_context(acting_as(local_actor("cli")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._acting.close()
        if "client" in self.__dict__:
            self.client.close()

    def print_fleet_warnings(self) -> None:
        """Print warnings about the fleet, such as a queue without a worker, if it is not a stack of our own."""
        if self._stack is None:  # workers of our own stack may not have registered yet
            for message in self.client.fleet_warnings():
                print_note(f"warning: {message}")

    def _show_progress(self, run: TurnRun | ChainRun, since: int | None) -> None:
        if since is None and is_terminal():
            live_view.watch(run)
            return
        names = run.names()
        view = RunView(run.run_id)  # plain lines show events; only a terminal shows the plan
        for event in run.log(since):
            view, line = plain_view.apply_and_describe(view, event, names.with_step(event.step))
            if line:
                print_note(line)

    def print_detached(self, run_id: str, reason: str) -> None:
        """Print how to follow a run that goes on, and keep the stack of this command for it."""
        where = ""
        if self._stack:
            self._stack.keep()
            where = "; the stack of this command keeps running until `submit down`"
        print_note(f"{reason}: the run goes on{where}; follow it with: submit runs follow {run_id}")


def print_note(line: str) -> None:
    """Print a line for people, on standard error; never a result."""
    click.echo(line, err=True)


def is_terminal() -> bool:
    """Return whether standard error is a terminal that supports cursor movement."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def has_succeeded(result: RunResult | ChainResponse) -> bool:
    """Return whether a run succeeded, without failures of nodes or of members of a team."""
    return result.state == "succeeded"


def _show(result: RunResult | ChainResponse) -> None:
    answer = result.final_output if isinstance(result, ChainResponse) else result.output
    if answer is not None:
        click.echo(text_format.clean(answer_text(answer)))
    if result.error:
        print_note(f"error: {text_format.clean(result.error.message)} ({result.error.code})")
    if isinstance(result, ChainResponse) and result.failed:
        print_note(f"failed: {', '.join(result.failed)}")
    parts = (
        f"run {result.run_id}",
        text_format.state_label(result.state),
        text_format.duration(result.duration_ms),
        text_format.usage(result.usage),
    )
    print_note(" · ".join(filter(None, parts)))
