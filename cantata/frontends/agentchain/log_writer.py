"""Writing of a turn's events into the run log, as they arrive."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from cantata.client.runs import TurnRun
from cantata.frontends.agentchain.log_entry import LogEntry
from cantata.frontends.agentchain.log_mapping import LogMapping
from cantata.frontends.agentchain.run_log import RunLog
from cantata.models.definitions import Team
from cantata.models.events import RunEvent
from cantata.models.wire import TurnRequest

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
