"""An AgentChain as the backend of a chat on a terminal."""

from __future__ import annotations

import threading

from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.flows.definitions import Team
from cantata.flows.wire import TurnRequest
from cantata.surfaces.chat import ChatBackend, unknown_agent_error
from cantata_frontends.agentchain.run_log import LogWriter, RunLog

FOLLOWER_TIMEOUT_S = 5.0  # for the log entries of turns that were under way when the chat ended


class ChainChatBackend(ChatBackend):
    """Submits the lines of a chat as turns of the chain, and writes the events of each into the run log."""

    def __init__(self, client: Client, turn: TurnRequest, team: Team, log: RunLog) -> None:
        """`turn` is the template of each turn; a line of the chat is its text."""
        super().__init__(client, session=turn.session, team=turn.team)
        self._turn_client = client
        self._turn_template = turn
        self._team_config = team
        self._log = log
        self._followers: list[threading.Thread] = []

    def submit(self, text: str, *, agent: str | None = None, send_history: bool = False) -> TurnRun:
        """Submit a text as a turn. Raises ConfigError for an unknown agent."""
        target = {"team": None, "agent": agent, "send_history": send_history} if agent else {}
        turn = self._turn_template.model_copy(update={"text": text, "session": self.session, **target})
        if agent:
            self._log.write(
                "direct_call_detected", {"session": self.session, "agent": agent, "send_history": send_history}
            )
            if agent not in self.agents:
                self._log.write(
                    "direct_call_agent_not_found",
                    {"session": self.session, "agent": agent, "agents": list(self.agents)},
                )
                raise unknown_agent_error(agent, self.agents)
        run = self._turn_client.submit_turn(**turn.model_dump(exclude_defaults=True))
        if self._log.is_wanted:
            self._follow(turn, run)
        return run

    def _follow(self, turn: TurnRequest, run: TurnRun) -> None:
        writer = LogWriter(turn, self._team_config, self._log)
        follower = threading.Thread(target=writer.follow, args=(run,), name=f"run log of {run.run_id}", daemon=True)
        follower.start()
        self._followers = [*(each for each in self._followers if each.is_alive()), follower]

    def close(self) -> None:
        """Wait for the threads that write the run log, up to FOLLOWER_TIMEOUT_S each."""
        for follower in self._followers:
            follower.join(FOLLOWER_TIMEOUT_S)
