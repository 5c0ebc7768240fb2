"""The name of a call's function is found in every shape that libraries give a call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from cantata.flows.turns.function_names import get_function_name_from_tool_call


class Dumped:
    def model_dump(self) -> dict[str, dict[str, str]]:
        return {"function": {"name": "f"}}


class Function(BaseModel):
    name: str


class Typed(BaseModel):
    function: Function


@pytest.mark.parametrize(
    "call",
    [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        SimpleNamespace(function=SimpleNamespace(name="f")),
        SimpleNamespace(function={"name": "f"}),
        {"function": SimpleNamespace(name="f")},
        Typed(function=Function(name="f")),
        Dumped(),
    ],
)
def test_every_shape_gives_the_name(call: object) -> None:
    assert get_function_name_from_tool_call(call) == "f"


@pytest.mark.parametrize(
    "call",
    [None, "f", 1, [], {}, {"name": "f"}, {"function": None}, {"function": "f"}, {"function": {"name": ""}}, {"function": {"name": 1}},
     SimpleNamespace(function=None), SimpleNamespace(name="f"), SimpleNamespace(model_dump=lambda: None)],
)  # fmt: skip
def test_what_names_no_function_gives_none(call: object) -> None:
    assert get_function_name_from_tool_call(call) is None
