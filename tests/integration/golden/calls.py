"""The calls whose answers are recorded, in their order. `python -m tests.integration.golden.calls` writes the answers anew."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cantata.testing import Rule, ScriptedModels
from tests.conftest import FOREIGN
from tests.integration.gateway.conftest import Deployment, start
from tests.integration.golden.recorder import TOKEN, Recorder

HERE = Path(__file__).parent
KINDS = ("commands", "routes")
RULES = [
    Rule.model_validate(
        {"match": "^double", "after_tools": 0, "tool_calls": [{"name": "double", "arguments": {"n": 4}}]}
    ),
    Rule(match="^double", reply="It is 8."),
    Rule(match="^hello", reply="Good morning."),
    Rule(match="poem", reply="Roses are red."),
]
ENVIRONMENT = {
    "CANTATA_CONFIG": "golden.yaml",
    "CANTATA_HOME": "home",
    "COLUMNS": "120",
    "LOGNAME": "tester",
    "USER": "tester",
    "TERM": "dumb",
}
LEFT_OUT = {
    "submit up": "starts processes",
    "submit gateway": "starts a process; its answers are those of the routes",
    "submit flower": "starts a process",
    "submit worker": "starts processes",
    "submit doctor": "tells what this machine has",
    "submit schema": "prints files that are reviewed and tested themselves",
}
"""Commands without an answer in the recording, each with the reason."""

WITHOUT_A_RUN = """\
check
check --json
check --config faulty.yaml
check --config faulty.yaml --json
check request.yaml
check misspelt.yaml
check misspelt.yaml --json
check golden_tools:greet --json
plan main
plan main --json
plan --turn hello --team office
plan --turn hello --json
plan nothing
init fresh
completion bash
down
down --json
models list
models list --json
models resume openai/gpt-4o-mini
webhooks list
webhooks list --json
webhooks test nobody
audit --action inbox
audit --by nobody
audit --by nobody --json
audit --since soon
parked list
parked list --json
parked drop no-such-item
parked retry no-such-item --json
nothing-like-this --wrong
chainn
runs list
runs list --json
inbox list
sessions list
memory list
batch list
schedules list
schedules import golden_tools:app
"""
REFUSED = """\
chain misspelt.yaml
chain misspelt.yaml --json
chain nothing
chain nothing --json
chain row
chain row --input '{"n": "three"}'
chain row --input '{"n": "three"}' --json
chain row --input [1]
chain row --config faulty.yaml
turn hello --agent nobody
turn hello --agent nobody --json
turn hello --team nobody
workflow nothing --json
workflow greet --input '{"nme": "Ann"}'
workflow greet --input '{"nme": "Ann"}' --json
runs show nothing
runs show nothing --json
runs follow nothing
runs result nothing --json
runs export nothing
runs cancel nothing
runs retry nothing --json
runs fork nothing --from a
runs signal nothing ask true
runs signal nothing ask true --json
runs query nothing progress
runs list --status wrong
runs list --before nothing
logs nothing
logs nothing --json
inbox show nothing
inbox answer nothing/ask true
inbox answer nothing/ask true --json
batch show nothing
batch show nothing --json
batch results nothing
batch pause nothing
batch resume nothing
batch cancel nothing
batch retry nothing
batch run nothing.jsonl --chain row
batch run rows.jsonl --chain nothing
schedules show nothing
schedules show nothing --json
schedules pause nothing
schedules resume nothing
schedules trigger nothing
schedules delete nothing
schedules backfill nothing --from 2026-01-01 --to 2026-01-02
schedules create bad --cron '61 * * * *' --chain row
sessions show nothing
sessions clear nothing
memory get nothing
memory get nothing --json
memory list --namespace nothing
memory clear
models resume nothing
workers drain nothing
workers undrain nothing --json
queues pause nothing
queues resume nothing
"""
READ_OF_RUNS = ("runs show {}", "runs show {} --json", "runs follow {}")
READ_OF_SOME = (
    "runs result {}",
    "runs result {} --json",
    "logs {}",
    "logs {} --json",
    "runs follow {} --json",
    "runs export {}",
)
SOME = ("failed", "agent", "workflow")
READ = """\
runs result <timed_out>
runs result <open> --timeout 0
runs result <open> --timeout 0 --json
runs list
runs list --json
runs list --limit 2
runs list --status failed --status timed_out
runs list --kind turn --json
runs list --search session=talk
runs list --before <failed>
logs <answered> --step last --level warning
runs query <workflow> progress
runs query <workflow> progress --json
runs query <workflow> nothing
runs query <failed> progress
runs signal <answered> ask true
runs signal <answered> nothing true --json
runs signal <open> ask maybe
runs fork <failed> --from nothing
runs retry <answered>
inbox list
inbox list --json
inbox list --who finance
inbox list --who somebody
inbox show <open>/ask
inbox show <open>/ask --json
inbox answer <open>/ask 3
inbox answer <open>/ask 3 --json
sessions list
sessions list --json
sessions show talk
sessions show talk --json
memory namespaces
memory namespaces --json
memory list --namespace notes
memory list --namespace notes --json
memory get colour --namespace notes
memory get size --namespace notes
memory get size --namespace notes --json
status
status --json
workers list
workers list --json
queues list
queues list --json
"""
STARTED_LATER = """\
batch run rows.jsonl --chain row --out results.jsonl --ordered
batch run rows.jsonl --chain row --out results.jsonl --ordered --json
batch list
batch list --json
batch show rows
batch show rows --json
batch results rows
batch results rows --failed
batch retry rows
batch retry rows --json
batch run rows.jsonl --chain row --name printed --concurrency 1
schedules apply --dry-run
schedules apply --dry-run --json
schedules apply --yes
schedules apply --yes --json
schedules create later --at 2099-01-01T00:00 --turn hello --agent poet
schedules create later --at 2099-01-01T00:00 --turn hello --agent poet
schedules create other --every 30d --workflow greet --input '{"name": "Eve"}' --json
schedules list
schedules list --json
schedules show yearly
schedules show yearly --json
"""
CHANGES = """\
batch pause rows
batch resume rows
batch cancel rows
schedules pause yearly --note holidays
schedules pause yearly --json
schedules show yearly
schedules resume yearly
schedules resume yearly --json
schedules trigger yearly
schedules backfill yearly --from 2026-01-01 --to 2026-01-02
schedules backfill yearly --from 2026-01-01 --to 2026-01-02 --json
schedules delete later
schedules delete other --json
memory clear --namespace notes
memory clear --all --json
sessions clear chatted
sessions clear chatted --json
inbox answer <open>/ask true --json
runs signal <kept> ask true --json
runs cancel <answered> --json
queues pause agents --as tester
queues pause agents --as somebody --json
queues resume agents
runs signal --search <kept> ask true
runs retry --status failed --yes --json --detach
audit --limit 12
audit --limit 2 --json
"""
ASKED = """\
GET /health
GET /ready
GET /metrics
GET /load
GET /load?queue=other
GET /workers
GET /queues
GET /runs/bulk/preview?action=cancel&q=<open>
GET /runs/bulk/preview?action=signal&q=<open>&step=ask
GET /runs/bulk/preview?action=retry&status=succeeded
GET /runs/bulk/preview?action=signal
GET /runs?most=2
GET /runs?status=timed_out&status=cancelled
GET /runs?q=team=sales
GET /runs?most=0
GET /audit?action=run&most=1
GET /audit?by=nobody
GET /audit?before=x
GET /runs/counts
GET /costs?days=1
GET /sessions
GET /sessions/talk
GET /memory
GET /memory/notes
GET /memory/notes/size
GET /inbox
GET /inbox?who=somebody
GET /inbox/<open>/ask
GET /schedules
GET /schedules/yearly
GET /batches
GET /batches/rows
GET /batches/rows/events
GET /batches/rows/results
GET /batches/rows/results?failed=true
GET /batches/rows/download?failed=true
GET /runs/<answered>/graph?open=each
GET /runs/<answered>/steps/each/1
GET /runs/<answered>/steps/last
GET /runs/<agent>/steps/clerk
GET /runs/<failed>/compare/<retried>
GET /runs/<failed>/logs?level=warning
GET /runs/<failed>/events?after=9
GET /runs/<failed>/events?after=99
GET /runs/<open>/refusals?step=ask
GET /runs/<failed>/tasks
GET /no-such-page
"""
GRAPHS = ("failed", "timed_out", "open", "agent", "workflow")
BODIES: tuple[tuple[str, Any], ...] = (
    ("POST /turns?wait=40", {"text": "a poem", "agent": "poet"}),
    ("POST /turns", {"text": "a poem", "agent": "nobody"}),
    ("POST /turns", {"txt": "a poem"}),
    (
        "POST /chains?wait=40",
        {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "double", "input": {"n": 2}}]},
    ),
    (
        "POST /chains?wait=40",
        {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "odd", "input": {"n": 2}}]},
    ),
    ("POST /chains", {"entry_node": "b", "nodes": [{"node_id": "a", "kind": "tool", "name": "duble"}]}),
    ("POST /chains", {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "chain", "name": "nothing"}]}),
    (
        "POST /chains",
        {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "chain", "name": "row", "input": {"m": 1}}]},
    ),
    ("POST /runs/<open>/signals/ask", {"value": "maybe"}),
    ("POST /runs/<answered>/signals/ask", {"value": True}),
    ("POST /inbox/answers", {"answers": [{"id": "<open>/ask", "value": 3}, {"id": "nothing", "value": 3}]}),
    ("POST /runs/bulk", {"action": "signal", "q": "<open>", "step": "ask", "value": 3, "until": 4102444800.0}),
    ("POST /runs/bulk", {"action": "cancel"}),
    ("POST /queues/webhooks/pause", None),
    ("POST /queues/webhooks/resume", None),
    ("POST /queues/webhooks/resume", None),
    ("POST /runs/<answered>/retry", None),
    ("POST /runs/<open>/fork", {"from_step": "ask"}),
    ("POST /runs/<failed>/fork", {"from_step": "nothing"}),
    ("POST /runs/<answered>/cancel", None),
    ("PUT /memory/notes/taste", {"value": ["sweet"], "ttl_s": 1000}),
    ("DELETE /memory/notes/taste", None),
    ("PUT /schedules/asked", {"cron": "0 0 1 1 *", "chain": "row", "input": {"n": 1}}),
    ("PUT /schedules/asked", {"cron": "0 0 1 1 *", "chain": "nothing"}),
    ("POST /schedules/asked/pause?note=why", None),
    ("POST /schedules/asked/resume", None),
    ("POST /schedules/asked/backfill", {"start": "2026-01-01", "end": "2026-01-02"}),
    ("DELETE /schedules/asked", None),
    ("POST /batches", {"name": "asked", "chain": "row", "concurrency": 2}),
    ("POST /batches", {"name": "asked", "agent": "poet"}),
    ("POST /batches/asked/pause", None),
    ("POST /batches/asked/resume", None),
    ("POST /batches/asked/rows", '{"n": 1}\n{"n": 2}\n'),
    ("POST /batches/asked/rows?start=2&last=true", '{"n": 3}\n'),
)
AT_LAST: tuple[tuple[str, Any], ...] = (
    ("GET /batches/asked/results", None),
    ("GET /batches/asked/download", None),
    ("POST /batches/asked/delivered", {"rows": [0, 1]}),
    ("POST /batches/asked/rows?start=2&last=true", '{"n": 3}\n'),
    ("POST /batches/asked/retry", None),
    ("POST /batches/asked/cancel", None),
    ("DELETE /sessions/talk", None),
)


def play(recorder: Recorder) -> None:
    """Make all calls."""
    for line in (WITHOUT_A_RUN + REFUSED).splitlines():
        recorder.submit(line)
    start_runs(recorder)
    for name in recorder.ids:
        for line in (*READ_OF_RUNS, *(READ_OF_SOME if name in SOME else ())):
            if name != "open" or "follow" not in line:
                recorder.submit(line.format(f"<{name}>"))
    for line in (READ + STARTED_LATER).splitlines():
        recorder.submit(line)
    ask_routes(recorder)
    recorder.submit("chain main --input '{\"items\": [1, 2, 3]}' --detach", name="kept")
    recorder.until("kept", "waiting")
    for line in CHANGES.splitlines():
        recorder.submit(line)


def ask_routes(recorder: Recorder) -> None:
    """Ask all routes: what they are for, and what each refuses."""
    for line in ASKED.splitlines():
        recorder.ask(line)
    for name in GRAPHS:
        recorder.ask(f"GET /runs/<{name}>/graph")
    for name in recorder.ids:
        recorder.ask(f"GET /runs/<{name}>")
    for line, body in BODIES:
        recorder.ask(line, body)
    recorder.until_results("asked", 2)
    for line, body in AT_LAST:
        recorder.ask(line, body)
    for method, path, operation in recorder.operations():
        line = f"{method} {re.sub(r'{[a-z_]+}', 'nothing', path)}"
        recorder.ask(line, http=recorder.stranger)
        if "requestBody" in operation:
            recorder.ask(line, "[1")
            recorder.ask(line, {"wrong": 1})
        if "{" in path and method != "PUT":
            content = operation.get("requestBody", {}).get("content", {})
            recorder.ask(line, next((each["example"] for each in content.values()), None))


def start_runs(recorder: Recorder) -> None:
    """Start the runs, one after the other, and wait until each is as it stays."""
    items = """--input '{"items": [1, 2, 3]}'"""
    recorder.submit(f"chain main {items} --detach", name="answered")
    recorder.until("answered", "waiting")
    recorder.submit("inbox answer <answered>/ask true --as anna")
    recorder.until("answered", "succeeded")
    recorder.submit("chain main --input '{\"items\": [5]}'", name="short")
    recorder.submit("chain request.yaml --json", name="succeeded")
    recorder.submit("chain request.yaml --events")
    recorder.submit("chain failing", name="failed")
    recorder.submit("chain failing --json")
    recorder.submit("chain hasty --timeout 2 --json", name="timed_out")
    recorder.submit(f"chain main {items} --detach --json --label team=sales", name="open")
    recorder.until("open", "waiting")
    recorder.submit(f"chain main {items} --detach", name="cancelled")
    recorder.until("cancelled", "waiting")
    recorder.submit("runs cancel <cancelled>")
    recorder.submit("turn 'double 4' --agent clerk", name="agent")
    recorder.submit("turn 'a poem' --team office --json", name="team")
    recorder.submit("turn hello --agent poet --session talk --history", name="first_turn")
    recorder.submit("turn 'a poem' --agent poet --session talk --history --json", name="second_turn")
    recorder.submit("chat --session chatted", given="hello\n")
    recorder.submit('workflow greet --input \'{"name": "Ann"}\'', name="workflow")
    recorder.submit('workflow greet --input \'{"name": "Ann"}\' --json')
    recorder.submit("runs retry <failed> --json", name="retried")
    recorder.submit("runs fork <short> --from last --set 'input.items=[1,2]' --json", name="forked")
    recorder.submit("memory set colour red --namespace notes")
    recorder.submit("memory set size '{\"cm\": 3}' --namespace notes --json")


def record() -> Recorder:
    """Return a recorder with the answers to all calls."""
    with (
        tempfile.TemporaryDirectory(prefix="golden", dir="/tmp") as place,
        ScriptedModels(RULES) as models,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(place, "project")
        shutil.copytree(HERE / "project", folder)
        for variable in [each for each in os.environ if FOREIGN.fullmatch(each)]:
            patch.delenv(variable)
        for variable, value in ENVIRONMENT.items():
            patch.setenv(variable, value)
        patch.setenv(
            "CANTATA_GATEWAY_TOKENS", json.dumps({TOKEN: {"tenant": "", "name": "golden", "scopes": ["admin"]}})
        )
        patch.syspath_prepend(str(folder))
        with start(Path(place, "stack"), models, agents=1, config=folder / "golden.yaml") as stack:
            patch.setenv("REDIS_URL", stack.url)
            served = Deployment(folder.parent, stack, models).gateway(
                "--rate", "10000", "--config", str(folder / "golden.yaml")
            )
            with served as gateway, gateway.http(TOKEN) as http, gateway.http() as stranger:
                recorder = Recorder(folder, http, stranger)
                play(recorder)
                return recorder


if __name__ == "__main__":
    since = time.monotonic()
    recorded = record()
    for kind in KINDS:
        (HERE / f"{kind}.txt").write_text(recorded.text(kind), "utf-8")
    print(f"{time.monotonic() - since:.1f} s")  # noqa: T201
