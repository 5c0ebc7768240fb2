"""Functions get the names that workers import them by; what has none is refused with what to do."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cantata.config.user_code.function_names import name_of, shared_folder
from cantata.errors import ConfigError

Run = Callable[..., dict[str, Any]]

STEPS = """
import functools

def loud(function):
    @functools.wraps(function)
    def wrapper(text):
        return function(text).upper()
    return wrapper

def clean(text):
    return text.strip()

@loud
def shout(text):
    return text

class Cleaner:
    def clean(self, text):
        return text

def make():
    def inner(text):
        return text
    return inner

bound = Cleaner().clean
part = functools.partial(clean)
unnamed = lambda text: text
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules, which are forgotten after the test."""
    (tmp_path / "steps_here.py").write_text(STEPS)
    (tmp_path / "package_here" / "inner").mkdir(parents=True)
    (tmp_path / "package_here" / "__init__.py").write_text("def top(text):\n    return text\n")
    (tmp_path / "package_here" / "inner" / "deep.py").write_text("def low(text):\n    return text\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path.resolve()
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_here")]:
        del sys.modules[name]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script as Python would, in a namespace of its own."""

    def run(name: str, *, spec: str | None = None, text: str = STEPS) -> dict[str, Any]:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        namespace = {"__name__": "__main__", "__file__": str(file), "__spec__": spec and SimpleNamespace(name=spec)}
        exec(compile(text, str(file), "exec"), namespace)
        return namespace

    return run


@pytest.mark.parametrize(
    ("module", "function", "name"),
    [
        ("steps_here", "clean", "steps_here:clean"),
        ("steps_here", "shout", "steps_here:shout"),
        ("package_here", "top", "package_here:top"),
        ("package_here.inner.deep", "low", "package_here.inner.deep:low"),
    ],
)
def test_a_function_is_named_by_its_module_and_the_folder_that_is_imported_from(
    folder: Path, module: str, function: str, name: str
) -> None:
    assert name_of(getattr(importlib.import_module(module), function)) == (name, folder)


@pytest.mark.parametrize(
    ("function", "name"), [(len, "builtins:len"), (json.dumps, "json:dumps"), (pytest.approx, "_pytest")]
)
def test_what_is_installed_needs_no_folder(function: Callable[..., Any], name: str) -> None:
    found, folder = name_of(function)

    assert found.startswith(name)
    assert folder is None


def test_a_function_of_the_script_is_named_by_the_scripts_file(run: Run, tmp_path: Path) -> None:
    namespace = run("report.py")

    assert name_of(namespace["clean"]) == ("report:clean", tmp_path.resolve())
    assert name_of(namespace["shout"]) == ("report:shout", tmp_path.resolve())


def test_a_function_of_a_module_that_runs_is_named_by_the_module(run: Run, tmp_path: Path) -> None:
    (tmp_path / "package_there").mkdir()
    (tmp_path / "package_there" / "__init__.py").touch()
    namespace = run("package_there/report.py", spec="package_there.report")

    assert name_of(namespace["clean"]) == ("package_there.report:clean", tmp_path.resolve())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "unnamed",
            "a lambda has no name; workers import functions by name: define it with `def` at the top level of a module",
        ),
        ("inner", r"'inner' is defined inside 'make'; workers import .* go into functools.partial\(function, value\)"),
        ("bound", "'Cleaner.clean' is a method; workers import .* that calls it"),
        (
            "part",
            r"only steps and chainbreakers may be a functools\.partial; workers import .* that calls it with the values",
        ),
    ],
)
def test_what_workers_could_not_find_is_refused_with_what_to_do(folder: Path, name: str, said: str) -> None:
    module = importlib.import_module("steps_here")

    with pytest.raises(ConfigError, match=said):
        name_of(module.make() if name == "inner" else getattr(module, name))


def test_a_function_that_is_not_what_its_name_means_is_refused(folder: Path) -> None:
    module = importlib.import_module("steps_here")
    hidden = vars(module).pop("clean")

    with pytest.raises(ConfigError, match=r"steps_here.clean is not this function"):
        name_of(hidden)


def test_a_function_of_an_interactive_session_is_refused() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def typed(text): return text", namespace)

    with pytest.raises(
        ConfigError, match=r"'typed' was defined in an interactive session.*put it in a file, such as steps.py"
    ):
        name_of(namespace["typed"])


def test_a_function_typed_in_after_a_script_is_refused(run: Run) -> None:
    namespace = run("report.py")
    exec("def typed(text): return text", namespace)

    with pytest.raises(ConfigError, match=r"function 'typed' is not in report.py"):
        name_of(namespace["typed"])


@pytest.mark.parametrize("name", ["my-report.py", "my.report.py", "report 2.py"])
def test_a_script_whose_name_cannot_be_imported_is_refused(run: Run, name: str) -> None:
    with pytest.raises(
        ConfigError, match="is no name that can be imported; call the script with letters, digits and underscores"
    ):
        name_of(run(name)["clean"])


def test_one_folder_is_shared() -> None:
    assert shared_folder({"json:dumps": None}) is None
    assert shared_folder({"json:dumps": None, "a:f": Path("/a"), "b:f": Path("/a")}) == Path("/a")


def test_several_folders_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"the functions lie in several folders: /a, /b; .* put them in one, or install the others"
    ):
        shared_folder({"steps_nowhere:f": Path("/a"), "more_nowhere:f": Path("/b")})


def test_a_folder_that_every_interpreter_looks_in_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_by_all.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert shared_folder({"found_by_all:f": tmp_path, "script:f": Path("/a")}) == Path("/a")
