"""`submit inbox`: lists, shows and answers what waits for a person."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from cantata.ledger.ledger import Ledger
from cantata.surfaces.cli.main import submit
from cantata.values import JsonValue
from tests.integration.state.play import Play, wait

SCHEMA: JsonValue = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}},
    "required": ["approved"],
}


@pytest.fixture
def runs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[Play]:
    """Three runs that wait for a person: two of the team red, one of blue."""
    monkeypatch.setenv("REDIS_URL", f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}")
    monkeypatch.setenv("COLUMNS", "200")
    plays = [
        Play(ledger, f"run{number}", labels={"team": team}, text=f"Pay {number}")
        for number, team in enumerate(("red", "red", "blue"))
    ]
    for play in plays:
        play.plan(
            wait(
                "pay",
                params={
                    "wait": {"question": "Pay it?", "answer_schema": SCHEMA, "who": ["legal"]},
                    "asks": {"amount": 3},
                },
            )
        )
    return plays


def run(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(submit, ["inbox", *words], input=stdin)


def answers(runs: list[Play]) -> list[JsonValue]:
    return [play.output("pay") for play in runs]


def test_what_waits_is_listed_and_shown_question_first(runs: list[Play]) -> None:
    listed, filtered, shown = (
        run("list"),
        run("list", "--filter", "team=blue", "--who", "legal", "--json"),
        run("show", "run1/pay"),
    )

    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["run0/pay", "run1/pay", "run2/pay"]
    assert all(line.endswith("Pay it?  for legal") for line in listed.stdout.splitlines())
    assert [json.loads(line)["id"] for line in filtered.stdout.splitlines()] == ["run2/pay"]
    assert shown.stdout.splitlines()[0] == "Pay it?"
    assert "amount" in shown.stdout
    assert "submit inbox answer run1/pay JSON" in shown.stdout
    assert run("list", "--who", "sales").stderr == "no such step waits for a person\n"
    assert (lost := run("show", "run1/other")).exit_code == 2
    assert "step 'other' of run 'run1' does not wait for a person now" in lost.stderr


def test_an_answer_is_json_or_fields_and_says_what_is_wrong(runs: list[Play]) -> None:
    wrong = run("answer", "run0/pay", '{"approved": "yes"}')
    fields = run("answer", "run0/pay", "--field", "approved=true", "--field", "note=Looks good", "--as", "anna")
    again = run("answer", "run0/pay", "--field", "approved=true")

    assert (wrong.exit_code, fields.exit_code, again.exit_code) == (1, 0, 1)
    assert "run0/pay: answer to 'pay': value.approved: 'yes' is not of type 'boolean'" in wrong.stderr
    assert "run0/pay: step 'pay' took the value and goes on" in fields.stderr
    assert "run 'run0' is over" in again.stderr
    assert answers(runs) == [{"approved": True, "note": "Looks good"}, None, None]
    assert runs[0].step("pay").info == {"answered_by": "anna"}


def test_several_are_answered_after_a_question(runs: list[Play]) -> None:
    asked = run("answer", "--all", "--filter", "team=red", '{"approved": true}', stdin="n\n")
    assert (asked.exit_code, answers(runs)) == (1, [None, None, None])
    assert "Answer 2 steps?" in asked.stderr

    done = run("answer", "--all", "--filter", "team=red", '{"approved": true}', "--yes", "--json")

    assert [json.loads(line)["outcome"] for line in done.stdout.splitlines()] == ["taken", "taken"]
    assert answers(runs) == [{"approved": True}, {"approved": True}, None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the answer: JSON, or --field KEY=VALUE"),
        (["true"], "name the steps by their ids, or all with --all"),
        (["a/b", "true", "--all"], "name the steps by their ids, or all with --all"),
        (["a/b", "true", "--filter", "a=b"], "which --filter and --who narrow"),
        (["a/b", "yes"], "'yes' is not JSON"),
    ],
)
def test_an_answer_that_is_not_clear_is_refused(words: list[str], message: str) -> None:
    refused = run("answer", *words)

    assert refused.exit_code == 2
    assert message in refused.stderr


def test_a_signal_takes_a_bare_text_where_the_schema_wants_one_and_names_an_unknown_step_first(
    ledger: Ledger, runs: list[Play]
) -> None:
    def signal(step: str, value: str) -> Result:
        return CliRunner().invoke(submit, ["runs", "signal", "named", step, value])

    play = Play(ledger, "named")
    play.plan(
        *(wait(step, params={"wait": {"answer_schema": {"type": "string"}}}) for step in ("name", "number", "quoted")),
        wait("any"),
    )

    assert "no step 'nmae' of run 'named' waits for a signal" in signal("nmae", "bolt").stderr
    assert "'bolt' is not JSON" in signal("any", "bolt").stderr
    assert "NaN is not JSON" in signal("any", "NaN").stderr
    assert [signal(*words).exit_code for words in (("name", "bolt"), ("number", "42"), ("quoted", '"nut"'))] == [
        0,
        0,
        0,
    ]
    assert [play.output(step) for step in ("name", "number", "quoted")] == ["bolt", "42", "nut"]
