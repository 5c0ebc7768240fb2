"""Messages of a worker whose Redis went away."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.engine.dispatch.celery_app import make_app
from tests.integration.redis.servers import Server, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis of its own: it is killed."""
    server = Server(tmp_path)
    with running(server):
        yield server


def test_a_message_that_cannot_be_put_back_now_is_put_back_when_its_channel_closes(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(f"redis://{server.place}/0", namespace="returned")
    queue = app.broker_queue("work")
    with app.connection_for_read() as connection:
        app.send_task("a step", queue=queue)
        message = connection.SimpleQueue(queue).get(timeout=20)
        server.kill()

        message.reject_log_error(logging.getLogger(__name__), connection.connection_errors, requeue=True)
        assert [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR] == []

        server.start()
        server.wait()
        assert server.redis.llen(queue) == 0
    (item,) = server.redis.lrange(queue, 0, -1)
    assert json.loads(item)["headers"]["task"] == "a step"
    app.close()
