"""The run log: lines of JSON in a file, and one-line summaries through `logging` and, if verbose, on standard output."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cantata.client.runs import TurnRun
from cantata.config.user_code.function_names import IN_WORKER
from cantata.flows.definitions import Team
from cantata.flows.events import RunEvent
from cantata.flows.wire import TurnRequest
from cantata.values import JsonValue
from cantata_frontends.agentchain.decision_log import LogEntry
from cantata_frontends.agentchain.log_mapping import LogMapping

MAX_SHOWN_CHARS = 200  # characters of a value in a summary; the file has all of it

log = logging.getLogger("cantata.frontends.agentchain")

_files: dict[tuple[int, str], Path] = {}
_writing = threading.Lock()


class RunLog:
    """Writes the entries of one AgentChain. A file that cannot be written is reported once, and raises nothing."""

    def __init__(self, folder: str | os.PathLike[str] | None, *, verbose: bool, file: Path | None = None) -> None:
        in_worker = bool(os.environ.get(IN_WORKER))  # which imports the module for one of its functions
        self._folder = None if folder is None or in_worker else str(folder)
        self._verbose = verbose and not in_worker
        self._file = file
        self._failed = False

    @property
    def is_wanted(self) -> bool:
        """Return whether an entry would be written anywhere."""
        return self._folder is not None or self._verbose or log.isEnabledFor(logging.INFO)

    @property
    def file(self) -> Path | None:
        """The file of this log: one for each folder and process."""
        if self._folder is None:
            return None
        with _writing:
            return self._file or _files.setdefault(
                (os.getpid(), self._folder), Path(self._folder) / f"run_{_stamp()}.jsonl"
            )

    def for_chat(self) -> RunLog:
        """Return a log with the same settings and a file of its own for a chat."""
        name = f"router_chat_{_stamp()}_{uuid.uuid4().hex[:8]}.jsonl"
        return RunLog(
            self._folder, verbose=self._verbose, file=None if self._folder is None else Path(self._folder) / name
        )

    def write(
        self, event: str, fields: Mapping[str, JsonValue], *, at_ms: int | None = None, warns: bool = False
    ) -> None:
        """Write an entry: an event with its fields, at a time by Redis's clock, or now."""
        at = datetime.now(UTC) if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
        log.log(logging.WARNING if warns else logging.INFO, "%s", summary := _summary(event, fields))
        if self._verbose:
            print(summary, flush=True)  # noqa: T201  # what `verbose` is documented to do
        if file := self.file:
            self._append(
                file,
                json.dumps(
                    {"timestamp": at.isoformat(timespec="milliseconds"), "event": event, **fields}, ensure_ascii=False
                ),
            )

    def _append(self, file: Path, line: str) -> None:
        try:
            with _writing:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8", errors="backslashreplace") as opened:
                    opened.write(line + "\n")
        except OSError as error:
            if not self._failed:
                log.warning(
                    "the run log cannot be written to %s: %s; runs are not affected", file, error.strerror or error
                )
            self._failed = True


def _summary(event: str, fields: Mapping[str, JsonValue]) -> str:
    shown = [f"{key}={_shorten(value)}" for key, value in fields.items() if key not in ("run_id", "session")]
    return " ".join([event, *shown])


def _shorten(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%d_%H%M%S_%f")


log = logging.getLogger("cantata.frontends.agentchain")


class LogWriter:
    """Receives the events of one run. Failures to write entries do not affect the run."""

    def __init__(self, turn: TurnRequest, team: Team, run_log: RunLog) -> None:
        self._turn = turn
        self._team = team
        self._run_log = run_log
        self._mapping: LogMapping | None = None
        self._has_failed = False

    def __call__(self, run: TurnRun, event: RunEvent) -> None:
        """Write the entries of an event."""
        if self._has_failed:
            return
        try:
            for entry in self._entries(run, event):
                fields = {"run_id": run.run_id, "session": self._turn.session, **entry.fields}
                self._run_log.write(entry.event, fields, at_ms=entry.at_ms)
        except Exception:  # the answer matters more than its log
            self._has_failed = True
            log.exception("the run log of run %s ends here after an error", run.run_id)

    def follow(self, run: TurnRun) -> None:
        """Write the entries of a run to its end, beside the thread that waits for it."""
        try:
            for event in run.events():
                self(run, event)
        except Exception:  # as above: Redis may be gone for longer than anyone waits
            log.exception("the run log of run %s ends here after an error", run.run_id)

    def _entries(self, run: TurnRun, event: RunEvent) -> Iterator[LogEntry]:
        mapping = self._mapping = self._mapping or LogMapping(self._turn, self._team, run.steps)
        yield from mapping.entries_of(event)
        if event.ends_run:
            yield from mapping.final_entries(run.result(), event.at_ms)
