"""The calls of a task of Girder Worker, whose class has an `apply_async` of its own and sends with a serializer of its own."""

from celery import chain, group
from girder_worker._test_plugins.tasks import celery_task
from girder_worker.app import app
from probe import Probe

NAME = "girder_worker._test_plugins.tasks.celery_task"
probe = Probe(app, "girder_worker.app")

probe.call("number", lambda: celery_task.delay(5))
probe.call("by keyword", lambda: celery_task.apply_async((), {"n": 6}, countdown=0.1))
probe.call("with a title", lambda: celery_task.delay(7, girder_job_title="seven"))
probe.call("wrong arguments", lambda: celery_task.delay())
probe.call("ignored result", lambda: celery_task.apply_async((8,), ignore_result=True))
probe.call("unknown task", lambda: app.send_task("girder_worker.nowhere", (1,)))
probe.revoke("revoked")
probe.call("revoked", lambda: celery_task.apply_async((9,), task_id="revoked"))
probe.call("chain", lambda: chain(celery_task.s(1), celery_task.s())())
probe.call("link", lambda: celery_task.apply_async((2,), link=celery_task.s()))
probe.call("in place", lambda: celery_task.apply((3,)), ends=False)
members = group(celery_task.s(n) for n in range(3))()
results = members.get(timeout=40, interval=0.05)
probe.wait_for_events(NAME, 11)
probe.finish(more={"group": results})
