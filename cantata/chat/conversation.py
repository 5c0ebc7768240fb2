"""What a chat asks: the backend that it takes turns to, and finds its conversation and the user's preferences behind."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from cantata.client.client import Client, TurnRun
from cantata.errors import ConfigError, UnknownRunError
from cantata.models.values import JsonValue
from cantata.models.wire import HistoryEntry
from cantata.state.sessions.conversations import Sessions, fault_of


class PreferenceStore(Protocol):
    """What is remembered of a user: the part of a memory bank that a chat needs."""

    def store_memory(self, key: str, value: JsonValue, namespace: str = ..., ttl_s: float | None = ...) -> object:
        """Remember a value."""

    def retrieve_memory(self, key: str, namespace: str = ..., default: JsonValue = ...) -> JsonValue:
        """A value, or `default` where there is none."""

    def memory_exists(self, key: str, namespace: str = ...) -> bool:
        """Whether there is a value."""

    def list_memories(self, namespace: str = ...) -> Sequence[str]:
        """The keys of a namespace."""

    def clear_memories(self, namespace: str | None = ...) -> int:
        """Forget a namespace; how many values that were."""


class ChatBackend(Protocol):
    """What answers the lines of a chat."""

    @property
    def agents(self) -> Collection[str]:
        """The agents that a line may be addressed to."""

    @property
    def session(self) -> str:
        """The conversation that turns belong to."""

    @property
    def resume(self) -> str | None:
        """What to type to go on with this conversation later; None if no command does that."""

    @property
    def memory(self) -> PreferenceStore:
        """What is remembered of the user."""

    def switch(self, session: str) -> None:
        """Go on with another conversation. Raises ConfigError if none can be called so."""

    def submit(self, text: str, *, agent: str | None = None, send_history: bool = False) -> TurnRun:
        """Have a text answered: by `agent`, past all routing, or by whoever answers. Raises CantataError."""

    def open_turns(self) -> Sequence[TurnRun]:
        """The turns of the conversation that are not over, the oldest first."""

    def history(self, most: int | None = None) -> Sequence[HistoryEntry]:
        """What was said, the oldest first: the newest `most` entries, or all that are kept."""

    def clear(self) -> int:
        """Forget what was said; how many entries that were."""


class ClientBackend:
    """The backend of a client: the team or agent that is named, or the configured default."""

    def __init__(
        self, client: Client, *, session: str | None = None, team: str | None = None, agent: str | None = None,
        labels: Mapping[str, str] | None = None, resume: str | None = None,
    ) -> None:  # fmt: skip
        """`resume` is the command that goes on with the conversation, up to its name."""
        self._client = client
        self._team = team
        self._agent = agent
        self._labels = dict(labels or {})
        self._resume = resume
        self.session = ""
        self.switch(session or new_session())

    @property
    def agents(self) -> Collection[str]:
        return self._client.definitions.agents

    @property
    def resume(self) -> str | None:
        return self._resume and f"{self._resume} {self.session}"

    @property
    def memory(self) -> PreferenceStore:
        return self._client.memory.of(tenant=self._tenant)

    def switch(self, session: str) -> None:
        if fault := fault_of(session):
            raise ConfigError(fault)
        self.session = session

    def submit(self, text: str, *, agent: str | None = None, send_history: bool = False) -> TurnRun:
        if agent and agent not in self.agents:
            raise unknown_agent_error(agent, self.agents)
        team, default = (None, agent) if agent else (self._team, self._agent)
        return self._client.submit_turn(
            text, team=team, agent=default, session=self.session, send_history=send_history, labels=self._labels
        )

    def open_turns(self) -> Sequence[TurnRun]:
        return [run for run_id in self._sessions.waiting(self.session) if (run := self._turn(run_id))]

    def history(self, most: int | None = None) -> Sequence[HistoryEntry]:
        return self._sessions.history(self.session, most)

    def clear(self) -> int:
        return self._sessions.clear(self.session)

    @property
    def _tenant(self) -> str:
        return self._labels.get("tenant", "")

    @property
    def _sessions(self) -> Sessions:
        return self._client.sessions.of(self._tenant)

    def _turn(self, run_id: str) -> TurnRun | None:
        try:
            run = self._client.run(run_id)
        except UnknownRunError:  # it ended and expired since
            return None
        return run if isinstance(run, TurnRun) else None


def unknown_agent_error(name: str, agents: Collection[str]) -> ConfigError:
    """What is wrong with a line for an agent that is not there. Source: PromptChain, `run_chat`."""
    return ConfigError(f"Agent '{name}' not recognized. The agents here are: {', '.join(agents) or 'none'}", code="unknown_agent")


def new_session() -> str:
    """A name for a conversation that has none: the day, and chance."""
    return f"{datetime.now().astimezone():%Y-%m-%d}-{secrets.token_hex(3)}"
