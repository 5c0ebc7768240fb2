"""The command line without a service: usage and errors."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cantata.errors import CantataError, ConfigError, Fault, UnavailableError, UnknownRunError
from cantata.surfaces.cli.main import COMMANDS, ExitStatusCommand, submit
from tests.unit.surfaces.cli.invocation import NO_SERVICE, run


def command_of(name: str) -> click.Command:
    command = submit.get_command(click.Context(submit), name)
    assert command is not None
    return command


def raising(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return ExitStatusCommand("fail", callback=fail)


def test_help_lists_every_command_with_what_it_does() -> None:
    result = run("--help")

    assert result.exit_code == 0
    for name, (_, does) in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert does.split(maxsplit=1)[0] in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_has_the_description_of_each_command(name: str) -> None:
    assert (command_of(name).help or "").startswith(COMMANDS[name][1])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("statsu", "submit status"),
        ("Stats", "submit status"),
        ("chian", "submit chain"),
        ("run", "submit runs"),
        ("dwon", "submit down"),
        ("retry", "submit runs retry"),
        ("help", "submit --help"),
        ("version", "submit --version"),
    ],
)
def test_a_word_that_is_nearly_a_command_is_not_sent_to_a_model(typed: str, meant: str) -> None:
    result = run(typed)

    assert result.exit_code == 2
    assert f"did you mean `{meant}`?" in result.stderr
    assert f"submit turn '{typed}'" in result.stderr


def test_the_name_of_a_file_is_not_sent_to_a_model(folder: Path) -> None:
    (folder / "request.yaml").write_text("nodes: []")

    result = run("request.yaml")

    assert result.exit_code == 2
    assert "did you mean `submit chain request.yaml`?" in result.stderr


@pytest.mark.parametrize(
    "typed", [["hello"], ["status of my order?"], ["statsu of it"], ["--team", "x", "hello"], ["turn", "statsu"]]
)
def test_other_texts_are_turns(typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    turns_seen: list[str] = []
    monkeypatch.setattr(command_of("turn"), "callback", lambda **options: turns_seen.append(options["text"]))

    result = run(*typed)

    assert result.exit_code == 0
    assert turns_seen == [next(word for word in reversed(typed) if word not in ("--team", "x"))]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["turn"], "Missing argument 'TEXT'"),
        (["turn", "a", "b"], "unexpected extra argument"),
        (["turn", "a", "--timout", "3"], "Did you mean '--timeout'?"),
        (["turn", "a", "--timeout", "0"], "not in the range"),
        (["chain", "a.yaml", "--input", "[1]"], 'expected a JSON object such as {"key": "value"}'),
        (["chain", "a.yaml", "--input", '{"a"'], "not JSON"),
        (["chain", "a.yaml", "--input", "text=one"], """write '{"text": "one"}'"""),
        (["chain", "a.yaml", "--input", "@none.json"], "cannot be read"),
        (["plan"], "name the FILE of a chain request"),
        (["plan", "a.yaml", "--turn", "b"], "name the FILE of a chain request"),
        (["runs", "shwo"], "shwo"),
        (["runs", "follow", "r", "--from", "-1"], "not in the range"),
        (["up", "--agents", "0"], "not in the range"),
        (["worker", "--concurrency", "0"], "not in the range"),
    ],
)
def test_wrong_usage_has_status_2(typed: list[str], message: str) -> None:
    result = run(*typed)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError([Fault("one", "a", 3), Fault("two")], source="f.yaml"), 2),
        (UnknownRunError("no run 'x'"), 2),
        (UnavailableError("Redis is away"), 3),
        (CantataError("the definitions have expired"), 1),
    ],
)
def test_an_expected_error_is_its_sentence_and_its_status(error: CantataError, status: int) -> None:
    result = CliRunner().invoke(raising(error), env=NO_SERVICE)

    assert result.exit_code == status
    assert result.stderr == "".join(f"submit: {line}\n" for line in str(error).splitlines())
    assert result.stdout == ""


def test_an_unexpected_error_is_one_line_that_names_the_way_to_its_details() -> None:
    result = CliRunner().invoke(raising(KeyError("a\nb")), env=NO_SERVICE)

    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "KeyError" in result.stderr
    assert "CANTATA_LOG_LEVEL=DEBUG" in result.stderr


def test_details_are_shown_when_they_are_asked_for() -> None:
    result = CliRunner().invoke(raising(KeyError("a")), env={"CANTATA_LOG_LEVEL": "debug"})

    assert "Traceback" in result.stderr


def test_an_interrupt_before_there_is_a_run_has_status_130() -> None:
    result = CliRunner().invoke(raising(KeyboardInterrupt()), env=NO_SERVICE)

    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_where_no_runs_are_kept_none_are_looked_for(folder: Path) -> None:
    result = run("runs", "list")

    assert result.exit_code == 3
    assert "nothing is kept here" in result.stderr
    assert not (folder / "home").exists()


def test_a_worker_without_a_redis_is_refused() -> None:
    result = run("worker", "tools")

    assert result.exit_code == 3
    assert "set REDIS_URL" in result.stderr


def test_status_without_a_service_has_status_3_with_json_too() -> None:
    result = run("status", "--json")

    assert result.exit_code == 3
    assert json.loads(result.stdout)["running"] is False


def test_down_without_a_stack_changes_nothing() -> None:
    result = run("down", "--json")

    assert (result.exit_code, json.loads(result.stdout)) == (0, {"stopped": False})
