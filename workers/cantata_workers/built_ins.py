"""Functions of workers that steps call: name → `module:function`."""

FUNCTIONS = {
    "cantata.builtin:mcp_faults": "cantata_workers.tools.mcp:faults",
    "cantata.workers.tools.mcp:faults": "cantata_workers.tools.mcp:faults",  # still written: older workers know no other name
}
