"""`submit doctor`: whether this machine can run what its configuration needs. `submit status` checks a deployment that runs."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO

import click

from cantata import __version__
from cantata.client.addresses import NO_BROKER, without_password
from cantata.config import loading
from cantata.errors import CantataError
from cantata.flows.definitions import Agent, Definitions, Model
from cantata.flows.wire import TurnRequest
from cantata.operation import embedded
from cantata.operation.extras import EXTRAS, has_celery, missing_modules
from cantata.operation.health.checks import Check, check_redis, degraded, failing, ok, report_of
from cantata.operation.health.facts import Unavailable
from cantata.operation.health.gather import TIMEOUT_S, BackgroundCall, read_redis
from cantata.operation.worker_parts import worker_part
from cantata.settings import settings
from cantata.surfaces.cli.commands.check_plan import check_file
from cantata.surfaces.cli.connect import redis_of_user_app
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import config_option, json_option
from cantata.surfaces.cli.views.check_lines import lines_of
from cantata.surfaces.cli.views.progress import show_progress

WIDTH = 24  # of the names
CALL_TIMEOUT_S = 60.0


@click.command()
@config_option
@click.option("--models", "calls_models", is_flag=True, help="Also send each model one request of a few tokens.")
@json_option
def doctor(config: str | None, calls_models: bool, as_json: bool) -> int:
    """Check this machine: Python, packages, Redis, ports, code and the keys of models.

    Prints one line per check: ok, degraded or failing, with the action to take. If any is failing the exit status is 1. `submit status`
    checks workers and queues.
    """
    found = []
    for check in _checks(config, calls_models):
        found.append(check)
        if not as_json:
            click.echo("\n".join(lines_of(check, WIDTH)))
    report = report_of(found)
    if as_json:
        click.echo(report.model_dump_json())
    return FAILED if report.status == "failing" else 0


def _checks(config: str | None, calls_models: bool) -> Iterator[Check]:
    yield ok("Python", f"{platform.python_version()} at {sys.executable}")
    yield _packages()
    with show_progress("asking Redis"):
        services = list(_services())
    yield from services
    yield from map(_port, embedded.DEFAULT_PORTS.items())
    with show_progress("importing your code"):
        code, definitions = _code(config)
    yield code
    if definitions and missing_modules("worker"):
        yield degraded(
            "models", "not checked: the worker extra is not installed here", "run this where the agents workers run"
        )
    elif definitions:
        wanted = [model for each in _models_of(definitions) for model in definitions.with_fallbacks(each)]
        for model in {(model.model, repr(model.params)): model for model in wanted}.values():
            with show_progress(f"checking {model.model}"):
                check = _answer(model, definitions) if calls_models else _key(model)
            yield check


def _packages() -> Check:
    """Return a check of the extras. Without `worker` this machine only submits runs."""
    missing = [extra for extra in EXTRAS if missing_modules(extra)]
    message = (
        f"cantata {__version__} with {', '.join(extra for extra in EXTRAS if extra not in missing) or 'no extras'}"
    )
    message += f"; not installed: {', '.join(missing)}" if missing else ""
    if "worker" in missing:
        return degraded(
            "packages", f"{message}: no worker and no stack can start here", "run `pip install 'cantata[worker]'`"
        )
    return ok("packages", message)


def _services() -> Iterator[Check]:
    """Yield checks of the Redis that commands here would use, and of a broker apart from it."""
    try:
        stack = embedded.status()
        url = os.environ.get("REDIS_URL") or redis_of_user_app() or (stack.url if stack.kept else None)
        if url is None:
            server = os.path.basename(embedded.find_server())
            yield ok("Redis", f"none runs for this folder: commands start their own {server}, or set REDIS_URL")
            return
        yield from check_redis(BackgroundCall("Redis", read_redis, url).wait(time.monotonic() + TIMEOUT_S))
        broker_url = settings().broker_url
        if broker_url and (broker_url == NO_BROKER or not has_celery()):
            yield ok(
                "broker", "programs here send nothing to it: it is 'none', or Celery 5.5 or newer is not installed"
            )
        elif broker_url:
            from cantata.client import application

            app, address = (
                application.make_app(url, broker_url, beside=application.configured()),
                without_password(broker_url),
            )
            answer = BackgroundCall("the broker", application.waiting, app, ["coordinator"]).wait(
                time.monotonic() + TIMEOUT_S
            )
            action = "start the broker, or correct CANTATA_BROKER_URL"
            yield (
                failing("broker", answer.reason, action)
                if isinstance(answer, Unavailable)
                else ok("broker", f"{address} answers")
            )
    except CantataError as error:
        yield failing("CANTATA_APP" if getattr(error, "source", "") == "CANTATA_APP" else "Redis", str(error))


def _port(service: tuple[str, int]) -> Check:
    (name, port), here = service, embedded.status()
    if url := here.gateway_url if name == "gateway" else here.flower_url:
        return ok(f"port of {name}", f"{url}, of the stack in {here.home}")
    if embedded.is_free(port):
        return ok(f"port of {name}", f"{port} is free")
    return degraded(
        f"port of {name}", f"{port} is taken; `submit up` takes another one, and `submit {name}` needs --port"
    )


def _code(config: str | None) -> tuple[Check, Definitions | None]:
    """Return a check of the configuration with its functions and tasks, and its definitions if they can be read."""
    try:
        path = loading.find(config)
        if path is None:
            return ok(
                "configuration", "none here: one agent on the embedded model; `submit init` makes one"
            ), loading.load(None)
        found, description = check_file(str(path), None)
        if faults := [fault for fault in found if not fault.is_warning]:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            return failing("configuration", f"{path}: {faults[0]}{more}", f"submit check {path}"), None
        return ok("configuration", f"{path}: {description}; its code can be imported"), loading.load(path)
    except CantataError as error:
        return failing("configuration", str(error).partition("\n")[0], "submit check"), None


def _models_of(definitions: Definitions) -> Iterator[Model]:
    """Yield the models of agents, synthesizers and routers."""
    named: list[str | Model | None] = []
    for agent in definitions.agents.values():
        named += agent.models or [agent.model]
    for team in definitions.teams.values():
        named += [team.synthesizer.model] if team.synthesizer else []
        named += (team.router.models or [None]) if team.router and not team.router.function else []
    yield from (each if isinstance(each, Model) else definitions.model_of(each) for each in named)


def _key(model: Model) -> Check:
    """Return a check of the key of a model, whose value is never shown; of the embedded model, of its files."""
    title = f"model {model.model}"
    if model.model.startswith("local/"):
        try:
            worker_part("embedded_model").weights()
        except CantataError as error:
            return failing(title, str(error))
        return ok(title, "the embedded model is installed")
    known = worker_part("litellm").missing_keys(model.model, model.params)
    given = {f"_{name.upper()}" for name in model.params}
    missing = [name for name in known if name not in os.environ and not any(map(name.endswith, given))]
    message, action = f"not set: {', '.join(missing)}", "set it in the environment of the agents workers"
    if any(name.endswith("_API_KEY") for name in missing):
        return failing(title, message, action)
    if missing:
        return degraded(
            title, f"{message}; it may have a default, or come from the machine: --models sends a request", action
        )
    return ok(title, "its key is set; --models sends a request")


def _answer(model: Model, definitions: Definitions) -> Check:
    """Return a check of an answer of a model."""
    from cantata.testing import run_inline

    asked = Agent(model="doctor", instructions=["{input}"], retries=0)
    models = {
        **definitions.models,
        "doctor": model.model_copy(update={"fallbacks": [], "params": {**model.params, "max_tokens": 16}}),
    }
    began = time.monotonic()
    with redirect_stderr(StringIO()):  # the log has the same error
        result = run_inline(
            TurnRequest(text="Say OK.", agent="doctor", timeout_s=CALL_TIMEOUT_S),
            definitions=definitions.model_copy(
                update={"agents": {"doctor": asked}, "models": models, "teams": {}, "chains": {}}
            ),
        )
    if result.error:
        return failing(
            f"model {model.model}", result.error.message, "correct its name, key or address, or the network to it"
        )
    return ok(f"model {model.model}", f"answered in {time.monotonic() - began:.1f} s")
