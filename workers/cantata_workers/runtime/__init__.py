"""One worker process: leases, costs, limits of memory, task events."""
