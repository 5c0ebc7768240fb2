"""The image and the Compose files: their promises, as far as a test can hold them without an engine. `./run compose-test` runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cantata.config import loading
from cantata.settings import VARIABLES
from cantata.surfaces.gateway.access import read_tokens
from tests.acceptance.pages import blocks, lines, parse

TOP = Path(__file__).parents[3]
DEPLOY = TOP / "deploy"
FILE = TOP / "docker-compose.yml"
PRODUCTION = DEPLOY / "compose.production.yml"
FILES = {"development": (FILE,), "production": (FILE, PRODUCTION)}
BIN = Path(sys.executable).parent
SECRETS = {
    "REDIS_PASSWORD": "3a1f",
    "CANTATA_GATEWAY_TOKENS": '{"token-0123456789abcdef": "everyone"}',
    "FLOWER_BASIC_AUTH": "anna:77fe",
}
STARTS = ("worker", "gateway", "flower")
PAGE = [block for block in blocks() if block.page == "docs/deploy.md"]


def compose(
    variables: Mapping[str, str], *arguments: str, files: Sequence[Path] = (FILE,), env_file: str | Path = os.devnull
) -> subprocess.CompletedProcess[str]:
    """Ask Compose itself, without a .env of whoever runs this."""
    named = [word for file in files for word in ("--file", str(file))]
    command = [str(BIN / "docker-compose"), "--env-file", str(env_file), *named, *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=50, check=False)


def read(variables: Mapping[str, str], **kwargs: Any) -> dict[str, Any]:
    """The project, as Compose understands it; nothing may be missing, not even with a warning."""
    told = compose(variables, "config", "--format", "json", **kwargs)
    assert (told.returncode, told.stderr) == (0, "")
    found: dict[str, Any] = json.loads(told.stdout)
    return found


@pytest.fixture(scope="module")
def development() -> dict[str, Any]:
    """`docker compose up` in a fresh checkout: no variable, no .env."""
    return read({})


@pytest.fixture(scope="module")
def production() -> dict[str, Any]:
    """The same with the file for production, and its secrets."""
    return read(SECRETS, files=FILES["production"])


@pytest.fixture(params=FILES)
def project(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each of the two."""
    found: dict[str, Any] = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def ours(project: dict[str, Any]) -> dict[str, Any]:
    """The services that run our image."""
    return {name: service for name, service in project["services"].items() if name != "redis"}


def seconds(duration: str) -> float:
    """A duration in Compose's words."""
    factors = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * factors[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))


def required(file: Path) -> set[str]:
    """The variables without which Compose refuses a file."""
    return set(re.findall(r"\$\{([A-Z_]+):?\?", file.read_text()))


def test_development_requires_no_variable_and_no_file(development: dict[str, Any]) -> None:
    assert required(FILE) == set()
    assert development["services"].keys() == {"redis", "coordinator", "agents", "tools", "gateway", "flower"}


def test_paths_are_relative_to_the_first_file_wherever_compose_is_run(project: dict[str, Any]) -> None:
    binds = {
        volume["source"]
        for service in project["services"].values()
        for volume in service["volumes"]
        if volume["type"] == "bind"
    }

    assert binds == {str(DEPLOY / "config")}
    assert project["services"]["coordinator"]["build"] == {"context": str(TOP), "dockerfile": "deploy/Dockerfile"}
    assert (TOP / project["services"]["coordinator"]["build"]["dockerfile"]).is_file()


def test_development_lets_everybody_of_this_machine_in_and_nobody_else(development: dict[str, Any]) -> None:
    for name in ("gateway", "flower"):
        service = development["services"][name]

        assert service["environment"]["CANTATA_PUBLISHED_ON_LOOPBACK"] == "1"
        assert [service["environment"][secret] for secret in SECRETS if secret in service["environment"]] == [None], (
            "not set at all"
        )
        assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}


@pytest.mark.parametrize("variable", ["CANTATA_BIND", "CANTATA_GATEWAY_PUBLISHED", "CANTATA_FLOWER_PUBLISHED"])
def test_no_variable_publishes_development_to_others(variable: str) -> None:
    published = compose(
        {variable: "0.0.0.0:8800" if variable.endswith("PUBLISHED") else "0.0.0.0"}, "config", "--format", "json"
    )

    if published.returncode == 0:
        services = json.loads(published.stdout)["services"].values()
        assert {port["host_ip"] for service in services for port in service.get("ports", ())} == {"127.0.0.1"}


@pytest.mark.parametrize("secret", SECRETS)
def test_production_refuses_without_a_secret_and_says_where_to_get_it(secret: str) -> None:
    others = {name: value for name, value in SECRETS.items() if name != secret}

    for variables in (others, {**others, secret: ""}):
        refused = compose(variables, "config", "--quiet", files=FILES["production"])

        assert refused.returncode != 0
        assert f"{secret} is missing a value: run ./run compose-env, which writes .env" in refused.stderr


def test_production_has_no_secret_of_development(development: dict[str, Any], production: dict[str, Any]) -> None:
    assert required(PRODUCTION) == set(SECRETS)
    (default,) = re.findall(r"redis://:\$\{REDIS_PASSWORD:-(\w+)\}", FILE.read_text())
    for name, service in production["services"].items():
        assert default in str(development["services"][name]["environment"])
        assert default not in str(service["environment"]), name
        assert "CANTATA_PUBLISHED_ON_LOOPBACK" not in service["environment"], name


def test_production_starts_again_after_a_reboot_and_survives_the_loss_of_a_worker(production: dict[str, Any]) -> None:
    assert {service["restart"] for service in production["services"].values()} == {"unless-stopped"}
    assert {name: production["services"][name]["deploy"]["replicas"] for name in ("agents", "tools")} == {
        "agents": 2,
        "tools": 2,
    }


def test_as_many_containers_are_started_as_the_page_says(
    project: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    page = (TOP / "docs" / "deploy.md").read_text()
    is_production = project is request.getfixturevalue("production")
    table = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*)[^|]*\| ([^|]*) \|", page.partition("| service | containers |")[2], re.MULTILINE
    )
    told: dict[str, int] = {}
    for names, count in table:
        least, *more = map(int, re.findall(r"\b\d\b", count))
        told |= dict.fromkeys(re.findall(r"\w+", names), more[0] if more and is_production else least)

    assert {name: told[name] for name in project["services"]} == {
        name: service["deploy"].get("replicas", 1) for name, service in project["services"].items()
    }
    assert told["coordinator"] == 2


def test_production_is_published_where_it_is_told() -> None:
    services = read({**SECRETS, "CANTATA_BIND": "192.0.2.1"}, files=FILES["production"])["services"]

    published = {
        name: [(port["host_ip"], port["target"]) for port in service.get("ports", ())]
        for name, service in services.items()
    }
    assert {name: ports for name, ports in published.items() if ports} == {
        "gateway": [("192.0.2.1", 8800)],
        "flower": [("192.0.2.1", 5555)],
    }


def test_a_line_of_env_makes_production_the_usual() -> None:
    (line,) = re.findall(r"^# (COMPOSE_FILE=.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE)
    named = line.partition("=")[2].split(":")

    assert [TOP / name for name in named] == list(FILES["production"])
    assert f"\necho '{line}' >> .env" in (TOP / "docs" / "deploy.md").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what `./run compose-env` and Compose read."""
    (tmp_path / "deploy").mkdir()
    for name in ("run", "docker-compose.yml", "deploy/compose.production.yml", "deploy/.env.example"):
        shutil.copy(TOP / name, tmp_path / name)
    return tmp_path


def make_env(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "run", "compose-env"], cwd="/", capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_compose_env_makes_all_secrets_and_no_two_checkouts_have_the_same(
    files: Sequence[Path], checkout: Path
) -> None:
    seen = []
    for _ in range(2):
        (checkout / ".env").unlink(missing_ok=True)
        made = make_env(checkout)
        assert (made.returncode, made.stdout) == (0, "")
        assert stat.S_IMODE((checkout / ".env").stat().st_mode) == 0o600

        services = read({}, files=[checkout / file.relative_to(TOP) for file in files], env_file=checkout / ".env")[
            "services"
        ]

        password = services["redis"]["environment"]["REDISCLI_AUTH"]
        tokens = services["gateway"]["environment"]["CANTATA_GATEWAY_TOKENS"]
        login = services["flower"]["environment"]["FLOWER_BASIC_AUTH"]
        assert {service["environment"].get("REDIS_URL") for service in services.values()} == {
            None,
            f"redis://:{password}@redis:6379/0",
        }
        assert len(read_tokens(tokens, "tokens")) == 1
        (token,) = json.loads(tokens)
        secrets = [password, token, login.removeprefix("operator:")]
        assert all(re.fullmatch("[0-9a-f]{48}", secret) for secret in secrets), (
            "letters and digits only: one is part of an address"
        )
        assert not any(secret in made.stderr for secret in secrets)
        seen += secrets
    assert len(set(seen)) == 6


def test_compose_env_overwrites_no_secrets_that_are_in_use(checkout: Path) -> None:
    (checkout / ".env").write_text("mine")

    made = make_env(checkout)

    assert (made.returncode, made.stderr) == (3, "run: .env exists already; delete it to have new secrets written.\n")
    assert (checkout / ".env").read_text() == "mine"


def test_secrets_are_kept_out_of_version_control_and_out_of_the_image() -> None:
    assert {".env", "models.env"} <= set((TOP / ".gitignore").read_text().splitlines())
    assert (TOP / ".dockerignore").read_text().splitlines()[1] == "*"


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
        assert service["restart"] in ("on-failure", "unless-stopped"), name
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
    assert seconds(redis["stop_grace_period"]) >= 60  # it writes its log out
    assert redis["environment"]["REDISCLI_AUTH"] not in command  # a list of processes would show it


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
    assert "models.env" not in PRODUCTION.read_text()
    holders = {
        name
        for name, service in project["services"].items()
        if "CANTATA_GATEWAY_TOKENS" in service.get("environment", {})
    }
    assert holders == {"gateway"}


def test_commands_and_variables_are_those_of_the_code(ours: dict[str, Any]) -> None:
    for name, service in ours.items():
        parse(list(service["command"]))

        assert service["command"][0] in STARTS
        assert {variable for variable in service["environment"] if variable.startswith("CANTATA_")} <= set(VARIABLES), (
            name
        )


def test_a_worker_is_named_by_its_queue_and_container(ours: dict[str, Any]) -> None:
    workers = {name: service for name, service in ours.items() if service["command"][0] == "worker"}

    assert set(workers) == {"coordinator", "agents", "tools"}
    for name, service in workers.items():
        assert service["command"][1:4] == [name, "--name", name]
        assert "hostname" not in service  # else several of a service would be taken for one


def test_each_setting_of_the_example_is_used_with_the_default_that_it_shows() -> None:
    shown = dict(re.findall(r"^(?:# )?([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", FILE.read_text() + PRODUCTION.read_text()))

    assert set(SECRETS) == {name for name, value in shown.items() if not value}
    assert {name: value for name, value in shown.items() if value and name != "COMPOSE_FILE"} == {
        name: value for name, value in defaults.items() if name not in SECRETS
    }


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
    version = re.search(r'__version__ = "(.*)"', (TOP / "orchestrator" / "cantata" / "__init__.py").read_text())
    assert version

    for file in (FILE, DEPLOY / "Dockerfile", DEPLOY / ".env.example"):
        assert set(re.findall(r"cantata:(\d[\w.]*)", file.read_text())) == {version[1]}, file


@pytest.mark.parametrize("folder", [DEPLOY, TOP / "tests" / "compose"], ids=lambda folder: folder.name)
def test_the_configuration_beside_it_has_no_fault(folder: Path) -> None:
    loading.load_sound(folder / "config" / "cantata.yaml")


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
    said = compose({}, "config", "--quiet", files=FILES["production"]).stderr

    assert [block.text.strip() in said for block in PAGE if block.text.startswith("required variable")] == [True]


def test_compose_understands_the_commands_of_the_page() -> None:
    for _docker, _compose, *rest in commands("docker compose "):
        if rest[0] == "exec":
            _, service, submit, *arguments = rest
            assert (service, submit) == ("gateway", "submit")
            parse(arguments)
        else:
            told = compose(SECRETS, *rest, "--help")
            assert told.returncode == 0, f"{rest}: {told.stderr}"


def test_files_and_units_that_the_page_names_are_there() -> None:
    named = [
        word for line in commands("cp ", "install ", "systemd-sysusers ") for word in line if word.startswith("deploy/")
    ]
    assert [path for path in named if not (TOP / path).exists()] == []

    units = [unit for line in commands("systemctl ") for unit in line[2:]]
    copied = {Path(path).stem for path in named}
    assert units
    assert {re.sub(r"(?<=@)\d+$|\.target$", "", unit) for unit in units} <= copied
