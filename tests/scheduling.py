"""Decides which tests run, and which runner gets which file: slow ones come first, and files that share a stack go to one runner."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.budget import MARK

TOP = Path(__file__).parents[1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked `whole` to `./run test others`. Let the files with most slow tests come first, so that no runner ends late."""
    if os.environ.get("OTHERS_TESTS") != "1" and (left := [item for item in items if item.get_closest_marker("whole")]):
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    slow = Counter(item.path for item in items if item.get_closest_marker(MARK))
    items.sort(key=lambda item: -slow[item.path])  # the rest as they are


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Keep files together that share a stack."""
    return SharedStackScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class SharedStackScheduling(LoadFileScheduling):  # type: ignore[misc]  # of a library without types
    """Gives a runner the next file of the folder whose stack it has, else of one whose stack no runner has; so few are started."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        folders = {each: shared_folder(next(reversed(files))) for each, files in self.assigned_work.items() if files}
        own, taken = folders.get(node), set(folders.values()) - {""}

        def rank(file: str) -> int:
            folder = shared_folder(file)
            return 0 if folder and folder == own else 2 if folder in taken else 1

        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


@cache
def shared_folder(file: str) -> str:
    """Return the folder of a file of tests if the tests of that folder share fixtures, else nothing."""
    folder = Path(file).parent
    conftest = TOP / folder / "conftest.py"
    return str(folder) if conftest.exists() and 'scope="package"' in conftest.read_text() else ""
