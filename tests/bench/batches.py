"""A batch of the command line, beside a bare asyncio loop over LiteLLM with the same rows and concurrency."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cantata.flows.definitions import Agent, Definitions
from tests.bench.agents import bare_process, model_server, model_stack
from tests.bench.bare import MODEL, most_bytes

CONCURRENCY = 100  # the default of the command
CALL_S = 1.0
TARGET = 0.8
MEASURED_S = 0.2  # between looks at the memory of the command


@dataclass(frozen=True)
class BatchFigures:
    """One batch."""

    rows: int
    ours_s: float
    bare_s: float
    command_bytes: tuple[int, int]
    """the most memory of the command: until a tenth of the rows was written, and until all were"""
    kept_bytes: float
    """of a delivered row, in Redis"""

    @property
    def ratio(self) -> float:
        """Our rows a second, as a share of LiteLLM's alone."""
        return self.bare_s / self.ours_s


def measure_batch(rows: int) -> BatchFigures:
    """Measure, on a stack of its own."""
    definitions = Definitions(agents={"plain": Agent(model=MODEL, stream=False)})
    with (
        tempfile.TemporaryDirectory() as folder,
        model_server([{"delay_s": CALL_S, "reply": "done"}]) as url,
        model_stack(url, definitions, agents=2) as client,
        bare_process() as bare,
    ):
        file, out, config = Path(folder, "rows.jsonl"), Path(folder, "out.jsonl"), Path(folder, "config.yaml")
        file.write_text("".join(json.dumps({"text": f"row {row}"}) + "\n" for row in range(rows)))
        config.write_text(json.dumps({"agents": {"plain": {"model": MODEL, "stream": False}}}))
        bare_s = bare.measure("batch", f"{CONCURRENCY} {file} {folder}/bare.jsonl")
        before = int(client.redis.info("memory")["used_memory"])
        words = [
            "batch",
            str(file),
            "--agent",
            "plain",
            "--out",
            str(out),
            "--config",
            str(config),
            "--concurrency",
            str(CONCURRENCY),
        ]
        since, early, most = time.perf_counter(), 0, 0
        environment = {"REDIS_URL": client.redis_url, "PATH": "/usr/bin:/bin"}
        with subprocess.Popen([sys.executable, "-m", "cantata.surfaces.cli", *words], env=environment) as command:
            while command.poll() is None:
                if (batch := client.batches.store.find("rows")) and command.poll() is None:
                    with suppress(StopIteration, OSError):  # it has just ended
                        most = max(most, most_bytes(command.pid))
                    early = most if batch.delivered < rows / 10 else early
                time.sleep(MEASURED_S)
        ours_s = time.perf_counter() - since
        if command.returncode or len(out.read_text().splitlines()) != rows:
            raise SystemExit(f"the batch ended with status {command.returncode}")
        kept = int(client.redis.info("memory")["used_memory"]) - before
    return BatchFigures(rows, ours_s, bare_s, (early, most), kept / rows)
