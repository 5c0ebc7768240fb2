"""AgentChain in Python: PromptChains that answer the turns of one conversation together, executed durably by workers.

AgentChain(...) ──▶ Definitions with one team ──▶ turns of a session, submitted and waited for
   │       └── chain_arguments: its agents, routers, rules and synthesizers as values
   ├── log_mapping: events of a run ──▶ documented log entries ──▶ run_log: the file, `logging`, the console
   └── chat_adapter: the chain as the backend of a chat on a terminal
"""

from cantata_frontends.agentchain.agent_chain import AgentChain

__all__ = ["AgentChain"]
