"""Writes the lines of a turn into the run log, as its events come."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from cantata.client.client import TurnRun
from cantata.frontends.agentchain.log_entry import Line
from cantata.frontends.agentchain.log_mapping import Story
from cantata.frontends.agentchain.run_log import RunLog
from cantata.models.definitions import Team
from cantata.models.events import RunEvent
from cantata.models.wire import Turn

log = logging.getLogger("cantata.frontends.agentchain")


class Teller:
    """Is told the events of one run. Whatever goes wrong with its lines does not concern the run."""

    def __init__(self, turn: Turn, team: Team, told: RunLog) -> None:
        self._turn = turn
        self._team = team
        self._told = told
        self._story: Story | None = None
        self._is_broken = False

    def __call__(self, run: TurnRun, event: RunEvent) -> None:
        """Write the lines of an event."""
        if self._is_broken:
            return
        try:
            for line in self._lines(run, event):
                fields = {"run_id": run.run_id, "session": self._turn.session, **line.fields}
                self._told.write(line.event, fields, at_ms=line.at_ms)
        except Exception:  # the edge: an answer matters more than what is written of it
            self._is_broken = True
            log.exception("the run log of run %s ends here", run.run_id)

    def follow(self, run: TurnRun) -> None:
        """Write the lines of a run that another waits for, to its end."""
        try:
            for event in run.events():
                self(run, event)
        except Exception:  # as above: Redis may be gone for longer than anyone waits
            log.exception("the run log of run %s ends here", run.run_id)

    def _lines(self, run: TurnRun, event: RunEvent) -> Iterator[Line]:
        story = self._story = self._story or Story(self._turn, self._team, run.steps)
        yield from story.tell(event)
        if event.ends_run:
            yield from story.end(run.result(), event.at_ms)
