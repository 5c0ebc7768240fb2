"""A user's program in an environment of its own: prints as JSON what client and commands give it, and versions of packages."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

from cantata import AsyncClient, Client, ConfigError, MemoryBank, UnknownRunError, install
from cantata.surfaces.cli.main import submit

PATIENCE_S = 60.0
CONFIG = "desk.yaml"
NAME = uuid4().hex  # of a session, a key and a task, which other programs have too
COUNT = {"node_id": "count", "kind": "tool", "name": "count", "input_map": {"text": "input.text"}}
GATE = {"node_id": "gate", "kind": "wait"}
FAN: dict[str, Any] = {
    "entry_node": "split",
    "nodes": [
        {"node_id": "split", "kind": "map", "items_path": "input.texts", "map_node": "count", "next_node": "all"},
        {**COUNT, "input_map": {"text": "_item"}},
        {"node_id": "all", "kind": "tool", "name": "total", "input_map": {"counts": "split"}},
    ],
}


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition."""
    give_up = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return found


def waiting(client: Client) -> Any:
    """Return a run that waits for its signal."""
    run = client.submit_chain({"entry_node": "gate", "nodes": [GATE]})
    until(lambda: run.steps(["gate"]).get("gate") and run.steps(["gate"])["gate"].state == "waiting_signal")
    return run


def retried(client: Client) -> Any:
    """Cancel a run amid its steps, and retry it: the client sends several steps at once."""
    hold = {"node_id": "hold", "kind": "tool", "name": "hold", "input_map": {"text": "_item"}}
    each = {"node_id": "each", "kind": "map", "items_path": "input.texts", "map_node": "hold"}
    run = client.submit_chain({"entry_node": "each", "nodes": [each, hold]}, initial_input={"texts": ["a", "b", "c"]})
    until(
        lambda: [
            event
            for event in client.run(run.run_id).log(timeout_s=0.0)
            if event.type == "started" and event.step != "@start"
        ]
    )
    run.cancel()
    Path("released").touch()
    return client.retry(run.run_id).result(PATIENCE_S).model_dump()["outputs"]["each"]


def refusal(call: Callable[[], object]) -> str:
    """Return the error that a call raises."""
    try:
        call()
    except (ConfigError, UnknownRunError) as error:
        return type(error).__name__
    return ""


def blocking(client: Client) -> dict[str, object]:
    """Use every part of the client."""
    chain = client.submit_chain({"entry_node": "count", "nodes": [COUNT]}, initial_input={"text": "a b c"})
    fan = client.submit_chain(FAN, initial_input={"texts": ["a", "b c", "d e f"]})
    turn = client.submit_turn("hello", agent="echo", session=NAME, idempotency_key=NAME)
    again = client.submit_turn("and then", agent="echo", session=NAME, send_history=True)
    panel = client.submit_turn("hello", team="panel")
    signalled, cancelled = waiting(client), waiting(client)
    signals = signalled.signal("gate", {"go": True})
    found = {
        "chain": chain.result(PATIENCE_S).outputs,
        "events": [[event.node_id, event.phase] for event in chain.events()],
        "log": [event.type for event in chain.log()][-1],
        "fan": fan.result(PATIENCE_S).outputs["all"],
        "fork": client.fork(fan.run_id, "split", changes={"input.texts": ["a a", "b b"]})
        .result(PATIENCE_S)
        .model_dump()["outputs"]["all"],
        "turn": turn.result(PATIENCE_S).output,
        "history": [str(again.result(PATIENCE_S).output).splitlines()[number] for number in (0, -1)],
        "panel": panel.result(PATIENCE_S).status,
        "signal": [signals, signalled.result(PATIENCE_S).outputs],
        "cancel": [cancelled.cancel(), cancelled.result(PATIENCE_S).success],
        "retry": retried(client),
        "status": client.run(turn.run_id).status(),
        "same key": client.submit_turn("hello", agent="echo", session=NAME, idempotency_key=NAME).run_id == turn.run_id,
        "session": len(list(client.sessions.history(NAME))),
        "refusals": [refusal(lambda: client.run("nobody")), refusal(lambda: client.submit_turn("x", agent="nobody"))],
        "logs": [line.event for line in chain.logs()],
        "runs": len(client.runs(most=100)) > 5,
    }
    with MemoryBank() as bank:
        bank.store_memory("colour", "blue", namespace="likes")
        found["memory"] = bank.retrieve_memory("colour", namespace="likes")
    return found


def keep(client: Client) -> None:
    """Wait until Redis has all on disk: a connection waits for what it wrote itself, and so for all before."""
    with client.redis.pipeline(transaction=False) as pipe:
        pipe.set("now", "1", ex=60)
        pipe.waitaof(1, 0, 5000)
        pipe.execute()


def restarted(client: Client) -> dict[str, object]:
    """Kill Redis while a run waits; the stack starts it again."""
    run = waiting(client)
    keep(client)
    os.kill(int(client.redis.info()["process_id"]), signal.SIGKILL)
    return {"signal": run.signal("gate", "after it"), "outputs": run.result(PATIENCE_S).outputs}


async def coroutines(url: str) -> dict[str, object]:
    """Do the same in coroutines."""
    async with asyncio.timeout(PATIENCE_S), AsyncClient(url, config=CONFIG) as client:
        chains = [
            await client.submit_chain({"entry_node": "count", "nodes": [COUNT]}, initial_input={"text": "a " * number})
            for number in range(1, 6)
        ]
        turn = await client.submit_turn("hello", agent="echo")
        gate = await client.submit_chain({"entry_node": "gate", "nodes": [GATE]})
        result = asyncio.create_task(gate.result())
        outputs = [
            response.outputs["count"] for response in await asyncio.gather(*(chain.result() for chain in chains))
        ]
        events = [event.type async for event in turn.events()]
        server = await client.call(lambda blocking: int(blocking.redis.info()["process_id"]))
        await client.call(keep)
        os.kill(server, signal.SIGKILL)
        signalled = await gate.signal("gate", "go")
        return {
            "outputs": outputs,
            "events": [events[0], events[-1]],
            "turn": (await turn.result()).output,
            "gate": [signalled, (await result).outputs],
        }


def version_of(package: str) -> str:
    """Return the version of a package; "none" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def installed(url: str) -> dict[str, object] | None:
    """Submit from an application of the user's; None without Celery."""
    if version_of("celery") == "none":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python, in an old Celery
        from celery import Celery  # noqa: PLC0415  # it may not be installed

        app = Celery("shop", broker=url, backend=url)
        before = app.conf.humanize()
        cantata = install(app, config=CONFIG)
        report = cantata.task("adding")
        run = cantata.client.run(report.apply(kwargs={"words": "one two"}, task_id=NAME).get())
        answer = run.result(PATIENCE_S).model_dump()["outputs"]
        cantata.client.close()
        return {"outputs": answer, "task": report.name, "unchanged": app.conf.humanize() == before}


def printed(*words: str) -> str:
    """Return what `submit` prints, run in this process: one of its own takes a second."""
    with redirect_stdout(io.StringIO()) as out:
        status = submit.main(words, standalone_mode=False)
    assert not status, words
    return out.getvalue()


def commands(run_id: str) -> dict[str, str]:
    """Use commands that read a run, a turn that they submit, and the fleet."""
    return {
        "list": printed("runs", "list", "--json"),
        "show": printed("runs", "show", run_id),
        "logs": printed("logs", run_id),
        "turn": printed("turn", "hello", "--agent", "echo", "--config", CONFIG),
        "status": printed("status", "--json"),
    }


def main() -> None:
    """Print all of it; the first argument is a run of a chain."""
    warnings.simplefilter("ignore", ResourceWarning)  # redis-py 5 leaves sockets that did not connect to the collector
    url = os.environ["REDIS_URL"]
    with Client(config=CONFIG) as client:
        found: dict[str, object] = {"blocking": blocking(client), "restarted": restarted(client)}
    found["coroutines"] = asyncio.run(coroutines(url))
    found["installed"] = installed(url)
    found["commands"] = commands(sys.argv[1])
    found["versions"] = {name: version_of(name) for name in sys.argv[2:]}
    print(json.dumps(found))  # noqa: T201  # its answer


if __name__ == "__main__":
    main()
