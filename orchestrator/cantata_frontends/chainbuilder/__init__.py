"""Dynamic chains in Python: chains are created, combined, and executed alone or in groups; any process can open a builder.

    ChainBuilder ──edits──▶ BuilderPlan: the chains and their dependencies; a new value with each change
       │                      └── run_request ──▶ Definitions and a ChainRequest: one run for all chains that are executed together
       └── builder_state stores the plan, and for each chain its run or its output

The status of a chain comes from the ledger while its run is open.
"""

from cantata_frontends.chainbuilder.builder import ChainBuilder, DynamicChainBuilder
from cantata_frontends.chainbuilder.builder_arguments import tasks_in

__all__ = ["ChainBuilder", "DynamicChainBuilder", "tasks_in"]
