"""AgentChain in Python: PromptChains that answer the turns of one conversation together, done by workers and kept through crashes.

AgentChain(...) ──▶ Definitions with one team ──▶ turns of a session, submitted and waited for
   │       └── choosing: who chooses among the agents, as a configuration would say it
   ├── story: what the events of a run mean, in the documented words ──▶ journal: the run log, the console
   └── door: the same chain, as a chat on a terminal asks it
"""

from cantata.frontends.agentchain.agent_chain import AgentChain

__all__ = ["AgentChain"]
