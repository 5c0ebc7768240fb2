"""Worker processes: they execute steps. Nothing outside imports this package, save the processes that start it."""
