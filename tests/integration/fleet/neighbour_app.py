"""Another application's Celery, whose queues are called as ours are: `python neighbour_app.py REDIS_SOCKET`."""

from __future__ import annotations

import sys

from celery import Celery

DONE = "shop-done"  # list: the numbers of its tasks that were done
QUEUES = ("tools", "agents", "coordinator", "celery")


def shop(socket: str) -> Celery:
    """Return the app of both sides."""
    app = Celery("shop", broker=f"redis+socket://{socket}", set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, task_ignore_result=True, task_create_missing_queues=True)

    @app.task(name="shop.sell")
    def sell(number: int) -> None:
        with app.connection_for_write() as connection:
            connection.default_channel.client.rpush(DONE, number)  # type: ignore[attr-defined]  # of kombu's Redis

    return app


if __name__ == "__main__":
    options = ["--pool", "solo", "--queues", ",".join(QUEUES), "--hostname", "shop@here", "--loglevel", "ERROR"]
    shop(sys.argv[1]).worker_main(["--quiet", "worker", *options])
