"""`submit doctor`: checks of this machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.unit.surfaces.cli.invocation import run

TOOLS = 'tools:\n  t: {function: "mine:f"}\n'


def checks(*words: str, status: int = 0, **env: str) -> dict[str, tuple[str, str]]:
    result = run("doctor", "--json", *words, env=env)
    assert result.exit_code == status, result.output
    return {check["name"]: (check["status"], check["message"]) for check in json.loads(result.stdout)["checks"]}


@pytest.fixture
def config(folder: Path) -> Path:
    (folder / "mine.py").write_text("def f(): ...\n")
    file = folder / "own.yaml"
    file.write_text(TOOLS)
    return file


def test_a_machine_without_faults_has_status_0(config: Path) -> None:
    found = checks("--config", str(config))

    assert list(found) == ["Python", "packages", "Redis", "port of flower", "port of gateway", "configuration"]
    assert found["configuration"] == ("ok", f"{config}: 1 tool; its code can be imported")
    assert "start their own" in found["Redis"][1]


def test_code_that_cannot_be_imported_is_failing_with_its_line(config: Path) -> None:
    (config.parent / "mine.py").write_text("import no_such_module\ndef f(): ...\n")

    status, message = checks("--config", str(config), status=1)["configuration"]

    assert status == "failing"
    assert "line 2" in message
    assert "no_such_module" in message


def test_a_redis_that_does_not_answer_is_failing_without_its_password(config: Path) -> None:
    result = run("doctor", "--config", str(config), env={"REDIS_URL": "redis://:geheim@127.0.0.1:1"})

    assert result.exit_code == 1
    assert "failing   Redis " in result.stdout
    assert "geheim" not in result.output


def test_an_application_that_cannot_be_imported_is_no_fault_of_redis(config: Path) -> None:
    found = checks("--config", str(config), status=1, CANTATA_APP="shpo.celery:app")

    assert "Redis" not in found
    assert found["CANTATA_APP"][0] == "failing"
    assert "'shpo.celery:app' cannot be imported" in found["CANTATA_APP"][1]


def test_a_taken_port_is_reported(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("cantata.operation.embedded.DEFAULT_PORTS", {"gateway": port})
        assert checks("--config", str(config))["port of gateway"][0] == "degraded"


def test_the_embedded_model_is_checked_without_a_call(config: Path) -> None:
    config.write_text(TOOLS + "agents: {a: {model: local/smollm2}}\n")

    assert checks("--config", str(config))["model local/smollm2"][0] == "ok"


def test_the_models_of_routers_and_synthesizers_are_checked_and_what_a_model_is_given_is_not_missing(
    config: Path,
) -> None:
    config.write_text("""\
models: {sure: {model: azure/x, params: {api_base: "https://h", api_version: "1"}}}
agents: {a: {models: [sure]}, b: {model: local/smollm2}}
teams:
  all: {mode: broadcast, agents: [a, b], synthesizer: {model: ollama/llama3, prompt: "{agent_responses}"}}
""")

    found = checks("--config", str(config), AZURE_API_KEY="x")

    assert [found[f"model {name}"][0] for name in ("azure/x", "local/smollm2", "ollama/llama3")] == [
        "ok",
        "ok",
        "degraded",
    ]
