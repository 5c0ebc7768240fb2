"""PromptChain in Python: models, functions, agentic steps and other chains in a row, done by workers and kept through crashes.

    PromptChain(...) ──▶ Definitions ──▶ runs: a turn of agent `chain`, submitted and waited for
       │      └── instructions, toolbox: what its lists hold, as a configuration would say it
       └── process_prompt(text): the answer, or RunError

Only `runs` acts; the rest is data.
"""

from orchestrator.promptchain.chain import PromptChain
from orchestrator.promptchain.instructions import AgenticStepProcessor
from orchestrator.promptchain.memory import create_memory_chain, memory_function

__all__ = ["AgenticStepProcessor", "PromptChain", "create_memory_chain", "memory_function"]
