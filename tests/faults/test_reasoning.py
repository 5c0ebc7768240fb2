"""A worker that is killed between two rounds of a reasoning agent changes nothing: the next request has the same reasoning."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.operation.embedded import Stack
from tests.faults.processes import family
from tests.integration import model_upstream
from tests.integration.model_upstream import RESULT, cell, providers, read, upstream
from tests.waiting import until

FORMS = [name for name in providers() if name != "vertex"]  # it signs in at Google; its replies are Gemini's
PATIENCE_S = 120.0


@pytest.mark.slow("a stack starts, and its agents worker twice, with LiteLLM")
@pytest.mark.thorough("test_replies.py reads each form back from the ledger in one process")
@pytest.mark.timeout(600)
def test_the_request_after_a_kill_is_that_before_it_for_each_form_of_reasoning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {
        f"{found.provider}/{variant}/{stream}": (found, stream)
        for provider in FORMS
        for variant, name in enumerate(
            each for each in read(provider)["replies"] if each.startswith("reasoning with tools")
        )
        for found in [cell(provider, name)]
        for stream in (False, True)
    }
    (tmp_path / "weather.py").write_text(f"def get_weather(city: str) -> str:\n    return {RESULT!r}\n")
    with upstream() as server:
        server.answer_where_named({name: found for name, (found, _) in cells.items()})
        agents: dict[str, Any] = {}
        for number, (found, stream) in enumerate(cells.values()):
            for variable, value in found.environment.items():
                monkeypatch.setenv(variable, value.format(url=server.url))
            params = {
                key: value.format(url=server.url) if isinstance(value, str) else value
                for key, value in found.params.items()
            }
            agents[f"a{number}"] = {
                "model": found.model,
                "params": params,
                "stream": stream,
                "retries": 0,
                "tools": ["get_weather"],
            }
        config = {"version": 1, "tools": {"get_weather": {"function": "weather:get_weather"}}, "agents": agents}
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        with (
            Stack.start(tmp_path / "home", tools=2) as stack,
            Client(stack.url, config=tmp_path / "config.yaml") as client,
        ):
            runs = {
                name: client.submit_turn(f"Is it sunny? {name}", agent=f"a{number}")
                for number, name in enumerate(cells)
            }
            until(lambda: server.later.keys() == cells.keys(), "the second round of all", PATIENCE_S)

            worker = next(each.pid for each in stack.processes() if each.alive and "agents" in each.queues)
            for pid in family(worker):
                os.kill(pid, signal.SIGKILL)
            server.may_go_on.set()

            results = {name: run.result(PATIENCE_S) for name, run in runs.items()}

    assert {name: result.output for name, result in results.items()} == dict.fromkeys(cells, "It is sunny in Paris.")
    assert {name: len(requests) for name, requests in server.later.items()} == dict.fromkeys(cells, 2)
    assert [name for name, (before, after) in server.later.items() if before != after] == []
    for name, (found, _) in cells.items():
        assert [part for part in found.sent_back if not model_upstream.has_part(server.later[name][1], part)] == [], (
            name
        )
