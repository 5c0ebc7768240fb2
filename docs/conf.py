"""The documentation as a site: `./run docs`. The pages are plain Markdown with plain links, so a repository's host shows them too."""

from __future__ import annotations

import re

from pydantic import BaseModel
from sphinx.application import Sphinx

from cantata import __version__

project = "Cantata"
author = "The Cantata authors"
release = __version__
root_doc = "index"
html_theme = "furo"
html_title = "Cantata"
html_show_copyright = False
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
default_role = "code"  # docstrings mark code as Markdown does
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures need no page of their own; links of pages are checked

_PART = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_PAGE = re.compile(r"^(?:- |\| )\[[^]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)
_API = re.compile(r"^<!-- (auto\w+: [\w.]+) -->$", re.MULTILINE)


def add_toctrees(app: Sphinx, page: str, source: list[str]) -> None:
    """Make a part of the navigation of each heading of index.md, with the pages that it lists."""
    if page == root_doc:
        for title, text in _PART.findall(source[0]):
            source[0] += (
                f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(_PAGE.findall(text)) + "\n```\n"
            )


def add_docstrings(app: Sphinx, page: str, source: list[str]) -> None:
    """Put signatures and docstrings where a comment names them: `<!-- autoclass: cantata.Client -->`."""
    source[0] = _API.sub(lambda found: f"```{{eval-rst}}\n.. {found[1].replace(':', '::')}\n```", source[0])


def add_fields(app: Sphinx, kind: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    """List the fields of a pydantic model with their descriptions."""
    if kind == "class" and isinstance(documented, type) and issubclass(documented, BaseModel):
        lines += [
            f"* `{field}`: {info.description}" for field, info in documented.model_fields.items() if info.description
        ]


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("autodoc-process-docstring", add_fields)
    app.connect("source-read", add_toctrees)
    app.connect("source-read", add_docstrings)
