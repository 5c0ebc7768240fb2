"""A call finds its tool, or is told which there are."""

from __future__ import annotations

import pytest

from cantata.workers.models.dialects.call_parsing import Dialect, ParsedCall, resolve, unknown_tool


@pytest.mark.parametrize(
    ("name", "dialect", "known", "resolved"),
    [
        ("add", "native", ["add"], "add"),
        ("add", "json", ["add"], "add"),
        ("files.read", "native", ["files.read"], "files.read"),
        ("files.read", "json", ["files", "files.read"], "files.read"),
        ("add.run", "json", ["add"], "add"),
        ("a.b.c.d", "json", ["a.b"], "a.b"),
        ("files.read.read", "json", ["files.read", "files.write"], "files.read"),
    ],
)
def test_a_call_gets_its_tools_name(name: str, dialect: Dialect, known: list[str], resolved: str) -> None:
    call = resolve(ParsedCall(id="1", name=name, arguments={}, dialect=dialect), known)

    assert (call.name, call.fault) == (resolved, "")


@pytest.mark.parametrize(
    ("name", "dialect", "known", "hint"),
    [
        ("ad", "native", ["add", "sub"], " Did you mean 'add'?"),
        ("add.run", "native", ["zzz"], " There are 'zzz'."),
        ("files.reed", "json", ["files", "files.read"], " Did you mean 'files.read'"),
        ("files", "json", ["files.read"], " Did you mean 'files.read'?"),
        ("a", "json", ["a.quite_long_name", "b.quite_long_name"], " Did you mean 'a.quite_long_name'?"),
        ("a.b", "json", [], ""),
        ("q", "json", [f"tool{n}" for n in range(11)], ""),
    ],
)
def test_an_unknown_tool_is_a_fault_that_names_what_is_near(name: str, dialect: Dialect, known: list[str], hint: str) -> None:
    call = resolve(ParsedCall(id="1", name=name, arguments={}, dialect=dialect), known)

    assert call.name == name
    assert call.fault.startswith(f"Tool function {name!r} is not available.{hint}")


def test_a_fault_stays() -> None:
    call = ParsedCall(id="1", name="add", fault="bad")

    assert resolve(call, ["add"]) is call


def test_a_name_that_is_a_novel_is_cut() -> None:
    assert len(unknown_tool("x" * 100_000, ["add"])) < 200
