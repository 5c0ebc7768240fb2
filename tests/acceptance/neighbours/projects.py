"""Projects of other authors: how each is started, pointed to a broker, and called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Project:
    """One of others, and how its authors start it."""

    name: str
    """Of its locks: what its environment has, and that with Cantata."""
    sdist: str
    path: str
    celery_app: str
    """What they give to `celery -A`."""
    celery_file: str
    """Where `install` is added to it."""
    app_name: str
    shell: tuple[str, ...]
    calls: str
    config: str
    """A configuration of ours with chains of its tasks."""
    broker: tuple[str, ...]
    """The variables that name its broker."""
    results: tuple[str, ...] = ()
    """The variables that name where its results go."""
    packages: str = "."
    include: tuple[str, ...] = ()
    """Modules of tasks that its worker is told to import."""
    prepare: tuple[str, ...] = ()
    """The command that a new copy needs once."""
    prepared: str = ""
    """The file that this command makes, the same in each copy."""
    server: tuple[str, ...] = ()
    """Its web server, which prints its address; `{port}` is a free one."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Other variables that its authors would set; `{folder}` is its copy's."""
    view_file: str = ""
    """The file to which a view is added that submits a run."""
    view: str = ""
    chain: str = "sums"
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"x": 1, "y": 1})
    remarks: Mapping[str, int] = field(default_factory=dict)
    """Lines that its worker writes of our task without its name, and how often."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """Values of its process that are others where Cantata is, with what they are without."""

    @property
    def installed(self) -> str:
        """The lines that install Cantata, at the end of its Celery module, and use it once in a caller and in a worker."""
        return INSTALLED.format(app=self.app_name, chain=self.chain, inputs=dict(self.inputs))

    def variables(self, broker: str, redis: str) -> dict[str, str]:
        """Return the variables that point it to a broker, and to a Redis for its results if it keeps them there."""
        at_its_own = self is DJANGO and broker != redis  # in SQLite, as its authors have it
        results = {} if at_its_own else dict.fromkeys(self.results, redis)
        return {**dict.fromkeys(self.broker, broker), **results}


INSTALLED = """
from cantata import install
cantata = install({app}, config="cantata.yaml")
submitting = cantata.task("{chain}", ignore_result=False)

def use_cantata():
    cantata.client.submit_chain("{chain}", initial_input={inputs})
    submitting.delay(**{inputs}).get(timeout=40)
"""

DJANGO = Project(
    name="django",
    sdist="celery",
    path="examples/django",
    celery_app="proj",
    celery_file="proj/celery.py",
    app_name="app",
    shell=("python", "manage.py", "shell"),
    calls="django_calls.py",
    config="django.yaml",
    broker=("CELERY_BROKER_URL",),
    results=("CELERY_RESULT_BACKEND",),
    prepare=("python", "manage.py", "migrate"),
)
FLASK = Project(
    name="flask-next",
    sdist="flask",
    path="examples/celery",
    celery_app="make_celery",
    celery_file="make_celery.py",
    app_name="celery_app",
    shell=("python", "-"),
    calls="flask_calls.py",
    config="flask.yaml",
    broker=("FLASK_CELERY__broker_url",),
    results=("FLASK_CELERY__result_backend",),
    packages="src",
    server=("flask", "-A", "task_app", "run", "--port", "{port}"),
    view_file="src/task_app/views.py",
)
INVENIO = Project(
    name="invenio",
    sdist="invenio_app",
    path=".",
    celery_app="invenio_app.celery",
    celery_file="invenio_app/celery.py",
    app_name="celery",  # a proxy: celery.current_app
    shell=("python", "-"),
    calls="invenio_calls.py",
    config="invenio.yaml",
    broker=("INVENIO_BROKER_URL", "INVENIO_CELERY_BROKER_URL"),
    results=("INVENIO_CELERY_RESULT_BACKEND",),
    server=("flask", "-A", "invenio_app.wsgi", "run", "--port", "{port}"),
    more={
        "INVENIO_INSTANCE_PATH": "{folder}",
        "INVENIO_SECRET_KEY": "of a test",
        "INVENIO_MAIL_SUPPRESS_SEND": "True",
        "INVENIO_MAIL_DEFAULT_SENDER": "library@localhost",
        "INVENIO_APP_ENABLE_SECURE_HEADERS": "False",  # its server has no TLS here
    },
    view_file="invenio_app/wsgi.py",
    view="""
from flask import request
from invenio_app.celery import cantata

@application.post("/letters")
def send_letters():
    return cantata.client.submit_chain("letters", initial_input=request.get_json()).run_id
""",
    chain="letters",
    inputs={"letter": {"recipients": ["ada@localhost"], "subject": "Your loan", "body": "It is due."}},
)
GIRDER = Project(
    name="girder",
    sdist="girder_worker",
    path=".",
    celery_app="girder_worker.app",
    celery_file="girder_worker/app.py",
    app_name="app",
    shell=("python", "-"),
    calls="girder_calls.py",
    config="girder.yaml",
    broker=("GIRDER_WORKER_BROKER",),
    include=("girder_worker._test_plugins.tasks",),
    more={"C_FORCE_ROOT": "1"},  # it takes messages in pickle too, which Celery refuses to root
    chain="numbers",
    inputs={"n": 5},
    # Its handlers hear of each task, and of each message that is sent within one: of ours too, which submits a run.
    remarks={
        f"[TIME: WARNING/PROCESS] {begin}{line}": 1
        for begin in ("", "[TIME] WARNING: ")
        for line in (
            "No jobInfoSpec. Setting job_manager to None.",
            "Girder job not created: Parent task's request does not contain girder_api_url",
            "Could not get girder_api_url from parent task: Parent task's request does not contain girder_api_url",
            "Could not get token from parent task: Parent task's request does not contain girder_client_token",
        )
    },
)
PRETALX = Project(
    name="pretalx",
    sdist="pretalx",
    path="src",
    celery_app="pretalx.celery_app",
    celery_file="pretalx/celery_app.py",
    app_name="app",
    shell=("python", "manage.py", "shell"),
    calls="pretalx_calls.py",
    config="pretalx.yaml",
    broker=("PRETALX_CELERY_BROKER",),
    results=("PRETALX_CELERY_BACKEND",),
    prepare=("python", "manage.py", "migrate"),
    prepared="data/db.sqlite3",
    server=("python", "manage.py", "runserver", "--noreload", "{port}"),
    more={"PRETALX_DEBUG": "True", "PRETALX_DATA_DIR": "{folder}/data", "PRETALX_SITE_URL": "http://127.0.0.1"},
    view_file="pretalx/urls.py",
    view="""
import json

from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt
from pretalx.celery_app import cantata

@csrf_exempt
def send_letters(request):
    return HttpResponse(cantata.client.submit_chain("letters", initial_input=json.loads(request.body)).run_id)

urlpatterns.insert(0, path("letters", send_letters))
""",
    chain="letters",
    inputs={"to": ["ada@localhost"], "event": 404},
    # In development it logs the signature of each task.
    remarks={
        "DEBUG TIME celery.utils.functional functional ": 1,
        "def submit(task, text=0, **chain_input):": 1,
        "    return 1": 1,
        "": 1,
    },
    # In development it shows its errors with rich if that is there, as it is beside Cantata.
    differs={"rich.traceback.install.<locals>.excepthook": "sys.excepthook"},
)
