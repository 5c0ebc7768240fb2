"""A command sees the variables that it needs and those that are named, and tells no secret of its worker."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from cantata.errors import StepError
from cantata.flows.definitions import Command, Definitions, Limits
from cantata.flows.graph import Outcome, Spec
from cantata.ledger.records import Begun
from cantata.values import JsonValue
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps.handlers import HANDLERS
from tests.faults.processes import is_alive
from tests.waiting import until

PRINT_ALL = "import os; print(*os.environ, sep='\\n')"
SECRET = "correct-horse-battery"


def ran(
    code: str, *, given: dict[str, JsonValue] | None = None, limit_bytes: int = 16_000_000, **fields: Any
) -> dict[str, JsonValue]:
    """The output of a step that runs this Python code as a command."""
    named = {name: value for name, value in fields.items() if value is not None}
    python = Command.model_validate({"command": [sys.executable, "-I", "-c", code], **named})
    definitions = Definitions(commands={"python": python}, limits=Limits(output_bytes=limit_bytes))
    process = cast(Process, SimpleNamespace(definitions=lambda run_id, digest: definitions))
    params: dict[str, JsonValue] = {"command": "python", "input": given or {}}
    begun = Begun("run", "step", 1, "worker", Spec(kind="proc.run", params=params), None, 0, {}, "")
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


ENDLESS = "import sys\nwhile True: {stream}.write('x' * 60000)"


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr", "(sys.stdout if id(object()) % 3 else sys.stderr)"])
def test_a_command_that_writes_without_end_is_killed_and_costs_bounded_memory(stream: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(
        StepError, match=r"command wrote more than 2\.0 MB and was stopped \(limits\.output_bytes\)"
    ) as failed:
        ran(ENDLESS.format(stream=stream), limit_bytes=2_000_000)

    assert (failed.value.code, failed.value.retryable) == ("output_too_large", False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_a_command_within_the_limit_is_read_whole_beside_a_large_input() -> None:
    code = "import sys; text = sys.stdin.read(); sys.stderr.write('e' * len(text)); sys.stdout.write(text)"

    output = ran(code, given={"stdin": "x\r\n" * 100_000})

    assert output["stdout"] == "x\n" * 100_000
    assert len(str(output["stderr"])) == 300_000


def test_a_command_that_does_not_read_its_input_succeeds() -> None:
    assert ran("print(1)", given={"stdin": "x" * 1_000_000})["stdout"] == "1\n"


@pytest.mark.parametrize(
    "code", ["import time; time.sleep(60)", "import os, time; os.close(1); os.close(2); time.sleep(60)"]
)
def test_a_command_past_its_time_is_killed(code: str) -> None:
    since = time.monotonic()

    with pytest.raises(StepError, match=r"command took longer than its 0\.5 s and was stopped"):
        ran(code, timeout_s=0.5)

    assert time.monotonic() - since < 30


def test_what_a_killed_command_started_is_killed_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import subprocess; child = subprocess.Popen(['sleep', '600']); open({str(pid)!r}, 'w').write(str(child.pid)); child.wait()"

    with pytest.raises(StepError):
        ran(code, timeout_s=3)

    until(lambda: not is_alive(int(pid.read_text())), "its end")


PRINT_ARGS = "import sys; print(sys.argv[1:])"


@pytest.mark.parametrize(
    ("args", "seen"),
    [(None, ["--output=x", "2"]), ("any", ["--output=x", "2"]), ("operands", ["--", "--output=x", "2"])],
)
def test_the_arguments_of_a_run_follow_what_the_command_allows(args: str | None, seen: list[str]) -> None:
    assert ran(PRINT_ARGS, args=args, given={"args": ["--output=x", 2]})["stdout"] == f"{seen}\n"


def test_behind_dashes_no_argument_is_an_option(tmp_path: Path) -> None:
    file = tmp_path / "made"
    sort = ["sort", "--", f"--output={file}"]

    assert subprocess.run(sort, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 2, (
        "as a file, which is not there"
    )
    assert not file.exists()


def test_a_command_that_takes_no_arguments_refuses_them() -> None:
    assert ran(PRINT_ARGS, args="none")["stdout"] == "[]\n"
    with pytest.raises(
        StepError, match=r"the command takes no 'args' \(args: none in the configuration\), and the node gives 1"
    ):
        ran(PRINT_ARGS, args="none", given={"args": ["-x"]})
