"""The calls of the tasks of pretalx: `manage.py shell <pretalx_calls.py`."""

from celery import chain, group
from django.db import connection
from pretalx.agenda.tasks import export_schedule_html
from pretalx.celery_app import app
from pretalx.common.mail import mail_send_task
from pretalx.common.tasks import task_cleanup_file, task_process_image
from pretalx.event.services import task_periodic_event_services
from pretalx.person.models import User
from pretalx.person.tasks import gravatar_cache
from pretalx.submission.tasks import recalculate_all_review_scores
from probe import Probe

probe = Probe(app, "pretalx.celery_app")
user = User.objects.create_user(email="ada@localhost", name="Ada", password="of a test")
letter = {"to": ["ada@localhost"], "subject": "Your talk", "body": "It is accepted.", "html": None}

probe.call("letter", lambda: mail_send_task.delay(**letter))
probe.call("with HTML", lambda: mail_send_task.apply_async(kwargs={**letter, "html": "<p>It is.</p>"}, countdown=0.1))
probe.call("of no event", lambda: mail_send_task.delay(**letter, event=404))
probe.call("wrong arguments", lambda: mail_send_task.delay())
probe.call("scores of no event", lambda: recalculate_all_review_scores.delay(event_id=404))
probe.call("services of no event", lambda: task_periodic_event_services.delay("nowhere"))
probe.call("pages of no event", lambda: export_schedule_html.delay(event_id=404))
probe.call(
    "no picture", lambda: task_process_image.delay(model="User", pk=user.pk, field="avatar", generate_thumbnail=True)
)
probe.call("no file", lambda: task_cleanup_file.delay(model="User", pk=user.pk, field="avatar", path="nowhere"))
probe.call("no field", lambda: task_cleanup_file.delay(model="User", pk=user.pk, field="email", path="nowhere"))
probe.call("ignored result", lambda: gravatar_cache.apply_async(args=(404,), ignore_result=True))
probe.call("unknown task", lambda: app.send_task("pretalx.nowhere", (1,)))
probe.revoke("revoked")
probe.call("revoked", lambda: mail_send_task.apply_async(kwargs=letter, task_id="revoked"))
probe.call("chain", lambda: chain(mail_send_task.si(**letter), mail_send_task.si(**letter))())
probe.call("not JSON", lambda: mail_send_task.delay(object()))
members = group(mail_send_task.s(**letter) for _ in range(2))()
results = members.get(timeout=40, interval=0.05)
probe.wait_for_events("pretalx.common.send_mail", 7)
probe.finish(more={"group": results, "tables": len(connection.introspection.table_names())})
