"""The scripts of the run pages: their pure modules are tested by Node where it is, and what ships of others is what was published."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STATIC = Path(__file__).parents[4] / "orchestrator" / "cantata" / "surfaces" / "pages" / "static"
VENDORED = re.compile(r"^\| `(?P<file>[\w.-]+)` .*`(?P<sha256>[0-9a-f]{64})` \|$", re.MULTILINE)
OLDEST_NODE = (20, 19)  # reads a file as a module by what is in it


def own_scripts() -> list[Path]:
    return [path for path in sorted(STATIC.rglob("*.js")) if path.parent.name != "vendor"]


def test_the_pure_modules_keep_their_promises() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node on PATH")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < OLDEST_NODE:
        pytest.skip(f"Node {version} is older than {'.'.join(map(str, OLDEST_NODE))}")
    tests = sorted((HERE / "scripts").glob("*.test.mjs"))
    all_in_one = "\n".join(
        f"await import({json.dumps(path.as_uri())});" for path in tests
    )  # `--test` starts a process for each

    ran = subprocess.run(
        [node, "--no-warnings", "--input-type=module", "--eval", all_in_one],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"pass [1-9]", ran.stdout), ran.stdout


def test_vendored_files_are_what_was_published() -> None:
    told = {
        found["file"]: found["sha256"] for found in VENDORED.finditer((STATIC / "vendor" / "README.md").read_text())
    }

    assert told == {path.name: sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.js")}
    for library in ("htm", "preact", "dagre", "marked", "dompurify"):
        assert (STATIC / "vendor" / f"{library}.LICENSE.txt").read_text().strip()


@pytest.mark.parametrize("path", own_scripts(), ids=lambda path: str(path.relative_to(STATIC)))
def test_no_script_makes_markup_of_text_or_runs_it(path: Path) -> None:
    text = path.read_text()

    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!\))", text
    ), path
    assert text.count("\n") < 250
    assert text.startswith("/**") or text.startswith("// ")


def test_the_document_loads_only_what_ships() -> None:
    document = (STATIC / "index.html").read_text()

    assert not re.search(r"\sstyle=|<style|\son\w+=|<script>", document)
    for found in re.findall(r"(?:href|src)=\"([^\"]+)\"", document):
        assert (STATIC / found.removeprefix("{{base}}/static/")).is_file(), found
    assert set(re.findall(r"modulepreload\" href=\"{{base}}/static/([^\"]+)\"", document)) == imported(
        STATIC / "app.js"
    )


def imported(path: Path, known: frozenset[str] = frozenset()) -> set[str]:
    """The modules that a module imports, and those that they import."""
    found = {
        str((path.parent / name).resolve().relative_to(STATIC))
        for name in re.findall(r"^import .* from \"([^\"]+)\";$", path.read_text(), re.MULTILINE)
    }
    return found.union(*(imported(STATIC / each, known | found) for each in found - known))
