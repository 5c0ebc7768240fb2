"""The pages of users' own projects are run: their Celery workers and ours, started by the lines of the pages, on one real Redis."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cantata import Client
from cantata.flows.definitions import Definitions
from cantata.testing import Rule, ScriptedModels, ToolCall
from tests.acceptance.pages import TOP, Block, blocks, lines, value, words
from tests.integration.redis.servers import HERE, Server, free_port, running
from tests.waiting import until

pytestmark = pytest.mark.slow("workers of a project and ours, its web server and its beat")
BIN = Path(sys.executable).parent
STAY = {"worker", "beat", "run", "runserver"}
"""Words of lines that start processes which stay."""
HOURLY, OFTEN = '"schedule": 3600', '"schedule": 1'
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis for all projects, one after the other."""
    server = Server(tmp_path_factory.mktemp("redis"))
    with running(server):
        yield server


@pytest.fixture(scope="module")
def models() -> Iterator[ScriptedModels]:
    """A model that asks for late orders before it answers."""
    call = ToolCall(name="late_orders", arguments={"days": 2})
    with ScriptedModels(
        [Rule(match="late", after_tools=0, tool_calls=(call,)), Rule(match="late", reply="One is.")]
    ) as server:
        yield server


class Project:
    """A project of a user, made from the blocks of a page, and the processes that the page's lines start."""

    def __init__(self, page: str, folder: Path, redis: Server, models: ScriptedModels) -> None:
        self.folder = folder
        self.blocks = [block for block in blocks() if block.page == f"docs/{page}.md"]
        self.url = f"redis://{redis.place}/0"
        self._lines = [line for block in self.blocks if block.language == "sh" for line in lines(block)]
        self._ran: list[list[str]] = []
        self._redis = redis
        own = {"PATH": f"{BIN}:{os.environ['PATH']}", "OPENAI_API_BASE": models.url, "OPENAI_API_KEY": "sk-scripted"}
        self._environment = {**os.environ, **own}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def write(self, *named: Block) -> None:
        """Write the files that blocks show; what a page adds to a file comes at its end."""
        for block in named:
            file = self.folder / str(block.file)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as opened:
                opened.write(block.text.replace("localhost:6379", self._redis.place).replace(HOURLY, OFTEN))

    def line(self, begin: str) -> str:
        """The line of the page that begins with these words."""
        return next(line for line in self._lines if line.startswith(begin))

    def not_run(self) -> list[str]:
        """The lines of the page that were not run, but for those of `neighbours/test_second_environment.py`."""
        own = ("uv ", ".cantata/")
        return [line for line in self._lines if words(line) not in self._ran and not line.startswith(own)]

    def run(self, line: str, *more: str) -> str:
        """Do what a line says, as a shell would; answers what it prints."""
        command = [*words(line), *more]
        self._ran.append(words(line))
        if command[0] == "export":
            self._environment.update((name, text) for name, _, text in (word.partition("=") for word in command[1:]))
            return ""
        if command[0] == "pip":
            assert re.fullmatch(r"cantata(\[worker\])?", command[2])  # it is installed here
            return ""
        if command[0] == "submit":
            command[:1] = [sys.executable, "-m", "cantata.surfaces.cli"]
        if STAY & set(command[1:5]):
            return self._start(line, command)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{self.logs()}"
        if "# → " in line:
            assert value(done.stdout) == value(line.partition("# → ")[2])
        return done.stdout

    def _start(self, line: str, command: list[str]) -> str:
        with (self.folder / f"{len(self._ran)}.log").open("wb") as log:
            self._processes[line] = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        return ""

    def stop(self, *begun: str) -> None:
        """Stop processes that lines started, all if none is named."""
        stopped = [self._processes.pop(line) for line in begun or list(self._processes)]
        for process in stopped:
            process.terminate()
        for process in stopped:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def logs(self) -> str:
        """What its processes wrote."""
        return "".join(f"\n--- {log.name}\n{log.read_text()}" for log in self.folder.glob("*.log"))

    def python(self, code: str) -> Any:
        """What the project's own code leaves in `found`, as JSON."""
        done = subprocess.run(
            [sys.executable, "-c", f"{code}\nimport json\nprint(json.dumps(found))"],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + self.logs()
        return json.loads(done.stdout)

    def found(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something; if it does not come, the logs tell why."""
        try:
            return until(condition, what, PATIENCE_S, pause_s=0.1)
        except TimeoutError as error:
            raise AssertionError(f"{error}{self.logs()}") from error

    def outputs(self) -> list[object]:
        """The outputs of all runs that succeeded, the newest first."""
        with Client(self.url, config=Definitions()) as client:
            runs = [client.run(record.run_id) for record in client.runs(most=50)]
            results = [run.so_far() for run in runs]
        return [getattr(result, "outputs", None) for result in results if result.status == "succeeded"]


@contextmanager
def project(page: str, folder: Path, redis: Server, models: ScriptedModels) -> Iterator[Project]:
    """A project in an empty folder, with nothing in Redis."""
    redis.redis.flushall()
    made = Project(page, folder, redis, models)
    try:
        yield made
    finally:
        made.stop()


# docs/tutorial-celery.md


@pytest.fixture
def shop(tmp_path: Path, redis: Server, models: ScriptedModels) -> Iterator[Project]:
    """The project of the page."""
    with project("tutorial-celery", tmp_path, redis, models) as made:
        yield made


RECEIPT = '''

@shared_task(bind=True)
def receipt(self) -> str:
    """Write a receipt."""
    return {key}
'''

MORE = """
version: 1
tools: {receipt: {task: shop.tasks.receipt}}
chains: {receipt: {entry_node: receipt, nodes: [{node_id: receipt, kind: tool, name: receipt}]}}
"""


def test_a_project_has_its_tasks_in_chains_and_runs_in_its_code(shop: Project) -> None:
    first = [block for block in shop.blocks if block.file and "cantata" not in block.text]
    more = [block for block in shop.blocks if block.file and "cantata" in block.text]

    # A chain of your tasks: nothing of the project imports Cantata
    shop.write(*first)
    assert [block.file for block in first] == ["shop/celery.py", "shop/tasks.py", "shop.yaml"]
    for begin in ("pip install", "export CANTATA_APP", "celery -A", "submit worker", "submit chain"):
        shop.run(shop.line(begin))
    assert "queue tasks" in shop.run("submit status")

    # From your code
    shop.write(*more)
    assert [block.file for block in more] == ["shop/celery.py", "shop/orders.py"]
    orders = shop.folder / "shop" / "orders.py"
    orders.write_text(orders.read_text().replace("countdown=60", "countdown=1"))
    (key,) = re.findall(r"`(getattr\(self\.request, .*?\))`", (TOP / "docs" / "your-celery.md").read_text())
    with (shop.folder / "shop" / "tasks.py").open("a") as tasks:
        tasks.write(RECEIPT.format(key=key))
    (shop.folder / "more.yaml").write_text(MORE)
    shop.stop(shop.line("celery -A"))
    shop.run(shop.line("celery -A"))

    code = """
from cantata import install
from shop.celery import app
from shop.orders import order, outcome, place, place_later
from shop.tasks import receipt

runs = [place("tea", 3, 1), place("tea", 3, 1), place("tea", 3, 2), order.delay(item="tea", count=3).get()]
place_later("coffee", 5)
more = install(app, "more.yaml").client.submit_chain("receipt")
called = receipt.delay()
found = [runs, [outcome(each) for each in runs], more.run_id, more.result(60).final_output, called.id, called.get()]
"""
    runs, outcomes, run, in_run, task, in_task = shop.python(code)
    assert runs[0] == runs[1]
    assert len(set(runs)) == 3
    assert outcomes == 4 * ["charged 12"]
    shop.found(
        lambda: {"reserve": {"item": "coffee", "count": 5, "price": 20}, "charge": "charged 20"} in shop.outputs(),
        "the later order",
    )
    assert (in_run, in_task) == (f"{run}:receipt", task)
    assert shop.not_run() == []


# docs/django.md


@pytest.fixture
def django(tmp_path: Path, redis: Server, models: ScriptedModels) -> Iterator[Project]:
    """A project that Django made, with the files of the page, and its workers and ours."""
    with project("django", tmp_path, redis, models) as made:
        made.python(DO + "do(['', 'startproject', 'proj', '.']); found = do(['', 'startapp', 'shop'])")
        (made.folder / "shop" / "views.py").unlink()
        made.write(*[block for block in made.blocks if block.file])
        for file, text in DJANGO.items():
            with (made.folder / file).open("a") as opened:
                opened.write(text.format(url=made.url))
        made.python(
            DO
            + "import proj.celery; do(['', 'makemigrations', '--verbosity=0']); found = do(['', 'migrate', '--verbosity=0'])"
        )
        made.run(made.line("celery -A proj worker"))
        made.run(made.line("submit worker"))
        yield made


DO = "from django.core.management import execute_from_command_line as do; "
DJANGO = {
    "proj/settings.py": """
INSTALLED_APPS += ["shop"]
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = "{url}"
""",
    "proj/urls.py": """
from shop import views
urlpatterns += [path("orders", views.place), path("orders/<int:order_id>", views.outcome)]
""",
    "shop/models.py": """

class Order(models.Model):
    item = models.CharField(max_length=50)
    count = models.IntegerField()
    price = models.IntegerField(null=True)
    run_id = models.CharField(max_length=50)
""",
    "shop/connections.py": """
from django.db import connection
def was_open() -> bool:
    found = connection.connection is not None
    connection.ensure_connection()
    return found
""",
    "more.yaml": """
version: 1
tools: {{was_open: {{function: "shop.connections:was_open", cheap: false}}}}  # each step a task, after which Django closes them
chains:
  four:
    entry_node: a
    nodes:
      - {{node_id: a, kind: tool, name: was_open, next_node: b}}
      - {{node_id: b, kind: tool, name: was_open, next_node: c}}
      - {{node_id: c, kind: tool, name: was_open, next_node: d}}
      - {{node_id: d, kind: tool, name: was_open}}
""",
}


def test_django_views_submit_runs_and_read_their_results(django: Project) -> None:
    token = "x" * 32
    address = serve(django, "python manage.py runserver --noreload")
    with httpx.Client(base_url=address, cookies={"csrftoken": token}, headers={"X-CSRFToken": token}) as browser:
        placed = browser.post("/orders", data={"item": "tea", "count": "3"})
        assert placed.status_code == 202, placed.text

        def succeeded() -> Any:
            shown = browser.get(f"/orders/{placed.json()['order']}").json()
            return shown if shown["status"] == "succeeded" else None

        assert django.found(succeeded, "the run's result")["outputs"] == {"price": 12, "charge": "charged 12"}

    django.run(django.line("celery -A proj beat"))
    django.found(lambda: {"list": ["tea"]} in django.outputs(), "a run that beat began")
    django.stop(django.line("celery -A proj beat"))
    assert django.not_run() == []

    django.run("export CANTATA_APP=proj.celery:app")
    closed = json.loads(django.run("submit chain four --config more.yaml --json"))["outputs"]
    assert closed == dict.fromkeys("abcd", False), "functions leave no connection to the database open"


def serve(made: Project, line: str, *option: str) -> str:
    """Start a web server of a project; its address, once it answers."""
    port = free_port()
    made.run(line, *option, str(port))
    address = f"http://{HERE}:{port}"

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(address).status_code > 0
        return False

    made.found(answers, "the web server")
    return address


# docs/flask.md


def test_flask_views_ask_an_agent_whose_tools_are_tasks(tmp_path: Path, redis: Server, models: ScriptedModels) -> None:
    with project("flask", tmp_path, redis, models) as made:
        made.write(*[block for block in made.blocks if block.file])
        made.run(made.line("celery -A make_celery worker"))
        made.run(made.line("submit worker"))
        address = serve(made, made.line("flask --app"), "--port")
        with httpx.Client(base_url=address) as browser:
            asked = [browser.post("/questions", data={"text": "Is an order late?", "id": "q-1"}) for _ in range(2)]
            assert {each.status_code for each in asked} == {202}, asked[0].text
            run = asked[0].json()["run"]
            assert asked[1].json()["run"] == run

            def succeeded() -> Any:
                shown = browser.get(f"/questions/{run}").json()
                return shown if shown["status"] == "succeeded" else None

            assert made.found(succeeded, "the agent's answer")["output"] == "One is."
            assert browser.get("/questions/none").status_code == 404
        assert "support: A-1042, by 2 days" in json.dumps(models.journal()[-1]["body"])

        made.run(made.line("celery -A make_celery beat"))
        made.found(
            lambda: any("Which orders are late?" in str(each["text"]) for each in models.journal()),
            "a turn that beat began",
        )
        assert made.not_run() == []
