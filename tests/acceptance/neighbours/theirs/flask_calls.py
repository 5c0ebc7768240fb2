"""The calls of the Celery project of Flask's examples, some of them over HTTP from its own server at the address URL."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from make_celery import celery_app
from probe import Probe
from task_app import tasks

URL = os.environ["URL"]
probe = Probe(celery_app, "make_celery")


def ask(path: str, **form: object) -> tuple[int, Any]:
    body = urllib.parse.urlencode(form).encode() if form or path.startswith("/tasks/b") else None
    try:
        with urllib.request.urlopen(f"{URL}{path}", body, timeout=40) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, error.reason


def over_http(label: str, path: str, **form: object) -> tuple[str, int]:
    started = ask(path, **form)
    uuid = started[1]["result_id"]
    probe.expect(uuid, label)
    return uuid, started[0]


added = over_http("add over HTTP", "/tasks/add", a=2, b=3)
wrong = over_http("no number over HTTP", "/tasks/add", a="x", b=3)
blocked = over_http("ignored over HTTP", "/tasks/block")
probe.call("add", lambda: tasks.add.delay(2, 3))
probe.call("add of two types", lambda: tasks.add.delay(1, "x"))
probe.call("wrong arguments", lambda: tasks.add.delay(1))
probe.call("process", lambda: tasks.process.delay(total=1))
probe.call("unknown task", lambda: celery_app.send_task("task_app.nowhere", (1,)))
probe.revoke("revoked")
probe.call("revoked", lambda: tasks.add.apply_async((6, 7), task_id="revoked"))
probe.call("chain", lambda: (tasks.add.s(1, 2) | tasks.add.s(4))())
probe.call("chain of two kinds", lambda: (tasks.add.s(0, 0) | tasks.process.s())())
probe.call("in place", lambda: tasks.add.apply((1, 2)), ends=False)
probe.wait_for_events("task_app.tasks.add", 6)
answers = {
    name: [status, ask(f"/tasks/result/{uuid}")] for name, (uuid, status) in {"added": added, "wrong": wrong}.items()
}
probe.finish(more={"answers": answers, "index": ask("/tasks/nowhere")})
