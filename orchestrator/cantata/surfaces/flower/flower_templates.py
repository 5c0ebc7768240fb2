"""Flower's templates, two of them extended: the tab of the runs, and the link of a task to its run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from tornado.template import Loader, ParseError, Template

from cantata.surfaces.flower.task_links import task_target

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Addition:
    """A text to insert in a template after a pattern."""

    after: re.Pattern[str]
    text: str

    def insert(self, template: str) -> str | None:
        """Return the template with the text; None if the pattern is not found."""
        found = self.after.search(template)
        return found and template[: found.end()] + self.text + template[found.end() :]


ADDITIONS: Mapping[str, Addition] = {
    "navbar.html": Addition(
        re.compile(r"reverse_url\(['\"]broker['\"]\).*?</li>", re.DOTALL),
        """<li class="nav-item"><a class="nav-link" href="{{ reverse_url('runs') }}">Runs</a></li>""",
    ),
    "task.html": Addition(
        re.compile(r"<dl\b[^>]*>"),
        """{% set target = task_target(task) %}{% if target %}<div class="detail-row task-data-row"><dt>Run</dt><dd>"""
        """<a href="{{ reverse_url('runs') }}run/{{ url_escape(target.run_id, plus=False) }}">{{ target.run_id }}</a>: """
        """{{ ', '.join(target.steps) }}</dd></div>{% end %}""",
    ),
}
"""Template → its addition."""


class TemplateLoader(Loader):
    """Loads Flower's templates, with our additions where they fit."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, namespace={"task_target": task_target})

    def _create_template(self, name: str) -> Template:
        addition = ADDITIONS.get(name)
        return (addition and self._extended(name, addition)) or super()._create_template(name)

    def _extended(self, name: str, addition: Addition) -> Template | None:
        text = addition.insert(Path(self.root, name).read_text("utf-8"))
        try:
            if text is not None:
                return Template(text, name=name, loader=self)
        except (ParseError, SyntaxError) as error:
            log.debug("template_not_read", template=name, error=str(error))
        log.warning(
            "template_not_extended", template=name, note="it is served as Flower has it; the run pages are at /runs/"
        )
        return None
