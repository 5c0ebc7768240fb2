"""Flower's templates with a little more in two of them: the tab of the runs, and a task's link to its run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from tornado.template import Loader, ParseError, Template

from cantata.dashboard.flower.task_links import place_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Addition:
    """What is added to a template, and behind what."""

    behind: re.Pattern[str]
    text: str

    def to(self, template: str) -> str | None:
        """The template with it; None if there is no place for it."""
        found = self.behind.search(template)
        return found and template[: found.end()] + self.text + template[found.end() :]


ADDITIONS: Mapping[str, Addition] = {
    "navbar.html": Addition(
        re.compile(r"reverse_url\(['\"]broker['\"]\).*?</li>", re.DOTALL),
        """<li class="nav-item"><a class="nav-link" href="{{ reverse_url('runs') }}">Runs</a></li>""",
    ),
    "task.html": Addition(
        re.compile(r"<dl\b[^>]*>"),
        """{% set place = place_of(task) %}{% if place %}<div class="detail-row task-data-row"><dt>Run</dt><dd>"""
        """<a href="{{ reverse_url('runs') }}run/{{ url_escape(place.run_id, plus=False) }}">{{ place.run_id }}</a>: """
        """{{ ', '.join(place.steps) }}</dd></div>{% end %}""",
    ),
}
"""Template → what is added to it."""


class Templates(Loader):
    """Loads Flower's templates, with the additions where there is a place for them."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, namespace={"place_of": place_of})

    def _create_template(self, name: str) -> Template:
        addition = ADDITIONS.get(name)
        return (addition and self._extended(name, addition)) or super()._create_template(name)

    def _extended(self, name: str, addition: Addition) -> Template | None:
        text = addition.to(Path(self.root, name).read_text("utf-8"))
        try:
            if text is not None:
                return Template(text, name=name, loader=self)
        except (ParseError, SyntaxError) as error:
            log.debug("template_not_read", template=name, error=str(error))
        log.warning("flower_has_changed", template=name, note="it is shown as Flower made it: the runs are at /runs/ all the same")
        return None
