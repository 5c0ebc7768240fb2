"""What the README, the pages and the configurations show is run: on one real stack, with a scripted model."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner

import cantata
import cantata.testing
from cantata import Client, __version__
from cantata.config import loading as configuration
from cantata.config.chain_requests import is_request, load_request
from cantata.config.documents import parse as parse_document
from cantata.flows.chains import checks, expand
from cantata.flows.definitions import Definitions, Tool
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ChainResponse, RunResult, TurnRequest
from cantata.operation.embedded import Stack
from cantata.surfaces.cli.main import submit
from cantata.testing import Rule, ScriptedModels, ToolCall
from cantata_workers.tools.functions import load as load_function
from cantata_workers.tools.schemas import schema_of
from tests.acceptance import write_help
from tests.acceptance.pages import PAGES, TOP, Block, Shell, blocks, lines, long_sentences, parse, value, words

pytestmark = pytest.mark.timeout(180)  # a stack starts in 4 s, on a busy machine in 20; the demo takes 30

ALL = blocks()
BLOCKS = [block for block in ALL if not block.is_of_project]
CONFIGURATIONS = sorted((TOP / "configs").rglob("*.yaml"))
MAX_WORDS = 25  # of a sentence
NOT_WORDED = {"cli.md", "pages.md"}
"""Pages with long sentences, still."""
SHOWN_ONLY = {"text"}  # transcripts
TURN = "Is this contract fair?"
PROVIDERS = ("OPENAI", "ANTHROPIC", "GEMINI", "AZURE", "MISTRAL", "GROQ", "OPENROUTER")

TOOLS = '''
"""What the chains of the pages call, where a page does not show it."""


def add_up(values: list[float]) -> float:
    return sum(values)


def join_up(values: list[object]) -> str:
    return ", ".join(map(str, values))


def double(value: float) -> float:
    return 2 * value


def show(result: object) -> object:
    return result
'''


def named() -> list[Block]:
    return [block for block in BLOCKS if block.file]


def all_of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


SUBMITTED = {words(line)[2] for block in all_of("sh") for line in lines(block) if words(line)[1] == "chain"}
"""The chains that lines of the pages submit."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that the pages show, and a stack whose workers ask a scripted model."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "page_tools.py").write_text(TOOLS)
    for block in named():
        (folder / str(block.file)).write_text(block.text)
    (folder / "tickets.csv").write_text(next(block.text for block in all_of("text") if block.page == "docs/batches.md"))
    with ScriptedModels() as models, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith((*PROVIDERS, "CANTATA_"))]:
            patch.delenv(name)
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("OPENAI_API_KEY", "sk-scripted")
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # so that `python` is ours
        with Stack.start(folder / "home", tools=2) as stack:
            patch.setenv("REDIS_URL", stack.url)
            yield folder


@pytest.fixture
def here(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The desk, as the working directory."""
    monkeypatch.chdir(desk)
    return desk


def page_tools(folder: Path) -> Definitions:
    functions = ("add_up", "join_up", "double", "show")
    return Definitions(folder=str(folder), tools={name: Tool(function=f"page_tools:{name}") for name in functions})


def run_chain(definitions: Definitions, request: Mapping[str, Any]) -> ChainResponse:
    with Client(config=definitions) as client:
        return client.submit_chain(request).result(timeout_s=60)


def run_turn(definitions: Definitions, *, team: str | None = None, agent: str | None = None) -> RunResult:
    with Client(config=definitions) as client:
        return client.submit_turn(TURN, team=team, agent=agent).result(timeout_s=60)


def load(file: Path) -> Definitions:
    definitions = configuration.load(file)
    assert checks.check_chains(definitions) == []
    return definitions


def answer_all(definitions: Definitions) -> None:
    """Have each team and agent answer a turn."""
    results = [run_turn(definitions, team=name) for name in definitions.teams]
    results += [run_turn(definitions, agent=name) for name in definitions.agents]
    assert [result.error for result in results if result.status != "succeeded"] == []


# The pages


def test_every_block_is_found_and_held_by_a_test_of_its_language() -> None:
    fences = sum(page.read_text("utf-8").count("```") for page in PAGES)

    assert fences == 2 * len(ALL)
    assert {block.language for block in ALL} == {"yaml", "python", "sh", *SHOWN_ONLY}


def test_a_file_is_shown_once() -> None:
    files = [str(block.file) for block in named()]

    assert sorted(set(files)) == sorted(files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")) if "://" not in target]

    for target in targets:
        file, _, heading = target.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), target
        assert not heading or heading in anchors(found), target


def anchors(page: Path) -> list[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    names = re.findall(r"`(?:tests/)?((?:\w+/)*test_[\w*]+\.py)`", page.read_text("utf-8"))

    assert [name for name in names if not list((TOP / "tests").rglob(name))] == []


def test_each_row_of_the_tables_of_celerys_features_names_a_test_or_says_that_there_is_none() -> None:
    page = (TOP / "docs" / "your-celery.md").read_text("utf-8")
    section = page.partition("## With your pools")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|")[-1].strip() for line in section.splitlines() if line.startswith("| ")]
    named = [each for cell in cells if cell not in ("test", "not tested") for each in cell.split(", ")]

    def exists(each: str) -> bool:
        found = re.fullmatch(r"`(test_\w+\.py)` (\w+)", each)
        files = (TOP / "tests").rglob(found[1]) if found else ()
        return any(re.search(rf"def test_\w*{found[2]}", file.read_text("utf-8")) for file in files if found)

    assert len(named) > 20
    assert [each for each in named if not exists(each)] == []


@pytest.mark.parametrize("name", ["design.md", "decisions.md", "guarantees.md"])
def test_files_and_folders_that_a_page_of_the_design_names_exist(name: str) -> None:
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", (TOP / "docs" / name).read_text("utf-8"))
    within = [
        "",
        "orchestrator/cantata",
        "orchestrator/cantata_frontends",
        "workers/cantata_workers",
        "docs",
        "tests",
        "tests/integration",
    ]

    assert named
    assert [place for place in named if not any((TOP / folder / place).exists() for folder in within)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    index = (TOP / "docs" / "index.md").read_text("utf-8")

    assert "(docs/index.md)" in (TOP / "README.md").read_text("utf-8")
    assert [page.name for page in PAGES[1:] if f"]({page.name})" not in index and page.name != "index.md"] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in NOT_WORDED], ids=lambda page: page.name)
def test_no_sentence_is_long(page: Path) -> None:
    assert long_sentences(page.read_text("utf-8"), MAX_WORDS) == []


@pytest.mark.slow("Sphinx reads all pages and docstrings")
@pytest.mark.timeout(400)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    (options,) = re.findall(r"sphinx-build (.*) docs build/docs", (TOP / "run").read_text())
    command = [
        sys.executable,
        "-I",
        "-m",
        "sphinx",
        *options.split(),
        "-b",
        "dummy",
        TOP / "docs",
        tmp_path,
    ]  # checks all, writes nothing

    built = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (built.returncode, built.stderr) == (0, "")


def test_the_python_api_has_every_public_name() -> None:
    shown = re.findall(
        r"^<!-- auto\w+: ([\w.]+) -->$", (TOP / "docs" / "python-api.md").read_text("utf-8"), re.MULTILINE
    )

    public = [f"{module.__name__}.{name}" for module in (cantata, cantata.testing) for name in module.__all__]
    assert sorted(shown) == sorted(public)


# The command line


def test_the_page_of_the_command_line_says_what_help_says() -> None:
    page = write_help.PAGE.read_text("utf-8")

    assert page == write_help.written(page), "run: python -m tests.acceptance.write_help"


def test_the_page_of_the_command_line_has_every_command() -> None:
    assert sorted(write_help.shown(write_help.PAGE.read_text("utf-8"))) == sorted(write_help.commands(submit))


@pytest.mark.slow("each command's help is asked for")
def test_help_on_a_terminal_is_what_the_page_shows() -> None:
    command = [sys.executable, "-m", "cantata.surfaces.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})

    assert done.stdout == write_help.help_of("submit")


# The blocks


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_configuration], ids=str)
def test_configurations_load_and_their_teams_and_agents_answer(block: Block, here: Path) -> None:
    file = here / (block.file or "untitled.yaml")
    file.write_text(block.text)

    answer_all(load(file))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_script], ids=str)
def test_scripts_of_models_are_read(block: Block) -> None:
    assert [Rule.model_validate(rule) for rule in yaml.safe_load(block.text)]


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.is_chain and block.file not in SUBMITTED], ids=str
)
def test_chains_succeed_with_the_output_that_is_shown(block: Block, here: Path) -> None:
    request = load_request(parse_document(block.text, source=str(block)))

    response = run_chain(page_tools(here), request.model_dump())

    assert response.success, response.error
    assert block.answer is not None
    assert response.final_output == value(block.answer)


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "sh"], ids=str)
def test_command_lines_are_understood(block: Block) -> None:
    for line in lines(block):
        command, *arguments = words(line)
        match command:
            case "submit" | ".cantata/bin/submit":
                parse(arguments)
            case "./run":
                assert arguments[0] in re.findall(r"^  (\w+) ", (TOP / "run").read_text(), re.MULTILINE)
            case "python" if arguments[:2] == ["-m", "cantata.testing"]:
                assert block.is_of_project or arguments[2] in [block.file for block in named()]
            case "python":
                assert block.is_of_project or arguments[-1] in [block.file for block in all_of("python")]
            case "celery" | "flask" | "pytest":
                assert block.is_of_project  # test_your_celery.py and test_testing.py run it
            case "pip" | "uv":
                assert block.is_of_project or is_installation(line)
            case "curl":
                pass  # tests/integration/gateway/test_page.py runs it
            case _:
                assert command == "export", f"no test can run this: {line}"


def is_installation(line: str) -> bool:
    """Whether a line builds the wheel of this version, or installs it with extras that there are, or what is pinned for development too."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    wheel = re.search(rf"'\./dist/cantata-{re.escape(__version__)}-py3-none-any\.whl\[([\w,-]+)\]'", line)
    if wheel:
        return set(wheel[1].split(",")) <= set(project["project"]["optional-dependencies"])
    return "pip wheel --no-deps" in line or words(line)[-1] in set(project["dependency-groups"]["dev"])


STAY = {"up", "down", "worker", "gateway", "flower"}
"""Commands that start and stop processes; what they do is held by test_cli.py."""


@pytest.mark.parametrize("block", [block for block in all_of("sh") if block.is_run], ids=str)
def test_command_lines_do_what_they_say(block: Block, here: Path) -> None:
    shell = Shell()

    for line in lines(block):
        if words(line)[1] not in STAY:
            shell.run(line)


def test_a_wrong_argument_is_told_as_the_page_of_tools_shows_it(here: Path) -> None:
    shown = next(block for block in all_of("text") if block.page == "docs/tools.md")

    done = CliRunner().invoke(submit, ["chain", "wrong.yaml", "--config", "shop.yaml"])

    assert shown.text in done.stderr


def test_a_spent_budget_is_told_as_the_page_of_models_shows_it(here: Path) -> None:
    shown = next(block for block in all_of("text") if block.page == "docs/models.md")

    done = CliRunner().invoke(submit, ["chain", "thrice.yaml", "--config", "purse.yaml"])

    assert shown.text.strip() in done.stderr


def test_the_schema_of_a_function_is_what_the_page_of_tools_shows(here: Path) -> None:
    shown = next(block for block in all_of("text") if block.page == "docs/tools.md" and block.text.startswith("{"))

    settings = load(here / "till.yaml").tools["orders"]

    assert schema_of(load_function(str(settings.function), str(here)), settings, "orders").model_dump() == json.loads(
        shown.text
    )


@pytest.mark.parametrize("block", all_of("python"), ids=str)
def test_python_runs(block: Block, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = Path(block.file).stem if block.file else "__main__"  # a file is a module, and is not started
    exec(compile(block.text, str(block), "exec"), {"__name__": name})

    prints = not block.file and any(
        isinstance(node, ast.Name) and node.id == "print" for node in ast.walk(ast.parse(block.text))
    )
    assert bool(capsys.readouterr().out) == prints


def test_the_program_with_fastapi_answers_with_results_and_events(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    web = importlib.import_module("web")

    async def main() -> tuple[httpx.Response, dict[str, Any], list[str]]:
        transport = httpx.ASGITransport(web.app)
        async with (
            web.app.router.lifespan_context(web.app),
            httpx.AsyncClient(transport=transport, base_url="http://page") as browser,
        ):
            accepted = await browser.post("/questions", params={"text": TURN})
            answer = await browser.get(f"/questions/{accepted.json()}")
            events = await browser.get(f"/questions/{accepted.json()}/events")
            return accepted, answer.json(), events.text.splitlines()

    accepted, answer, events = asyncio.run(main())

    assert (accepted.status_code, answer["status"]) == (202, "succeeded")
    assert answer["output"]
    assert (events[0], events[-1]) == ("accepted", "closed")


# The configurations


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: str(file.relative_to(TOP)))
def test_configurations_in_the_repository_load_and_plan(file: Path) -> None:
    document = configuration.read(file)

    if is_request(document):
        request, definitions = load_request(document), load(file.with_name("default.yaml"))
        assert checks.check(request, definitions)[0] == []
        assert expand.plan(request, definitions).steps
    else:
        definitions = load(file)
        assert turn_plan.plan_turn(TurnRequest(text=TURN), definitions).steps


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: str(file.relative_to(TOP)))
def test_configurations_in_the_repository_work_with_any_model(file: Path, here: Path) -> None:
    document = configuration.read(file)

    if is_request(document):
        definitions = load(file.with_name("default.yaml")).with_model("openai/gpt-4o-mini")
        response = run_chain(definitions, load_request(document).model_dump())
        assert response.success, response.error
    else:
        answer_all(load(file).with_model("openai/gpt-4o-mini"))


# The demo


@pytest.mark.slow("the embedded model labels all examples")
@pytest.mark.thorough("the embedded model computes on all processors for ten seconds")
@pytest.mark.timeout(420)
def test_the_demo_shows_the_share_of_right_labels(tmp_path: Path) -> None:
    shown = demo(tmp_path)

    share = re.search(r"^(\d+) of 30 labels are those a person gave \(\d+%\)\.$", shown, re.MULTILINE)
    assert share, shown
    assert int(share.group(1)) >= 24


@pytest.mark.slow("the whole demo")
def test_the_demo_runs_with_any_model(tmp_path: Path) -> None:
    routes = [Rule(match=text, reply={"chosen_agent": agent, "refined_query": None}) for agent, text in ROUTES.items()]
    call = ToolCall(name="order_status", arguments={"order": "A-1042"})
    rules = [
        *routes,
        Rule(match="^Where is my order", after_tools=0, tool_calls=(call,)),
        Rule(match="charge", reply={"label": "billing"}),
    ]
    with ScriptedModels([*rules, Rule(model="gpt-4o-mini", match="[a-z]", reply={"label": "praise"})]) as models:
        shown = demo(
            tmp_path, "--model", "openai/gpt-4o-mini", OPENAI_API_BASE=models.url, OPENAI_API_KEY="sk-scripted"
        )

    assert re.search(r"^\d+ of 30 labels are those a person gave", shown, re.MULTILINE), shown


ROUTES = {"payments": "my refund", "repairs": "The app crashes", "parcels": "my parcel"}


@pytest.mark.slow("a batch, and a schedule that starts a run")
def test_the_demo_of_a_batch_shows_a_schedule_too(tmp_path: Path) -> None:
    with ScriptedModels([Rule(model="gpt-4o-mini", match="[a-z]", reply={"label": "praise"})]) as models:
        shown = run_demo(
            tmp_path,
            "--batch",
            "--model",
            "openai/gpt-4o-mini",
            OPENAI_API_BASE=models.url,
            OPENAI_API_KEY="sk-scripted",
        )

    assert len(re.findall(r"^\d+,succeeded,.*praise", shown, re.MULTILINE)) == 30, shown
    assert re.search(r"^\+ opening-hours$", shown, re.MULTILINE), shown
    assert re.search(r"^It started run \w+ by itself: succeeded\. It is paused now\.$", shown, re.MULTILINE), shown


def demo(folder: Path, *words: str, **environment: str) -> str:
    """What the demo shows in an empty folder."""
    shown = run_demo(folder, *words, **environment)
    assert 'it called order_status({"order": "A-1042"}) → left the warehouse on Monday' in shown
    for agent, message in ROUTES.items():
        assert re.search(f"^{agent} ← .*{message}", shown, re.MULTILINE), shown
    assert "submit runs show" in shown
    return shown


def run_demo(folder: Path, *words: str, **environment: str) -> str:
    ours = {name: text for name, text in os.environ.items() if name != "REDIS_URL" and not name.startswith("CANTATA_")}
    done = subprocess.run(
        [sys.executable, "-m", "cantata.surfaces.cli.demo", *words],
        cwd=folder,
        env={**ours, "PYTHONPATH": str(TOP), **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    return done.stdout
