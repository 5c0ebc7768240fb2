"""The run log: lines of JSON in a file, and one-line summaries through `logging` and, if verbose, on standard output."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from cantata.models.values import JsonValue

MAX_SHOWN_CHARS = 200  # characters of a value in a summary; the file has all of it

log = logging.getLogger("cantata.frontends.agentchain")

_files: dict[tuple[int, str], Path] = {}
_writing = threading.Lock()


class RunLog:
    """Writes the entries of one AgentChain. A file that cannot be written is reported once, and raises nothing."""

    def __init__(self, folder: str | os.PathLike[str] | None, *, verbose: bool, file: Path | None = None) -> None:
        self._folder = None if folder is None else str(folder)
        self._verbose = verbose
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
            return self._file or _files.setdefault((os.getpid(), self._folder), Path(self._folder) / f"run_{_stamp()}.jsonl")

    def for_chat(self) -> RunLog:
        """Return a log with the same settings and a file of its own for a chat."""
        name = f"router_chat_{_stamp()}_{uuid.uuid4().hex[:8]}.jsonl"
        return RunLog(self._folder, verbose=self._verbose, file=None if self._folder is None else Path(self._folder) / name)

    def write(self, event: str, fields: Mapping[str, JsonValue], *, at_ms: int | None = None, warns: bool = False) -> None:
        """Write an entry: an event with its fields, at a time by Redis's clock, or now."""
        at = datetime.now(UTC) if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
        log.log(logging.WARNING if warns else logging.INFO, "%s", summary := _summary(event, fields))
        if self._verbose:
            print(summary, flush=True)  # noqa: T201  # what `verbose` is documented to do
        if file := self.file:
            self._append(
                file, json.dumps({"timestamp": at.isoformat(timespec="milliseconds"), "event": event, **fields}, ensure_ascii=False)
            )

    def _append(self, file: Path, line: str) -> None:
        try:
            with _writing:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8", errors="backslashreplace") as opened:
                    opened.write(line + "\n")
        except OSError as error:
            if not self._failed:
                log.warning("the run log cannot be written to %s: %s; runs are not affected", file, error.strerror or error)
            self._failed = True


def _summary(event: str, fields: Mapping[str, JsonValue]) -> str:
    shown = [f"{key}={_shorten(value)}" for key, value in fields.items() if key not in ("run_id", "session")]
    return " ".join([event, *shown])


def _shorten(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%d_%H%M%S_%f")
