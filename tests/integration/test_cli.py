"""What the command line does with a stack of its own, in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.operation.embedded import status
from cantata.surfaces.cli.main import submit

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
