"""Its application; the tests say where its broker and its results are."""

from __future__ import annotations

import json
import os

from celery import Celery, current_app

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND") or None)
app.conf.update(broker_connection_retry_on_startup=True, task_track_started=True, worker_send_task_events=True)
app.conf.task_routes = {"shop.tasks.pay": {"queue": "payments"}}
app.conf.broker_transport_options = json.loads(os.environ.get("SHOP_OPTIONS", "{}"))
app.autodiscover_tasks(["shop"])
current = current_app
"""A proxy for whatever application is the current one, which projects use in place of `app`."""
