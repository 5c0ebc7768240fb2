"""The calls of Invenio's tasks, which send mails."""

from base64 import b64encode

from celery import chain, group
from invenio_app.celery import celery
from invenio_mail.tasks import _send_email_with_attachments, send_email, send_email_with_attachments
from probe import Probe

probe = Probe(celery, "invenio_app.celery")
letter = {"recipients": ["ada@localhost"], "subject": "Your loan", "body": "It is due."}
files = [{"base64": b64encode(b"until Friday").decode(), "disposition": "loan.txt"}]

with celery.flask_app.app_context():
    probe.call("letter", lambda: send_email.delay(letter))
    probe.call("with a file", lambda: send_email_with_attachments(letter, files))
    probe.call("too large a file", lambda: send_email_with_attachments(letter, [{"base64": "x" * 1_000_001}]))
    probe.call("no letter", lambda: send_email.delay(5))
    probe.call("no base64", lambda: _send_email_with_attachments.delay(letter, [{"base64": 5}]))
    probe.call("wrong arguments", lambda: send_email.delay())
    probe.call("ignored result", lambda: send_email.apply_async((letter,), ignore_result=True))
    probe.call("by keyword", lambda: send_email.apply_async((), {"data": letter}, countdown=0.1))
    probe.call("unknown task", lambda: celery.send_task("invenio_mail.nowhere", (1,)))
    probe.revoke("revoked")
    probe.call("revoked", lambda: send_email.apply_async((letter,), task_id="revoked"))
    probe.call("chain", lambda: chain(send_email.si(letter), send_email.si(letter))())
    probe.call("not serializable", lambda: send_email.delay(object()))
    probe.call("in place", lambda: send_email.apply((letter,)), ends=False)
    members = group(send_email.s(letter) for _ in range(2))()
    results = members.get(timeout=40, interval=0.05)
    probe.wait_for_events("invenio_mail.tasks.send_email", 8)
    probe.finish(more={"group": results})
