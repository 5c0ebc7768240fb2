"""Instructions: how each is told from its form."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from cantata.flows.instructions import AgenticStep, FunctionStep, Instruction, MemoryStep, NestedStep, PromptStep

READER: TypeAdapter[Instruction] = TypeAdapter(Instruction)


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("ask {input}", "ask {input}"),
        ({"prompt": "ask", "tools": []}, PromptStep(prompt="ask", tools=[])),
        (["ask", ["t"]], PromptStep(prompt="ask", tools=["t"])),
        ({"function": "m:f"}, FunctionStep(function="m:f")),
        (
            {"function": "m:f", "args": [2], "kwargs": {"a": None}},
            FunctionStep(function="m:f", args=[2], kwargs={"a": None}),
        ),
        ({"memory": "facts"}, MemoryStep(memory="facts")),
        ({"objective": "find it", "tools": ["t"]}, AgenticStep(objective="find it", tools=["t"])),
        ({"agent": "ann"}, NestedStep(agent="ann")),
        ({"chain": "c"}, NestedStep(chain="c")),
    ],
)
def test_the_form_tells_the_kind(form: object, read: Instruction) -> None:
    assert READER.validate_python(form) == read
    assert READER.validate_python(read) == read


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            {"promt": "ask"},
            "expected a text, or a mapping with `prompt`, `function`, `memory`, `objective`, `agent` or `chain`",
        ),
        (["ask", "t"], "expected a text, or a mapping with `prompt`"),
        (5, "expected a text, or a mapping with `prompt`"),
        ({"agent": "ann", "chain": "c"}, "name an agent or a chain, one of them"),
        ({"function": "no module"}, "String should match pattern"),
        ({"function": "m:f", "kwargs": {"token": "sk"}}, "'token' does not belong in a configuration"),
        ({"objective": "x", "model_params": {"api_key": "sk"}}, "'api_key' does not belong in a configuration"),
    ],
)
def test_any_other_form_is_refused(form: object, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        READER.validate_python(form)

    assert message in refused.value.errors()[0]["msg"]
