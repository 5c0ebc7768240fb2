"""The page of tests is a user's project: its own pytest runs it, with the installed plugin, and finds the fault in a worse copy."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.pages import Block, blocks

PAGE = [block for block in blocks() if block.page == "docs/testing.md"]
SAFE = (
    '    if order not in charged():\n        with CHARGES.open("a") as file:\n            file.write(f"{order}\\n")\n'
)
UNSAFE = '    with CHARGES.open("a") as file:\n        file.write(f"{order}\\n")\n'
SETTLED = ', "1.pay": settle'
LAZY = {"celery", "cantata.client", "litellm", "pydantic", "redis"}
"""Modules that a suite without our fixtures does not load."""

pytestmark = pytest.mark.timeout(400)


def files(*names: str) -> list[Block]:
    found = [block for block in PAGE if block.file and (block.file in names or not names)]
    assert len(found) >= len(names)
    return found


def write(folder: Path, shown: list[Block]) -> None:
    for block in shown:
        (folder / str(block.file)).write_text(block.text)


def run_pytest(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, int], str]:
    """Run a project's own pytest, with options of Python; return its status, how many tests ended in which way, and its output."""
    foreign = ("PYTEST", "CANTATA_", "OPENAI_")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    command = [sys.executable, *options, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    counts = {
        way: int(count)
        for count, way in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", done.stdout.splitlines()[-1])
    }
    return done.returncode, counts, done.stdout + done.stderr


@pytest.mark.slow("runs a project of tests with a stack of its own")
def test_the_project_of_the_page_passes(tmp_path: Path) -> None:
    write(tmp_path, files())

    status, counts, output = run_pytest(tmp_path, "--deselect=test_crashes.py")

    assert (status, counts) == (0, {"passed": 19}), output


@pytest.mark.slow("a kill at a point, and a stack of its own")
def test_a_step_that_runs_at_most_once_without_a_signal_is_found(tmp_path: Path) -> None:
    write(tmp_path, files("expense.py", "expense.yaml", "test_expense_crashes.py"))
    test = tmp_path / "test_expense_crashes.py"
    assert SETTLED in test.read_text()
    test.write_text(test.read_text().replace(SETTLED, ""))

    status, counts, output = run_pytest(tmp_path, "-k", "tool-finished")

    shown = next(block for block in PAGE if block.language == "text" and "at most once" in block.text)
    assert (status, counts) == (1, {"failed": 1}), output
    assert shown.text.strip() in output


@pytest.mark.slow("a stack of `submit up`")
def test_the_model_server_of_the_page(tmp_path: Path) -> None:
    write(tmp_path, files("shop.py", "shop.yaml", "answers.yaml"))
    lines = next(block for block in PAGE if block.language == "sh" and "cantata.testing" in block.text).text
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("CANTATA_", "OPENAI_", "REDIS_URL"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    done = subprocess.run(
        lines.replace("8000", port),
        shell=True,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert f"http://127.0.0.1:{port}/v1" in done.stdout
    assert "Tea costs 4 EUR." in done.stdout


@pytest.mark.slow("kills a worker at each point that the flow reaches")
def test_a_safe_flow_survives_a_kill_at_each_point(tmp_path: Path) -> None:
    write(tmp_path, files("shop.py", "shop.yaml", "test_crashes.py"))

    status, counts, output = run_pytest(tmp_path, "test_crashes.py")

    assert (status, sorted(counts)) == (0, ["passed", "skipped"]), output
    assert counts["passed"] >= 8, output


@pytest.mark.slow("kills a worker at each time that the flow reaches a point")
def test_a_tool_that_writes_twice_is_found(tmp_path: Path) -> None:
    write(tmp_path, files("shop.py", "shop.yaml", "test_crashes.py"))
    shop = tmp_path / "shop.py"
    assert SAFE in shop.read_text()
    shop.write_text(shop.read_text().replace(SAFE, UNSAFE))

    status, counts, output = run_pytest(tmp_path, "test_crashes.py", "-k", "tool-")

    shown = next(block for block in PAGE if block.language == "text")
    assert (status, counts) == (1, {"passed": 1, "failed": 1}), output
    assert shown.text.strip() in output


def test_a_suite_without_the_fixtures_loads_nothing_for_them(tmp_path: Path) -> None:
    code = "import json, sys\n\ndef test_it():\n    print(json.dumps(sorted(sys.modules)))\n"
    (tmp_path / "test_plain.py").write_text(code)

    status, _, output = run_pytest(
        tmp_path, "-s", "-W", "error", options=("-s",)
    )  # with an option of Python it starts from nothing

    found = re.search(r'\[".*"\]', output)
    assert found, output
    loaded = set(json.loads(found.group()))
    assert status == 0, output
    assert "cantata.testing.pytest_plugin" in loaded
    assert not LAZY & loaded


@pytest.mark.slow("a model call of the project, with LiteLLM imported anew")
def test_the_project_of_submit_init_passes(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "cantata.surfaces.cli", "init", str(tmp_path / "new")], check=True, capture_output=True
    )

    status, counts, output = run_pytest(tmp_path / "new")

    assert (status, counts) == (0, {"passed": 2}), output
