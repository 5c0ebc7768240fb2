"""A command sees the variables that it needs and those that are named, and tells no secret of its worker."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import cast

import pytest
from pydantic import ValidationError

from cantata.errors import StepError
from cantata.models.definitions import Command, Definitions
from cantata.models.graph import Outcome, Spec
from cantata.models.values import JsonValue
from cantata.state.ledger.records import Begun
from cantata.workers.handlers import HANDLERS
from cantata.workers.runtime.process import Process
from cantata.workers.runtime.step_context import StepContext

PRINT_ALL = "import os; print(*os.environ, sep='\\n')"
SECRET = "correct-horse-battery"


def ran(code: str, *, env: list[str] | None = None) -> dict[str, JsonValue]:
    """The output of a step that runs this Python code as a command."""
    named = {} if env is None else {"env": env}
    definitions = Definitions(commands={"python": Command.model_validate({"command": [sys.executable, "-I", "-c", code], **named})})
    process = cast(Process, SimpleNamespace(definitions=lambda run_id, digest: definitions))
    begun = Begun("run", "step", 1, "worker", Spec(kind="proc.run", params={"command": "python"}), None, 0, {}, "")
    return cast("dict[str, JsonValue]", cast(Outcome, HANDLERS["proc.run"](StepContext(begun, process))).output)


@pytest.fixture(autouse=True)
def _a_worker_with_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_API_KEY", SECRET)
    monkeypatch.setenv("DESK_REGION", "north")
    monkeypatch.setenv("TZ", "UTC")


def test_a_command_sees_the_base_set_and_what_is_named() -> None:
    bare, named = (str(ran(PRINT_ALL, env=env)["stdout"]).split() for env in (None, ["DESK_REGION"]))

    assert {"PATH", "HOME", "TZ"} <= set(bare)
    assert not {"DESK_API_KEY", "DESK_REGION", "REDIS_URL"} & set(bare)
    assert set(named) - set(bare) == {"DESK_REGION"}


def test_a_named_variable_that_is_not_set_is_an_error_that_says_so() -> None:
    with pytest.raises(StepError, match="DESK_NOTHING is not set; set it in the environment of the workers"):
        ran(PRINT_ALL, env=["DESK_NOTHING"])


def test_the_output_of_a_command_has_no_secrets() -> None:
    code = "import os, sys; print('key', os.environ['DESK_API_KEY']); print('Bearer abcdefgh', file=sys.stderr)"

    output = ran(code, env=["DESK_API_KEY"])

    assert (output["stdout"], output["stderr"]) == ("key ***\n", "Bearer ***\n")


def test_an_error_s_quotation_does_not_begin_within_a_secret() -> None:
    code = "import os, sys; sys.exit(os.environ['DESK_API_KEY'] + '.' * 490)"

    with pytest.raises(StepError) as caught:
        ran(code, env=["DESK_API_KEY"])

    assert "battery" not in str(caught.value)


def test_a_command_names_variables_and_has_no_values() -> None:
    with pytest.raises(ValidationError, match="expected the name of an environment variable") as caught:
        Command(command=["x"], env=[f"DESK_API_KEY={SECRET}"])

    assert SECRET not in str(caught.value.errors()[0]["msg"])
