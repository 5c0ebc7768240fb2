"""`python -m tests.integration.flower.screenshot`: makes docs/images/flower-runs.png, the page of a task with its way to the run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.integration.browser.chromium import chromium
from tests.integration.flower.conftest import opened
from tests.waiting import until

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "flower-runs.png"


def main() -> None:
    """Run a chain, and photograph the page of its last task."""
    with (
        tempfile.TemporaryDirectory(prefix="ca", dir="/tmp") as folder,
        opened(Path(folder)) as deployment,
        chromium() as browser,
    ):
        run_id = deployment.added().run_id
        with deployment.http() as http:
            path = f"/runs/api/runs/{run_id}/tasks"
            found = until(
                lambda: [task for task in http.get(path).json()["tasks"] if "sum" in task["steps"]],
                "the task of the step",
            )
        page = browser.new_page(base_url=deployment.url, viewport={"width": 1000, "height": 400})
        page.goto(f"/task/{found[0]['uuid']}", wait_until="networkidle")
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=str(PICTURE))


if __name__ == "__main__":
    main()
