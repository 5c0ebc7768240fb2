"""The ledger has what happened, once: runs, steps and leases in Redis, each promise one Lua script."""
