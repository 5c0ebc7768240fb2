"""PromptChain in Python: models, functions, agentic steps and other chains in sequence, executed durably by workers.

    PromptChain(...) ──▶ Definitions ──▶ run_calls: a turn of agent `chain`, submitted and waited for
       │      └── instruction_lists, toolbox: the arguments of the constructor as values of a configuration
       ├── process_prompt(text): the answer, or RunError
       └── memory_methods: the memories of its tenant

Only `run_calls` and `memory_methods` do I/O; the rest is data.
"""

from cantata_frontends.promptchain.instruction_lists import AgenticStepProcessor
from cantata_frontends.promptchain.memory_methods import memory_function
from cantata_frontends.promptchain.prompt_chain import PromptChain, create_memory_chain

__all__ = ["AgenticStepProcessor", "PromptChain", "create_memory_chain", "memory_function"]
