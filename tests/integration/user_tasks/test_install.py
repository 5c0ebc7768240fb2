"""`install`: runs from a project's own code, and nothing in the project changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery, signals
from celery.utils.dispatch import Signal
from redis import Redis

from cantata import install
from cantata.client.client import Client
from cantata.client.installation import Installation
from cantata.engine.engine import run_id_of
from cantata.errors import ConfigError, UnavailableError
from cantata.flows.definitions import Chain, Definitions
from cantata.flows.wire import ChainNode
from tests.integration.user_tasks.conftest import HERE, PATIENCE_S, Shop, ask, definitions, tool, url_of
from tests.waiting import until

SIGNALS = [each for each in vars(signals).values() if isinstance(each, Signal)]


@pytest.fixture
def installed(client: Client, shop: Shop) -> Iterator[Installation]:
    """Cantata in the application of the project."""
    made = install(shop.app, definitions(), redis_url=client.redis_url)
    yield made
    made.client.close()


def test_to_install_connects_to_nothing_and_changes_nothing() -> None:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/1", set_as_current=False)

    @app.task(name="shop.one")
    def one() -> None: ...

    def state() -> tuple[object, ...]:
        receivers = [each.receivers[:] for each in SIGNALS]
        return (
            app.conf.table(with_defaults=True),
            sorted(app.tasks),
            receivers,
            type(app.backend),
            vars(app.amqp).copy(),
        )

    before = state()
    installed = install(app, definitions())

    assert state() == before
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        installed.client  # noqa: B018  # connected when it is first used


def test_without_a_redis_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    app = Celery("shop", broker="amqp://127.0.0.1:1//", set_as_current=False)

    with pytest.raises(UnavailableError, match="REDIS_URL"):
        install(app).client  # noqa: B018  # as above


def test_the_client_uses_the_broker_of_the_application(installed: Installation, shop: Shop) -> None:
    assert ask(installed.client, tool("a", "add", a=1)).final_output == 2
    assert installed.client.app.conf.event_exchange == shop.app.conf.event_exchange
    assert installed.client is installed.client


def test_events_of_both_are_in_one_place(installed: Installation, shop: Shop) -> None:
    seen: set[str] = set()

    def is_seen() -> bool:
        ask(installed.client, tool("a", "add", a=1))
        return {"run.start", "shop.tasks.add"} <= seen

    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(
            connection, handlers={"task-received": lambda event: seen.add(event["name"])}
        )
        capture = threading.Thread(target=receiver.capture, kwargs={"wakeup": False}, daemon=True)
        capture.start()
        until(is_seen, "events of both")
        receiver.should_stop = True
        ask(installed.client, tool("a", "add", a=1))
        capture.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("name", "given", "named"), [("row", ((), {"a": 5}), "row"), ("clerk", (("hello",), {}), "agent")]
)
def test_a_task_of_the_application_submits_a_run_and_does_not_wait(
    installed: Installation, client: Client, name: str, given: tuple[tuple[str, ...], dict[str, int]], named: str
) -> None:
    submit = installed.task(name)

    first = submit.apply(*given, task_id=f"{name}-1")
    again = submit.apply(*given, task_id=f"{name}-1")

    assert first.get() == again.get(), "the same task id gives the same run"
    assert submit.name == f"cantata.{name}"
    assert client.run(first.get()).status() in ("accepted", "running", "succeeded", "failed")


def test_a_task_that_is_called_as_a_function_submits_a_run_each_time(installed: Installation) -> None:
    submit = installed.task("row", name="shop.called")

    assert submit(a=1) != submit(a=2)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("rwo", ((), {}), "the configuration has no chain, agent or team 'rwo'; did you mean 'row'?"),
        ("clerk", ((), {"a": 1}), "agent 'clerk' gets one text"),
    ],
)
def test_a_task_that_can_submit_nothing_tells_why(
    installed: Installation, name: str, given: tuple[tuple[str, ...], dict[str, int]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        installed.task(name, name=f"shop.{name}").apply(*given).get()


def test_a_chain_refuses_a_text_at_the_call_and_without_a_connection() -> None:
    chain = Chain(
        inputs={"order_id": "string"}, entry_node="a", nodes=[ChainNode(node_id="a", kind="tool", name="add")]
    )
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    order = install(app, Definitions(chains={"order": chain})).task("order")

    with pytest.raises(TypeError, match=r"chain 'order' takes keyword arguments only: order\.delay\(order_id=\.\.\.\)"):
        order.delay("P4")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("task_always_eager = True", "task_always_eager"),
        ("result_serializer = 'pickle'", "stores results with pickle"),
        (
            "result_serializer = 'shop_text'",
            "stores results with 'shop_text', which cannot be read here: it is not registered",
        ),
        (
            "result_serializer = 'yaml'",
            "stores results with 'yaml', which cannot be read here: Refusing to deserialize",
        ),
        ("result_backend = 'db+sqlite:///results'", "needs a package: No module named 'sqlalchemy'"),
    ],
)
def test_workers_refuse_an_application_whose_tasks_cannot_be_steps(
    tmp_path: Path, valkey: Redis, settings: str, message: str
) -> None:
    url = url_of(valkey, 9)
    text = f"from celery import Celery\napp = Celery('odd', broker={url!r}, backend={url!r})\napp.conf.{settings}\n"
    (tmp_path / "odd_app.py").write_text(text)

    refused = _worker(tmp_path, url, "--app", "odd_app:app")

    assert refused.returncode != 0
    assert message in refused.stderr


@pytest.mark.parametrize(
    ("app", "message"),
    [("no_such.module:app", "cannot be imported"), ("odd_app:settings", "expected a Celery application")],
)
def test_workers_say_that_they_cannot_find_the_application(
    tmp_path: Path, valkey: Redis, app: str, message: str
) -> None:
    (tmp_path / "odd_app.py").write_text("settings = {}\n")

    refused = _worker(tmp_path, url_of(valkey, 9), "--app", app)

    assert refused.returncode != 0
    assert message in refused.stderr


def test_a_command_says_that_it_needs_the_application(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("tools: {add: {task: shop.tasks.add}}\n")
    (tmp_path / "row.yaml").write_text("entry_node: a\nnodes: [{node_id: a, kind: tool, name: add}]\n")

    command = [sys.executable, "-m", "cantata.surfaces.cli", "chain", "row.yaml", "--config", "shop.yaml"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parents[2])}
    refused = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert refused.returncode == 2
    assert "tool 'add' is a task of your Celery application: name that in CANTATA_APP" in refused.stderr
    assert not (tmp_path / ".cantata").exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_while_another_thread_connects_gets_a_client_of_its_own(
    installed: Installation,
) -> None:
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with installed.async_client._lock:
            is_held.set()
            may_end.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        os._exit(0 if installed.async_client._lock.acquire(timeout=5) else 1)
    _, status = os.waitpid(child, 0)
    may_end.set()
    thread.join()

    assert status == 0


PROGRAM = """
import sys
from celery import Celery
from cantata import install
app = Celery("shop", broker="redis://127.0.0.1:1/0")
client = install(app, redis_url=sys.argv[1]).client
print(client.submit_chain({"nodes": [{"node_id": "a", "kind": "wait"}], "entry_node": "a"}, idempotency_key="quiet").run_id)
"""


def test_standard_output_is_the_programs_own(client: Client, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-c", PROGRAM, client.redis_url]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert done.stdout == f"{run_id_of('quiet')}\n"
    assert "dispatch_failed" in done.stderr
    client.run(done.stdout.strip()).cancel()


def _worker(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cantata.surfaces.cli", "worker", *options]
    environment = {"REDIS_URL": url, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parents[2])}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
