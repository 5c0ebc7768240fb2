"""The ledger: runs, steps and leases in Redis, each promise one Lua script."""
