"""A program with the base installation alone works with workers that somebody else runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantata.operation.embedded import Stack
from tests.acceptance.test_extras import run, submit

pytestmark = pytest.mark.timeout(180)  # a stack starts in 4 s, on a busy machine in 20

CONFIGURATION = """
version: 1
tools:
  count: {function: "counting:count"}
"""
CHAIN = """
entry_node: count
nodes: [{node_id: count, kind: tool, name: count, input_map: {text: input.text}}]
"""
CLIENT = """
from cantata import Client

with Client(config="desk.yaml") as client:
    node = {"node_id": "count", "kind": "tool", "name": "count", "input": {"text": "a b"}}
    run = client.submit_chain({"entry_node": "count", "nodes": [node]})
    print(run.result(timeout_s=60).raise_for_status().outputs)
"""


@pytest.mark.thorough(
    "three processes start from nothing; that the base installation is enough to load the client is held by acceptance/test_extras.py"
)
@pytest.mark.slow("three processes load the client from nothing, beside a stack")
def test_it_submits_runs_and_reads_their_results(tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(CONFIGURATION)
    (tmp_path / "chain.yaml").write_text(CHAIN)
    (tmp_path / "counting.py").write_text("def count(text: str) -> int:\n    return len(text.split())\n")

    with Stack.start(tmp_path / "home", agents=0, tools=1) as stack:
        words = ["chain", "chain.yaml", "--config", "desk.yaml", "--input", '{"text": "one two three"}', "--json"]
        submitted = submit(*words, cwd=tmp_path, REDIS_URL=stack.url)
        asked = run(CLIENT, cwd=tmp_path, REDIS_URL=stack.url)
        listed = submit("runs", "list", "--json", cwd=tmp_path, REDIS_URL=stack.url)

    assert submitted.returncode == 0, submitted.stderr
    assert json.loads(submitted.stdout.splitlines()[-1])["outputs"] == {"count": 3}
    assert asked.stdout == "{'count': 2}\n", asked.stderr
    assert (listed.returncode, listed.stderr) == (0, "")
