"""`submit batch` on a real fleet: from a file to a file, killed and gone on with, paused, cancelled and retried."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cantata.client.client import EmbeddedClient
from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from tests.waiting import until

CONFIG = """\
agents:
  ann: {model: openai/gpt-4o-mini, retries: 0}
"""
Submit = Callable[..., Result]


@pytest.fixture
def folder(
    tmp_path: Path, client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with a configuration and a file of 30 rows; the commands in it use the stack of these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    monkeypatch.setenv("CANTATA_CONFIG", "config.yaml")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rows.csv").write_text("question,id\n" + "".join(f"row {number},{number}\n" for number in range(30)))
    models.clear()
    yield tmp_path
    models.clear()


def run(*words: str, status: int = 0, input: str | None = None) -> Result:
    found = CliRunner().invoke(submit, ["batch", *words], input=input)
    assert found.exit_code == status, found.output
    return found


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [*csv.DictReader(file)]
    return [*map(json.loads, path.read_text().splitlines())]


def test_a_file_becomes_a_file_of_results(folder: Path, models: ScriptedModels) -> None:
    models.script([{"match": "^row 7$", "status": 400, "reply": "no"}, {"reply": "yes"}])
    words = ("rows.csv", "--agent", "ann", "--map", "question=text", "--out", "out.csv", "--name", "plain")

    found = run(*words, "--json", status=1)

    batch = json.loads(found.stdout)
    assert (batch["state"], batch["total"], batch["delivered"], batch["failed"]) == ("done", 30, 30, 1)
    rows = rows_of(folder / "out.csv")
    assert sorted(int(row["row"]) for row in rows) == [*range(30)]
    assert [(row["row"], row["output"], bool(row["error"])) for row in rows if row["status"] == "failed"] == [
        ("7", "", True)
    ]
    assert json.loads(rows[0]["input"])["question"] == f"row {rows[0]['row']}"
    assert "plain" in run("list").stdout
    failed = [json.loads(line) for line in run("results", "plain", "--failed").stdout.splitlines()]
    assert [row["row"] for row in failed] == [7]

    models.script([{"reply": "at last"}])
    run("retry", "plain")

    rows = rows_of(folder / "out.csv")
    assert sorted(int(row["row"]) for row in rows) == [*range(30)]
    assert [row["output"] for row in rows if row["row"] == "7"] == ["at last"]
    assert len(models.journal()) == 31
    run(*words)
    assert len(models.journal()) == 31, "a batch that is done runs nothing again"


@pytest.mark.slow("the next command waits 5 s for one that was killed, which may only be frozen")
def test_a_killed_command_goes_on_without_a_row_twice(folder: Path, models: ScriptedModels) -> None:
    models.script([{"reply": "yes", "delay_s": 0.05}])
    words = (
        "rows.csv",
        "--agent",
        "ann",
        "--map",
        "question=text",
        "--out",
        "out.jsonl",
        "--name",
        "killed",
        "--concurrency",
        "4",
    )
    first = subprocess.Popen([sys.executable, "-m", "cantata.surfaces.cli", "batch", *words], stderr=subprocess.DEVNULL)
    until(lambda: (folder / "out.jsonl").exists() and len(rows_of(folder / "out.jsonl")) >= 4, "results are written")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with (folder / "out.jsonl").open("a") as file:
        file.write('{"row": 29, "half a li')  # what a crash may leave

    run(*words, "--ordered", status=2)
    run(*words)

    assert sorted(row["row"] for row in rows_of(folder / "out.jsonl")) == [*range(30)]
    assert len(models.journal()) == 30
    (folder / "rows.csv").write_text("question,id\nanother,1\n")
    assert "was begun with another file" in run(*words, status=2).stderr


def test_a_sample_shows_its_cost_and_asks(folder: Path, models: ScriptedModels) -> None:
    words = (
        "rows.csv",
        "--agent",
        "ann",
        "--map",
        "question=text",
        "--out",
        "out.jsonl",
        "--name",
        "asked",
        "--sample",
        "3",
    )

    found = run(*words, input="n\n")

    assert "the other 27 rows: about $0.00" in found.stderr
    assert len(rows_of(folder / "out.jsonl")) == 3
    run(*words)
    assert len(rows_of(folder / "out.jsonl")) == 30, "the same command goes on, and does not ask again"


def test_a_spent_budget_says_how_to_go_on(folder: Path, models: ScriptedModels) -> None:
    words = ("rows.csv", "--agent", "ann", "--map", "question=text", "--out", "out.jsonl", "--name", "dear")

    found = run(*words, "--budget-usd", "0.00001", status=1)

    assert "use the same command with a higher --budget-usd" in found.stderr
    assert len(rows_of(folder / "out.jsonl")) < 30
    run(*words, "--budget-usd", "1", "--json")
    assert len(rows_of(folder / "out.jsonl")) == 30


def test_wrong_use_is_told_before_anything_runs(folder: Path, models: ScriptedModels) -> None:
    (folder / "out.jsonl").write_text("precious\n")
    wrong = {
        (
            "rows.csv",
            "--agent",
            "ann",
            "--out",
            "out.jsonl",
        ): "out.jsonl exists, and there is no batch 'rows' that began it",
        ("rows.csv", "--agent", "ann", "--map", "question=text", "--name", "a b"): "a batch's name has letters",
        (
            "rows.csv",
            "--agent",
            "ann",
        ): "row 0 has no field 'text' (its fields: 'question', 'id'); name one: --map FIELD=text",
        ("rows.csv", "--agent", "nobody", "--name", "n"): "nobody",
        ("rows.csv",): "a batch needs exactly one of agent, team, chain and workflow; found none",
        ("list.csv", "--agent", "ann"): "there is no such file",
        ("show", "nothing"): "there is no batch 'nothing'",
        ("-", "--agent", "ann", "--sample", "3"): "name a file",
    }

    for words, message in wrong.items():
        assert message in run(*words, status=2).stderr

    assert models.journal() == []
    assert (folder / "out.jsonl").read_text() == "precious\n"


def test_rows_of_standard_input_go_to_standard_output(folder: Path) -> None:
    found = run("-", "--agent", "ann", input='"one"\n{"text": "two"}\n')

    assert sorted(json.loads(line)["row"] for line in found.stdout.splitlines()) == [0, 1]


def test_another_terminal_pauses_and_cancels(folder: Path, models: ScriptedModels) -> None:
    models.script([{"reply": "yes", "delay_s": 0.1}])
    words = (
        "rows.csv",
        "--agent",
        "ann",
        "--map",
        "question=text",
        "--out",
        "out.jsonl",
        "--name",
        "far",
        "--concurrency",
        "2",
    )
    first = subprocess.Popen(
        [sys.executable, "-m", "cantata.surfaces.cli", "batch", *words], stderr=subprocess.PIPE, text=True
    )
    until(lambda: (folder / "out.jsonl").exists(), "it has begun")

    assert "paused" in run("pause", "far").stdout
    assert "is paused, or no row" in run("retry", "far", status=2).stderr
    assert "cancelled" in run("cancel", "far").stdout

    _, told = first.communicate(timeout=20)
    assert first.returncode == 1
    assert "it was cancelled" in told
    assert "is cancelled, so it cannot be paused" in run("pause", "far", status=2).stderr


def test_texts_of_a_table_are_converted_as_the_chain_declares(folder: Path, models: ScriptedModels) -> None:
    inputs = "{item: string, count: integer, weight: number?, is_gift: boolean?}"
    asks = "{node_id: ask, kind: agent, name: ann, input_map: {text: \"join(' ', [input.item, type(input.count), to_string(input)])\"}}"
    (folder / "config.yaml").write_text(
        f"{CONFIG}chains:\n  order: {{inputs: {inputs}, entry_node: ask, nodes: [{asks}]}}\n"
    )
    (folder / "orders.csv").write_text("item,qty,weight,is_gift\ntea,two,,\njam,2,1.5,TRUE\n7,3,,\n")

    wrong = run("orders.csv", "--chain", "order", "--out", "orders.jsonl", status=2).stderr
    run("orders.csv", "--chain", "order", "--map", "qty=count", "--out", "orders.jsonl", status=1)

    assert "orders.csv: line 2: initial_input.count: is missing" in wrong
    rows = {row["row"]: row for row in rows_of(folder / "orders.jsonl")}
    assert (
        rows[0]["error"]
        == "batch: orders.csv: line 2: column 'qty': the input 'count' of chain 'order' is an integer, not 'two'"
    )
    assert {rows[number]["status"] for number in (1, 2)} == {"succeeded"}
    asked = sorted(str(call["text"]) for call in models.journal())
    assert asked == [
        '7 number {"item":"7","count":3}',
        'jam number {"item":"jam","count":2,"weight":1.5,"is_gift":true}',
    ]


def test_a_file_without_a_good_row_is_a_batch_of_errors(folder: Path, models: ScriptedModels) -> None:
    node = "{node_id: ask, kind: agent, name: ann, input_map: {text: to_string(input.count)}}"
    (folder / "config.yaml").write_text(
        f"{CONFIG}chains:\n  count: {{inputs: {{count: integer}}, entry_node: ask, nodes: [{node}]}}\n"
    )
    (folder / "bad.jsonl").write_text('{"count": "one"}\n{"count": "two"}\n')

    run("bad.jsonl", "--chain", "count", "--out", "out.jsonl", status=1)

    assert [row["error_code"] for row in rows_of(folder / "out.jsonl")] == ["bad_value", "bad_value"]
    assert models.journal() == []
