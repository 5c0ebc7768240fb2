"""The user's Celery application, for commands. It loads Celery, so it is imported where it is needed."""

from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.dispatch.queues import waiting
from cantata.engine.dispatch.user_app import VARIABLE, activate, configured, redis_url_of
from cantata.features.schedules import beat_schedule

__all__ = ["VARIABLE", "activate", "beat_schedule", "configured", "make_app", "redis_url_of", "waiting"]
