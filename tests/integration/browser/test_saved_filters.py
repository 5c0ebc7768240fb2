"""Filters of the list of runs that a browser keeps under a name."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser import hostile
from tests.integration.browser.stage import PATIENCE_S, Stage, tool

pytestmark = pytest.mark.timeout(240)  # a busy machine draws slowly

NO_STORAGE = """Object.defineProperty(window, "localStorage", { get() { throw new DOMException("denied", "SecurityError"); } });"""
"""As browsers do where a user forbids storage."""
FULL = """Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };"""


@pytest.mark.slow("a browser draws it")
def test_a_filter_is_saved_shared_renamed_and_deleted(deployment: Stage, url: str, page: Page) -> None:
    deployment.chain(tool("only", "fail", message="no luck"), labels={"mark": "saved"}).wait(PATIENCE_S)
    deployment.chain(tool("only", "add"), labels={"mark": "saved"}).wait(PATIENCE_S)
    rows, saved = page.locator(".row-link"), page.get_by_role("region", name="Saved filters")

    page.goto(f"{url}/pages/?q=saved")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Failed").click()
    expect(rows).to_have_count(1)
    saved.get_by_role("button", name="Save this filter").click()
    expect(saved.get_by_label("Name of the filter")).to_be_focused()
    page.keyboard.type(f"Bad {hostile.OVERRIDE}")
    page.keyboard.press("Enter")
    link = saved.get_by_role("link", name="Bad abc\\u202egnp.exe")
    expect(link).to_have_attribute("aria-current", "true")
    address = link.get_attribute("href")
    assert address == "/pages/?status=failed&q=saved"

    page.goto(f"{url}/pages/")
    expect(saved.get_by_role("button")).to_have_count(0)
    link.click()
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile(re.escape(address) + "$"))
    with deployment.page() as other:  # of another person: the address is all that it needs
        other.goto(url + address)
        expect(other.locator(".row-link")).to_have_count(1)
        expect(other.get_by_role("button", name="Failed")).to_have_attribute("aria-pressed", "true")
        expect(other.get_by_role("region", name="Saved filters").get_by_role("link")).to_have_count(0)

    saved.get_by_role("button", name="Rename").click()
    expect(saved.get_by_label("Name of the filter")).to_be_focused()
    page.keyboard.type("Bad ones")
    page.keyboard.press("Enter")
    expect(saved.get_by_role("link")).to_have_text("Bad ones")
    page.get_by_label("Kind").select_option("turn")
    saved.get_by_role("button", name="Save this filter").click()
    expect(saved.get_by_label("Name of the filter")).to_be_focused()
    page.keyboard.type("Bad ones")
    page.keyboard.press("Enter")
    expect(saved.get_by_role("status")).to_have_text("There is a saved filter Bad ones already.")
    page.keyboard.press("Escape")
    page.reload()
    saved.get_by_role("link", name="Bad ones").click()
    saved.get_by_role("button", name="Delete").click()
    expect(saved.get_by_role("link")).to_have_count(0)
    expect(saved.get_by_role("status")).to_have_text("Bad ones is deleted.")
    assert page.evaluate("Object.keys(localStorage).map((key) => localStorage.getItem(key))") == ["[]"]


@pytest.mark.parametrize("script", [NO_STORAGE, FULL], ids=["denied", "full"])
@pytest.mark.slow("a browser draws it")
def test_without_storage_the_page_works_and_says_so(url: str, page: Page, script: str) -> None:
    page.add_init_script(script)

    page.goto(f"{url}/pages/?status=failed&q=nothing-like-this")
    expect(page.get_by_text("No run matches this filter.")).to_be_visible()
    saved = page.get_by_role("region", name="Saved filters")
    saved.get_by_role("button", name="Save this filter").click()

    expect(saved.get_by_role("status")).to_contain_text("filters cannot be saved")
    expect(saved.get_by_role("status")).to_contain_text("The address of the page has this filter")
