"""Functions named `module:name`, looked for without importing anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cantata.config.user_code.function_source import fault_of

TEXT_TOOLS = r"""
import json as js, os.path
from collections import Counter as Tally
LIMIT: int = 3
first, (second, *others) = 1, (2, 3)
if LIMIT:
    def count(text): inner = "\d"
else:
    async def fetch(): ...
try:
    import ujson
except ImportError as error:
    ujson = None
with open(__file__) as file:
    class Parser: depth = 1
squares = [number for number in range(3)]
double = lambda value: value * 2
raise RuntimeError("imported")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "text_tools.py": TEXT_TOOLS,
        "star.py": "from os.path import *",
        "lazy.py": "def __getattr__(name): ...",
        "broken.py": "def f():\n  return (",
        "latin.py": "# coding: latin-1\ndef f(): 'é'",
        "tools/__init__.py": "def f(): ...",
        "tools/deep/text.py": "def f(): ...",
        "json/data.py": "",
        "yaml/__init__.py": "def ours(): ...",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "latin-1")
    (tmp_path / "null.py").write_bytes(b"x = 1\0")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["js", "os", "Tally", "LIMIT", "first", "second", "others", "count", "fetch", "ujson", "file", "Parser", "double"],
)
def test_what_a_module_defines_at_its_top_level_is_found(folder: Path, name: str) -> None:
    assert fault_of(f"text_tools:{name}", folder=folder) is None


@pytest.mark.parametrize("name", ["inner", "depth", "number", "value", "text", "Counter"])
def test_what_stands_inside_is_not_found(folder: Path, name: str) -> None:
    fault = fault_of(f"text_tools:{name}", folder=folder)

    assert fault is not None
    assert fault.startswith(f"function {name!r} is not in text_tools.py")


@pytest.mark.parametrize(
    "function",
    [
        "star:join",
        "lazy:anything",
        "latin:f",
        "tools:f",
        "tools.deep.text:f",
        "json:loads",
        "json.decoder:JSONDecoder",
        "os.path:join",
        "time:time",
        "yaml:ours",
        "litellm:completion",
    ],
)
def test_the_folder_is_searched_and_then_what_is_installed(folder: Path, function: str) -> None:
    assert fault_of(function, folder=folder) is None


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        ("text_tools:cuont", "function 'cuont' is not in text_tools.py; did you mean 'count'?"),
        ("tools:zzz", "function 'zzz' is not in tools/__init__.py"),
        ("yaml:safe_load", "function 'safe_load' is not in yaml/__init__.py"),
        ("text_tols:count", "module 'text_tols' is not in {folder} nor installed; did you mean 'text_tools'?"),
        ("tool:f", "module 'tool' is not in {folder} nor installed; did you mean 'tools'?"),
        ("tools.zzz:f", "module 'tools.zzz' is not in {folder} nor installed; did you mean 'tools'?"),
        ("os.zzz:f", "module 'os.zzz' is not in {folder} nor installed"),
        ("a..b:f", "module 'a..b' is not in {folder} nor installed"),
        ("broken:f", "module 'broken' cannot be imported: broken.py line 2: '(' was never closed"),
        ("tools.deep:f", "module 'tools.deep' is a folder without __init__.py, so it has no functions"),
    ],
)
def test_a_function_that_is_not_there_is_told(folder: Path, function: str, fault: str) -> None:
    assert fault_of(function, folder=folder) == fault.format(folder=folder)


def test_a_module_that_python_cannot_read_is_told(folder: Path) -> None:
    fault = fault_of("null:f", folder=folder)

    assert fault is not None
    assert "null.py" in fault


def test_without_a_folder_only_what_is_installed_is_found(folder: Path) -> None:
    assert fault_of("json:dumps", folder=None) is None
    (folder / "only_here.py").touch()
    assert fault_of("only_here:count", folder=None) == "module 'only_here' is not installed"


def test_nothing_is_imported(folder: Path) -> None:
    before = set(sys.modules)

    fault_of("text_tools:count", folder=folder)
    fault_of("tools.deep.text:f", folder=folder)
    fault_of("wsgiref.handlers:BaseHandler", folder=folder)

    assert set(sys.modules) == before


def test_a_module_is_read_again_when_it_changed(folder: Path) -> None:
    module = folder / "young.py"
    module.write_text("def old(): ...")
    assert fault_of("young:new", folder=folder)

    module.write_text("def new(): ...")
    os.utime(module, (0, 0))

    assert fault_of("young:new", folder=folder) is None
