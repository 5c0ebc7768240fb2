"""What the command line does with a stack of its own, in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.client.client import Client
from cantata.operation.embedded import Stack, status
from cantata.surfaces.cli.main import submit
from tests.waiting import until

WRONG = "chain_id: c1\nentry_node: b\nnodes:\n- {node_id: a, kind: agent, name: assistant}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["chain", "wrong.yaml", "--json"], "bad_entry"),
        (["turn", "hello", "--agent", "nobody", "--json"], "bad_request"),
    ],
)
def test_a_request_is_refused_while_a_stack_starts_for_it_which_then_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CANTATA_HOME", str(tmp_path / "home"))
    (tmp_path / "wrong.yaml").write_text(WRONG)

    refused = CliRunner().invoke(submit, words)

    assert refused.exit_code == 2, refused.output
    assert json.loads(refused.stdout)["error"]["code"] == code
    assert status().processes == ()


@pytest.mark.slow("a stack starts for a run, which then waits")
def test_stored_runs_are_signalled_and_retried_beside_a_broken_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"node_id": "ok", "kind": "wait", "answer_schema": {"type": "integer"}}
    (tmp_path / "order.json").write_text(json.dumps({"entry_node": "ok", "nodes": [node]}))
    monkeypatch.chdir(tmp_path)
    with Stack.start(tmp_path / "home", tools=1) as stack, Client(stack.url) as client:
        waiting, cancelled = (client.submit_chain("order.json") for _ in range(2))
        until(lambda: waiting.waiting_steps(), "the step to wait")
        cancelled.cancel()
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs/default.yaml").write_text("version: 1\ntools: {nope: {functio: 3}}\n")
        monkeypatch.setenv("REDIS_URL", stack.url)

        def done(*words: str) -> str:
            result = CliRunner().invoke(submit, ["runs", *words])
            assert result.exit_code == 0, result.output
            return result.stdout

        assert "order.json" in done("list"), "the name of its file"
        assert waiting.run_id in done("show", waiting.run_id)
        refused = CliRunner().invoke(submit, ["runs", "signal", waiting.run_id, "ok", '"x"'])
        assert (refused.exit_code, "integer" in refused.output) == (2, True), refused.output
        done("signal", waiting.run_id, "ok", "1")
        assert waiting.result(30).status == "succeeded"
        assert done("result", waiting.run_id).strip() == "1"
        retried = client.run(done("retry", cancelled.run_id, "--detach").split()[0])
        until(lambda: retried.waiting_steps(), "the step to wait again")
        done("cancel", retried.run_id)
        broken = CliRunner().invoke(submit, ["chain", "order.json", "--detach"])
        assert (broken.exit_code, "functio" in broken.output) == (2, True), broken.output
