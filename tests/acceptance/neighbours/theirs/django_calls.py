"""The calls of the Django project of Celery's examples: `manage.py shell <django_calls.py`."""

from celery import chain, chord, group
from demoapp.models import Widget
from demoapp.tasks import add, count_widgets, mul, rename_widget, xsum
from django.db import transaction
from probe import Probe
from proj.celery import app, debug_task

probe = Probe(app, "proj.celery")
widget = Widget.objects.create(name="bolt")


def rolled_back() -> None:
    try:
        with transaction.atomic():
            add.delay_on_commit(100, 100)
            raise LookupError
    except LookupError:
        pass


probe.call("add", lambda: add.delay(2, 3))
probe.call("mul", lambda: mul.apply_async((4,), {"y": 5}, countdown=0.1))
probe.call("xsum", lambda: xsum.delay([1, 2, 3]))
probe.call("count", count_widgets.delay)
probe.call("rename", lambda: rename_widget.delay(widget.id, "nut"))
probe.call("rename unknown", lambda: rename_widget.delay(404, "nut"))
probe.call("add of two types", lambda: add.delay(1, "x"))
probe.call("wrong arguments", lambda: add.delay(1))
probe.call("ignored result", lambda: debug_task.apply_async(priority=3))
probe.call("unknown task", lambda: app.send_task("proj.nowhere", (1,)))
probe.revoke("revoked")
probe.call("revoked", lambda: mul.apply_async((6, 7), task_id="revoked"))
probe.call("on commit", lambda: add.delay_on_commit(2, 3))
probe.call("rolled back", rolled_back)
probe.call("chain", lambda: chain(add.s(1, 2), mul.s(4))())
probe.call("chain with an error", lambda: chain(add.s(1, None), mul.s(4))(), ends=False)
probe.call("chord", lambda: chord([add.s(1, 1), add.s(2, 2)], xsum.s())())
probe.call("link", lambda: add.apply_async((1, 1), link=mul.s(10)))
probe.call("not JSON", lambda: add.delay(object(), 1))
probe.call("in place", lambda: add.apply((1, 2)), ends=False)
members = group(mul.s(n, n) for n in range(3))()
results = members.get(timeout=40, interval=0.05)
probe.wait_for_events("demoapp.tasks.add", 8)
probe.wait_for_events("demoapp.tasks.mul", 6)
widget.refresh_from_db()
probe.finish(more={"group": results, "widget": widget.name})
