"""The run pages inside Flower, in a real Chromium: the tab, and the way between a task and its run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.browser.chromium import chromium
from tests.integration.flower.conftest import PATIENCE_S, Deployment
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's own Chromium."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, deployment: Deployment) -> Iterator[Page]:
    """A page of its own, which loads from this Flower only and has no errors."""
    page = browser.new_page(base_url=deployment.url, viewport={"width": 1200, "height": 640})
    page.set_default_timeout(PATIENCE_S * 1000)
    expect.set_options(timeout=PATIENCE_S * 1000)
    elsewhere: list[str] = []
    broken: list[str] = []
    page.on(
        "request",
        lambda request: None if request.url.startswith((deployment.url, "data:")) else elsewhere.append(request.url),
    )
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on(
        "console", lambda message: broken.append(message.text) if "Content Security Policy" in message.text else None
    )
    yield page
    page.close()
    assert (elsewhere, broken) == ([], [])


@pytest.mark.thorough("a browser draws three pages; what Flower serves is held by flower/test_flower.py")
@pytest.mark.slow("a browser draws it")
def test_the_tab_shows_the_runs_of_which_one_is_opened(page: Page, deployment: Deployment) -> None:
    run_id = deployment.added().run_id

    page.goto("/")
    page.get_by_role("link", name="Runs").click()
    row = page.locator(f"a[href='/runs/run/{run_id}']").first
    expect(row).to_be_visible()
    row.click()

    expect(page).to_have_url(f"{deployment.url}/runs/run/{run_id}")
    expect(page.get_by_text("succeeded").first).to_be_visible()


@pytest.mark.thorough("a browser draws four pages; the links are held by unit/surfaces/flower/test_flower_templates.py")
def test_a_task_leads_to_its_run_and_that_back_to_its_tasks(page: Page, deployment: Deployment) -> None:
    run_id = deployment.added().run_id
    with deployment.http() as http:
        path = f"/runs/api/runs/{run_id}/tasks"
        found = until(
            lambda: [task for task in http.get(path).json()["tasks"] if "sum" in task["steps"]], "the task of the step"
        )

    page.goto(f"/task/{found[0]['uuid']}")
    page.get_by_role("link", name=run_id).click()
    page.get_by_role("tab", name="Tasks").click()
    page.locator(f"a[href$='/task/{found[0]['uuid']}']").click()

    expect(page).to_have_url(f"{deployment.url}/task/{found[0]['uuid']}")
