"""The environments of the projects, with Cantata and without."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.acceptance.neighbours.environments import HERE, TOP

PROJECTS = pytest.mark.parametrize("project", ["django", "flask-next", "girder", "invenio", "pretalx"])


def pins(lock: str) -> set[str]:
    """The packages of a lock file, each with its version and the machines it is for."""
    return set(re.findall(r"^[a-z0-9-]+==[^\\]+", (HERE / lock).read_text(), re.MULTILINE))


@PROJECTS
def test_installing_cantata_moves_none_of_a_projects_pins(project: str) -> None:
    theirs, both = pins(f"{project}.lock"), pins(f"{project}-cantata.lock")

    assert len(theirs) > 10
    assert theirs < both


@PROJECTS
def test_what_cantata_depends_on_is_installed_beside_them(project: str) -> None:
    asked = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = dict(re.split(r"==|\s", pin)[:2] for pin in pins(f"{project}-cantata.lock"))

    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(versions[requirement.name]), requirement


@pytest.mark.parametrize(
    ("lock", "fits"), [("django", True), ("flask-next", True), ("flask", False), ("invenio", True), ("pretalx", True)]
)
def test_only_pins_within_the_bounds_of_the_base_package_take_it(lock: str, fits: bool) -> None:
    asked = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = dict(re.split(r"==|\s", pin)[:2] for pin in pins(f"{lock}.lock"))

    bounds = {each.name: each.specifier for each in map(Requirement, asked) if each.name in versions}
    assert all(bounds[name].contains(versions[name]) for name in bounds) == fits


@pytest.mark.parametrize("lock", ["django", "flask-next", "flask", "girder", "invenio", "pretalx"])
def test_the_page_shows_the_versions_that_are_run(lock: str) -> None:
    versions = dict(re.split(r"==|\s", pin)[:2] for pin in pins(f"{lock}.lock"))

    assert (
        f"| {versions['celery']} | {versions['kombu']} | {versions.get('redis', 'none')} |"
        in (TOP / "docs" / "compatibility.md").read_text()
    )
