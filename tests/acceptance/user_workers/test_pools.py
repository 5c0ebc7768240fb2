"""Workers of the user's with the pools `gevent` and `eventlet`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.user_tasks.conftest import Shop
from tests.integration.user_tasks.test_pools import (
    test_a_fetched_task_of_a_cancelled_run_is_discarded_with_prefork_alone,
    test_a_killed_worker_has_its_tasks_done_again_after_timeout_s_and_no_finished_one,
    test_a_row_of_tasks,
    with_pool,
)

__all__ = [
    "test_a_fetched_task_of_a_cancelled_run_is_discarded_with_prefork_alone",
    "test_a_killed_worker_has_its_tasks_done_again_after_timeout_s_and_no_finished_one",
    "test_a_row_of_tasks",
]
pytestmark = pytest.mark.thorough(
    "pools need other packages; those of Celery alone are held by integration/user_tasks/test_pools.py"
)


@pytest.fixture(scope="module", params=["gevent", pytest.param("eventlet", marks=pytest.mark.whole)])
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shop: Shop, python: Path
) -> Iterator[Shop]:
    """The project with one more worker, whose pool is that one."""
    yield from with_pool(request.param, shop, tmp_path_factory.mktemp(request.param), python)
