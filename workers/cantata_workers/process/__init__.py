"""One worker process: its messages, leases, user code, threads, limits of memory, task events."""
