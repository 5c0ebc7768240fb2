"""What is added to Flower's templates, and what happens when they have changed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flower.urls import settings as flower_settings
from structlog.testing import capture_logs
from tornado.escape import url_escape

from cantata.surfaces.flower import flower_templates
from cantata.surfaces.flower.flower_templates import ADDITIONS, Addition, TemplateLoader

RUN = "1a1f849485c04486b37"
PAGES = Path(flower_settings["template_path"])


def reverse_url(name: str, *_: object) -> str:
    return f"/{name}/"


def put(folder: Path, **pages: str) -> TemplateLoader:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    return TemplateLoader(str(folder))


@pytest.mark.parametrize("name", ADDITIONS)
def test_there_is_a_place_for_each_in_this_flower(name: str) -> None:
    page = (PAGES / name).read_text()
    with capture_logs() as logs:
        TemplateLoader(str(PAGES)).load(name)

    extended = ADDITIONS[name].insert(page)
    assert extended is not None
    assert extended.count(ADDITIONS[name].text) == 1
    assert logs == []


def test_the_tab_stands_behind_the_last_of_flowers_own() -> None:
    own = {"static_url": reverse_url, "reverse_url": reverse_url, "active_tab": "tasks", "current_user": True}
    handler = SimpleNamespace(application=SimpleNamespace(options=SimpleNamespace(auth="")))

    page = TemplateLoader(str(PAGES)).load("navbar.html").generate(**own, handler=handler).decode()

    tabs = re.findall(r'<a class="nav-link.*?href="(.*?)"[^>]*>\s*(\w+)</a>', page, re.DOTALL)
    assert tabs == [("/workers/", "Workers"), ("/tasks/", "Tasks"), ("/broker/", "Broker"), ("/runs/", "Runs")]


def page_of(folder: Path, **task: Any) -> str:
    page = put(folder, task="<dl>\n</dl>").load("task.html")
    return page.generate(task=SimpleNamespace(**task), reverse_url=reverse_url, url_escape=url_escape).decode()


def test_a_tasks_page_leads_to_its_run_and_what_it_shows_is_text(tmp_path: Path) -> None:
    page = page_of(tmp_path, args=f"{RUN}:add(one,<script>alert(1)</script>)")

    assert f'<a href="/runs/run/{RUN}">{RUN}</a>: one, &lt;script&gt;' in page


def test_a_task_of_no_run_has_flowers_page(tmp_path: Path) -> None:
    assert page_of(tmp_path, args="(1, 2)") == "<dl>\n</dl>"


def test_a_template_without_a_place_is_shown_as_it_is_and_said_to_be(tmp_path: Path) -> None:
    with capture_logs() as logs:
        page = put(tmp_path, navbar="<ul></ul>").load("navbar.html")

    assert page.generate() == b"<ul></ul>"
    assert [(each["event"], each["template"], each["log_level"]) for each in logs] == [
        ("template_not_extended", "navbar.html", "warning")
    ]


def test_an_addition_that_cannot_be_read_there_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_templates, "ADDITIONS", {"navbar.html": Addition(re.compile("<ul>"), "{% end %}")})
    with capture_logs() as logs:
        page = put(tmp_path, navbar="<ul></ul>").load("navbar.html")

    assert page.generate() == b"<ul></ul>"
    assert "template_not_extended" in [each["event"] for each in logs]
