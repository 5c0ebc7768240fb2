"""The check of the layout finds what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

from tests import architecture
from tests.architecture import MAX_METHODS, PACKAGE, PACKAGES


def trees(**texts: str) -> dict[Path, ast.Module]:
    """Return modules of the package with these texts."""
    return {PACKAGE / "room" / f"{name}.py": ast.parse(text) for name, text in texts.items()}


METHODS = "\n".join(f"    def m{number}(self): ..." for number in range(MAX_METHODS + 1))


@pytest.mark.parametrize(
    ("rule", "texts", "breach"),
    [
        (
            architecture.class_names_used_twice,
            {"a": "class Run: ...", "b": "class Run: ..."},
            "class Run is defined in",
        ),
        (
            architecture.classes_that_are_too_large,
            {"a": f"class Large:\n{METHODS}"},
            f"has {MAX_METHODS + 1} public methods",
        ),
        (
            architecture.questions,
            {"a": 'def f():\n    """What it does."""'},
            "the docstring of f begins with a question word",
        ),
    ],
)
def test_a_breach_is_found(rule: object, texts: dict[str, str], breach: str) -> None:
    assert callable(rule)
    assert [breach in found for found in rule(trees(**texts))] == [True]


def test_sound_modules_have_no_breach() -> None:
    sound = trees(a='"""Runs."""\nclass Run:\n    def find(self): ...', b="class Step: ...")

    for rule in (architecture.class_names_used_twice, architecture.questions):
        assert list(rule(sound)) == []


@pytest.mark.parametrize(
    "line", ["# as in PromptChain", "def langswarm(): ...", '"""Diskurs folders."""', "kind = 'diskurs.ask'"]
)
def test_a_name_of_a_frontend_is_found_in_the_core_only(line: str) -> None:
    core, *others = (
        PACKAGE / "flows/graph.py",
        PACKAGES[1] / "x.py",
        PACKAGES[2] / "frontends/y/z.py",
        PACKAGE / "__init__.py",
    )

    (breach,) = architecture.names_of_frontends(dict.fromkeys((core, *others), f"1\n{line}\n"))

    assert breach.startswith("orchestrator/cantata/flows/graph.py:2 names the frontend ")


def test_cycles_and_imports_of_frontends_are_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (
        ("cantata.a", "cantata.b"),
        ("cantata.b", "cantata.a"),
        ("cantata.a", "cantata_frontends.c"),
    ):
        graph.add_import(importer=importer, imported=imported)

    (cycle,) = architecture.cycles(graph)
    assert {"cantata.a", "cantata.b"} == set(cycle.removeprefix("a cycle of imports: ").split(" -> "))
    assert list(architecture.imports_of_frontends(graph)) == ["cantata.a imports cantata_frontends.c"]
