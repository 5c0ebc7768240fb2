"""PromptChain in Python: models, functions, agentic steps and other chains in a row, done by workers and kept through crashes.

    PromptChain(...) ──▶ Definitions ──▶ runs: a turn of agent `chain`, submitted and waited for
       │      └── instructions, toolbox: what its lists hold, as a configuration would say it
       └── process_prompt(text): the answer, or RunError

Only `runs` acts; the rest is data.
"""

from cantata.frontends.promptchain.instruction_lists import AgenticStepProcessor
from cantata.frontends.promptchain.memory_chains import create_memory_chain, memory_function
from cantata.frontends.promptchain.prompt_chain import PromptChain

__all__ = ["AgenticStepProcessor", "PromptChain", "create_memory_chain", "memory_function"]
