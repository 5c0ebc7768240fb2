"""ChatBackend: submits the turns of a chat and has its conversation."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from cantata.client.client import Client
from cantata.client.records import MemoryStore
from cantata.client.runs import TurnRun
from cantata.errors import ConfigError, UnknownRunError
from cantata.flows.wire import HistoryEntry, fault_of_session


class ChatBackend:
    """Answers the lines of a chat: turns go to the named team or agent, or to the configured default."""

    def __init__(
        self,
        client: Client,
        *,
        session: str | None = None,
        team: str | None = None,
        agent: str | None = None,
        labels: Mapping[str, str] | None = None,
        resume: str | None = None,
    ) -> None:
        """`resume` is the command that continues the conversation, without the session's name at its end."""
        self._client = client
        self._team = team
        self._agent = agent
        self._labels = dict(labels or {})
        self._runs = client.of(self._labels.get("tenant", ""))
        self._resume = resume
        self.session = ""
        self.switch(session or new_session())

    @property
    def agents(self) -> Collection[str]:
        """The agents that a line may be addressed to."""
        return self._client.definitions.agents

    @property
    def resume(self) -> str | None:
        """The command that continues this conversation later; None if there is none."""
        return self._resume and f"{self._resume} {self.session}"

    @property
    def memory(self) -> MemoryStore:
        """The preferences of the user."""
        return self._runs.memory

    def switch(self, session: str) -> None:
        """Continue another conversation. Raises ConfigError for an invalid name."""
        if fault := fault_of_session(session):
            raise ConfigError(fault)
        self.session = session

    def submit(self, text: str, *, agent: str | None = None, send_history: bool = False) -> TurnRun:
        """Submit a text: to `agent` without routing, or to the default. Raises CantataError."""
        if agent and self.agents and agent not in self.agents:  # if there are none, `submit_turn` says why
            raise unknown_agent_error(agent, self.agents)
        team, default = (None, agent) if agent else (self._team, self._agent)
        return self._client.submit_turn(
            text, team=team, agent=default, session=self.session, send_history=send_history, labels=self._labels
        )

    def open_turns(self) -> Sequence[TurnRun]:
        """Return the turns of the conversation that are not over, the oldest first."""
        return [run for run_id in self._runs.sessions.waiting(self.session) if (run := self._turn(run_id))]

    def history(self, limit: int | None = None) -> Sequence[HistoryEntry]:
        """Return the newest `limit` entries of the conversation, or all that are kept, the oldest first."""
        return self._runs.sessions.history(self.session, limit)

    def clear(self) -> int:
        """Delete the entries of the conversation and return their number."""
        return self._runs.sessions.clear(self.session)

    def _turn(self, run_id: str) -> TurnRun | None:
        try:
            run = self._runs.find(run_id)
        except UnknownRunError:  # it ended and expired since
            return None
        return run if isinstance(run, TurnRun) else None


def unknown_agent_error(name: str, agents: Collection[str]) -> ConfigError:
    """Return the error for a line to an unknown agent."""
    return ConfigError(
        f"Agent '{name}' not recognized. The agents here are: {', '.join(agents) or 'none'}", code="unknown_agent"
    )


def new_session() -> str:
    """Return a new session name: the date and a random suffix."""
    return f"{datetime.now().astimezone():%Y-%m-%d}-{secrets.token_hex(3)}"
