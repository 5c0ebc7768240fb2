"""The image and the Compose file: what they promise, as far as it can be held without an engine. `./run compose-test` runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import config
from orchestrator.settings import VARIABLES
from tests.acceptance.pages import blocks, lines, parse

TOP = Path(__file__).parents[3]
DEPLOY = TOP / "deploy"
FILE = DEPLOY / "docker-compose.yml"
BIN = Path(sys.executable).parent
SECRETS = {"REDIS_PASSWORD": "3a1f", "CANTATA_GATEWAY_TOKENS": '{"token-0123456789abcdef": "everyone"}', "FLOWER_BASIC_AUTH": "anna:77fe"}
STARTS = ("worker", "gateway", "flower")
PAGE = [block for block in blocks() if block.page == "docs/deploy.md"]


def compose(variables: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask Compose itself, without a .env of whoever runs this."""
    command = [str(BIN / "docker-compose"), "--env-file", os.devnull, "--file", str(FILE), *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The file, as Compose understands it."""
    read = compose(SECRETS, "config", "--format", "json")
    assert read.returncode == 0, read.stderr
    found: dict[str, Any] = json.loads(read.stdout)
    return found


@pytest.fixture(scope="module")
def ours(project: dict[str, Any]) -> dict[str, Any]:
    """The services that run our image."""
    return {name: service for name, service in project["services"].items() if name != "redis"}


def seconds(duration: str) -> float:
    """A duration in Compose's words."""
    factors = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * factors[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))


@pytest.mark.parametrize("secret", SECRETS)
def test_without_a_secret_it_refuses_and_names_the_file(secret: str) -> None:
    refused = compose({name: value for name, value in SECRETS.items() if name != secret}, "config", "--quiet")

    assert refused.returncode != 0
    assert f"{secret} is missing a value: copy deploy/.env.example to deploy/.env and fill it in" in refused.stderr


def test_the_image_is_built_once_for_all(ours: dict[str, Any]) -> None:
    assert {service["image"] for service in ours.values()} == {"cantata:0.1.0"}
    assert [name for name, service in ours.items() if "build" in service] == ["coordinator"]


def test_no_service_may_more_than_it_needs(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        limits = service["deploy"]["resources"]["limits"]

        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"memory", "pids"} <= set(limits), name
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), name
        assert service["restart"] == "unless-stopped", name
        assert not service.get("privileged"), name
        assert "network_mode" not in service, name


def test_redis_is_reached_from_inside_only_and_keeps_what_it_is_told(project: dict[str, Any]) -> None:
    redis = project["services"]["redis"]

    assert project["networks"]["store"]["internal"]
    assert list(redis["networks"]) == ["store"]
    assert "ports" not in redis
    assert [volume["target"] for volume in redis["volumes"] if volume["type"] == "volume"] == ["/data"]
    command = " ".join(redis["command"])
    for setting in ("--appendonly yes", "--maxmemory-policy noeviction", "requirepass"):
        assert setting in command
    assert SECRETS["REDIS_PASSWORD"] not in command  # a list of processes would show it


def test_what_is_published_is_published_on_this_machine_only(project: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in project["services"].items() if "ports" in service}

    assert {name: [(port["host_ip"], port["target"]) for port in ports] for name, ports in published.items()} == {
        "gateway": [("127.0.0.1", 8800)],
        "flower": [("127.0.0.1", 5555)],
    }


def test_containers_have_time_for_what_their_workers_drain(ours: dict[str, Any]) -> None:
    for name, service in ours.items():
        drain_s = float(service["environment"]["CANTATA_DRAIN_S"])

        assert seconds(service["stop_grace_period"]) >= drain_s + 10, name


def test_keys_of_models_are_seen_by_agents_only(project: dict[str, Any]) -> None:
    text = FILE.read_text()

    assert text.count("models.env, required: false") == 1
    assert text.index("\n  agents:") < text.index("models.env, required: false") < text.index("\n  tools:")
    holders = {name for name, service in project["services"].items() if "CANTATA_GATEWAY_TOKENS" in service.get("environment", {})}
    assert holders == {"gateway"}


def test_commands_and_variables_are_those_of_the_code(ours: dict[str, Any]) -> None:
    for name, service in ours.items():
        parse(list(service["command"]))

        assert service["command"][0] in STARTS
        assert {variable for variable in service["environment"] if variable.startswith("CANTATA_")} <= set(VARIABLES), name


def test_a_worker_is_named_by_its_queue_and_container(ours: dict[str, Any]) -> None:
    workers = {name: service for name, service in ours.items() if service["command"][0] == "worker"}

    assert set(workers) == {"coordinator", "agents", "tools"}
    for name, service in workers.items():
        assert service["command"][1:4] == [name, "--name", name]
        assert "hostname" not in service  # else several of a service would be taken for one


def test_each_setting_of_the_example_is_used_with_the_default_that_it_shows() -> None:
    shown = dict(re.findall(r"^(?:# )?([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    text = FILE.read_text()
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    required = set(re.findall(r"\$\{([A-Z_]+):\?", text))

    assert required == set(SECRETS) == {name for name, value in shown.items() if not value}
    assert {name: value for name, value in shown.items() if value} == defaults


def test_the_image_holds_what_it_installs_to_its_hashes() -> None:
    text = (DEPLOY / "Dockerfile").read_text()

    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?$", text, re.MULTILINE)
    fetches = [line for line in re.findall(r"pip .*?install [^&]*", text) if "--no-index" not in line]
    assert len(fetches) == 2
    assert all("--require-hashes" in line and "--only-binary :all:" in line for line in fetches)
    last = text[text.rindex("\nFROM") :]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert 'ENTRYPOINT ["submit"]' in last  # in the exec form, or SIGTERM would not reach it
    assert "pip install" not in last


def test_the_build_sees_what_the_image_copies_and_nothing_else() -> None:
    allowed = {line[1:] for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    assert {source for line in copies for source in line.split()[:-1]} == allowed
    assert all((TOP / path).exists() for path in allowed)


def test_the_image_is_of_this_release() -> None:
    version = re.search(r'__version__ = "(.*)"', (TOP / "orchestrator" / "__init__.py").read_text())
    assert version

    for name in ("docker-compose.yml", "Dockerfile", ".env.example"):
        assert set(re.findall(r"cantata:(\d[\w.]*)", (DEPLOY / name).read_text())) == {version[1]}, name


@pytest.mark.parametrize("folder", [DEPLOY, TOP / "tests" / "compose"], ids=lambda folder: folder.name)
def test_the_configuration_beside_it_has_no_fault(folder: Path) -> None:
    assert config.check_file(folder / "config" / "cantata.yaml") == []


def lint(file: Path) -> str:
    return subprocess.run([BIN / "hadolint", file], capture_output=True, text=True, timeout=50, check=False).stdout


def test_the_dockerfile_has_no_fault_that_hadolint_knows() -> None:
    assert lint(DEPLOY / "Dockerfile") == ""


def test_the_dockerfiles_of_the_page_have_none_either(tmp_path: Path) -> None:
    shown = [block for block in PAGE if block.text.startswith("FROM ")]

    assert shown
    for block in shown:
        file = tmp_path / "Dockerfile"
        file.write_text(block.text)
        assert lint(file) == ""


def healthy(heartbeat: Path, *arguments: str) -> bool:
    environment = {"PATH": os.environ["PATH"], "CANTATA_HEARTBEAT_FILE": str(heartbeat)}
    return subprocess.run([DEPLOY / "healthy", *arguments], env=environment, timeout=10, check=False).returncode == 0


def test_a_worker_is_healthy_while_its_heartbeat_is_young(tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    assert not healthy(heartbeat)

    heartbeat.touch()
    assert healthy(heartbeat)

    os.utime(heartbeat, (time.time() - 60,) * 2)
    assert not healthy(heartbeat)
    assert healthy(heartbeat, "120")


def commands(*first: str) -> list[list[str]]:
    """The command lines of the page that begin so."""
    found = [shlex.split(line, comments=True) for block in PAGE for line in lines(block) if line.startswith(first)]
    assert found
    return found


def test_the_page_says_what_compose_says_without_a_secret() -> None:
    said = compose({}, "config", "--quiet").stderr

    assert [block.text.strip() in said for block in PAGE if block.text.startswith("required variable")] == [True]


def test_compose_understands_the_commands_of_the_page() -> None:
    for _docker, _compose, _f, file, *rest in commands("docker compose "):
        assert TOP / file == FILE
        if rest[0] == "exec":
            _, service, submit, *arguments = rest
            assert (service, submit) == ("gateway", "submit")
            parse(arguments)
        else:
            told = compose(SECRETS, *rest, "--help")
            assert told.returncode == 0, f"{rest}: {told.stderr}"


def test_files_and_units_that_the_page_names_are_there() -> None:
    named = [word for line in commands("cp ", "install ", "systemd-sysusers ") for word in line if word.startswith("deploy/")]
    assert [path for path in named if path != "deploy/.env" and not (TOP / path).exists()] == []

    units = [unit for line in commands("systemctl ") for unit in line[2:]]
    copied = {Path(path).stem for path in named}
    assert units
    assert {re.sub(r"(?<=@)\d+$|\.target$", "", unit) for unit in units} <= copied
