"""The documentation as a site: `./run docs`. The pages are plain Markdown with plain links, so a repository's host shows them too."""

from __future__ import annotations

import re

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
myst_links_external_new_tab = False
default_role = "code"  # docstrings mark code as Markdown does
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True

_PART = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_PAGE = re.compile(r"^(?:- |\| )\[[^]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)
_API = re.compile(r"^<!-- (auto\w+: [\w.]+) -->$", re.MULTILINE)


def add_toctrees(app: Sphinx, page: str, source: list[str]) -> None:
    """Make a part of the navigation of each heading of index.md, with the pages that it lists."""
    if page == root_doc:
        parts = [f"```{{toctree}}\n:hidden:\n:caption: {part[1]}\n\n" + "\n".join(_PAGE.findall(part[2])) + "\n```\n" for part in _PART.finditer(source[0])]
        source[0] += "\n" + "\n".join(parts)


def add_docstrings(app: Sphinx, page: str, source: list[str]) -> None:
    """Put signatures and docstrings where a comment names them: `<!-- autoclass: cantata.Client -->`."""
    source[0] = _API.sub(lambda found: f"```{{eval-rst}}\n.. {found[1].replace(':', '::')}\n```", source[0])


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("source-read", add_toctrees)
    app.connect("source-read", add_docstrings)
