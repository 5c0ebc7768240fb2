"""The four systems' own examples run through the public doors without an edit, or are refused for a reason that the page tells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cantata.operation.embedded import Stack
from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from tests.acceptance.as_written.examples import PAGES, TOP, Example, examples

EXAMPLES = [example for system in PAGES for example in examples(system)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedModels]:
    """The scripted model of a stack's workers; its rules are those of the example."""
    with ScriptedModels() as models, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CANTATA_")]:
            patch.delenv(name)
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("AZURE_AI_ENDPOINT", models.url.removesuffix("/v1"))
        for name in ("OPENAI_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_API_KEY"):
            patch.setenv(name, "sk-scripted")
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # so that `python` is ours
        with Stack.start(tmp_path_factory.mktemp("as-written"), tools=2) as stack:
            patch.setenv("REDIS_URL", stack.url)
            yield models


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with nothing in it, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lay_out(example: Example, desk: Path) -> None:
    for name, text in example.files.items():
        (desk / name).parent.mkdir(parents=True, exist_ok=True)
        (desk / name).write_text(text)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(submit, arguments)


def printed(arguments: Sequence[str]) -> str:
    """What a script prints, as a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def in_project(example: Example) -> list[str]:
    return [] if example.system == "a2e" else ["--config", example.checked or "."]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if not example.refused], ids=str)
def test_an_example_gives_its_answer(
    example: Example, desk: Path, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(example, desk)
    models.script(example.model)
    for name, value in example.environment.items():
        monkeypatch.setenv(name, value)

    if example.command[0] == "python":
        assert printed(example.command[1:]) == example.answer
        return
    checked = run("check", example.checked or ".", "--json")
    done = run(*example.command, *in_project(example), "--json")

    faults = json.loads(checked.stdout)["faults"]
    assert [fault for fault in faults if not fault["is_warning"]] == []
    assert sorted(fault["where"] for fault in faults) == sorted(
        re.sub(r"^\w+\.yaml ", "", warning) for warning in example.warnings
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result.get("output", result.get("final_output")) == example.answer


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.refused], ids=str)
def test_what_does_not_carry_over_is_refused_with_what_the_page_says(
    example: Example, desk: Path, request: pytest.FixtureRequest
) -> None:
    lay_out(example, desk)

    if example.command[:1] == ("python",):
        request.getfixturevalue("models").script(example.model)
        with pytest.raises(subprocess.CalledProcessError) as caught:
            printed(example.command[1:])
        assert example.refused in caught.value.stderr
    else:
        done = run("check", example.checked or ".", "--json")
        assert done.exit_code == 2
        assert example.refused in "\n".join(fault["message"] for fault in json.loads(done.stdout)["faults"])
    assert example.because in does_not_carry_over(example.system)


def test_a_workflow_with_a_fault_does_not_take_the_others_with_it(desk: Path, models: ScriptedModels) -> None:
    lay_out(next(example for example in EXAMPLES if example.name == "guide_real_world"), desk)
    models.script(())

    good, bad = (
        run("turn", "--workflow", name, "tea", "--config", ".", "--json")
        for name in ("quick_response", "fact_check_pipeline")
    )

    assert (good.exit_code, json.loads(good.stdout)["output"]) == (0, "echo: tea")
    assert bad.exit_code == 2
    assert (
        "line 27: langswarm.yaml workflows[2] 'fact_check_pipeline'.workflow: there is no agent, tool or workflow 'consensus'"
        in bad.output
    )


def does_not_carry_over(system: str) -> str:
    page = (TOP / "docs" / f"{PAGES[system]}.md").read_text("utf-8")
    return page.partition("## Does not carry over\n")[2].partition("\n## ")[0]


def test_the_page_of_other_systems_says_how_many_of_how_many() -> None:
    page = (TOP / "docs" / "migrate.md").read_text("utf-8")
    rows = re.findall(r"\| (\d+) of (\d+) \| \[\w+\]\((\w+)\.md\)", page)

    found = {system: examples(system) for system in PAGES}
    counts = {
        PAGES[system]: (sum(not example.refused for example in each), len(each)) for system, each in found.items()
    }
    assert {page: (int(carried), int(of)) for carried, of, page in rows} == counts
