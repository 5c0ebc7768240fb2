"""The door by which a chat on a terminal asks an AgentChain."""

from __future__ import annotations

import threading

from cantata.chat import ClientBackend, unknown_agent_error
from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.frontends.agentchain.log_writer import LogWriter
from cantata.frontends.agentchain.run_log import RunLog
from cantata.models.definitions import Team
from cantata.models.wire import TurnRequest

FOLLOWER_TIMEOUT_S = 5.0  # for the run log of turns that a chat was left in


class ChainChatBackend(ClientBackend):
    """Turns of the chat are those of the chain; each is followed beside the chat, for the run log."""

    def __init__(self, client: Client, turn: TurnRequest, team: Team, told: RunLog) -> None:
        """`turn` is as the chain asks it; a line of the chat gives its text."""
        super().__init__(client, session=turn.session, team=turn.team)
        self._asking = client
        self._input_fields = turn
        self._answering = team
        self._run_log = told
        self._followers: list[threading.Thread] = []

    def submit(self, text: str, *, agent: str | None = None, send_history: bool = False) -> TurnRun:
        """Have a text answered."""
        target = {"team": None, "agent": agent, "send_history": send_history} if agent else {}
        turn = self._input_fields.model_copy(update={"text": text, "session": self.session, **target})
        if agent:
            self._run_log.write("direct_call_detected", {"session": self.session, "agent": agent, "send_history": send_history})
            if agent not in self.agents:
                self._run_log.write("direct_call_agent_not_found", {"session": self.session, "agent": agent, "agents": list(self.agents)})
                raise unknown_agent_error(agent, self.agents)
        run = self._asking.submit_turn(**turn.model_dump(exclude_defaults=True))
        if self._run_log.is_wanted:
            self._follow(turn, run)
        return run

    def _follow(self, turn: TurnRequest, run: TurnRun) -> None:
        writer = LogWriter(turn, self._answering, self._run_log)
        follower = threading.Thread(target=writer.follow, args=(run,), name=f"run log of {run.run_id}", daemon=True)
        follower.start()
        self._followers = [*(each for each in self._followers if each.is_alive()), follower]

    def close(self) -> None:
        """Wait a moment for the run log."""
        for follower in self._followers:
            follower.join(FOLLOWER_TIMEOUT_S)
