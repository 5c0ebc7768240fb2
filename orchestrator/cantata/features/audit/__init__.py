"""The audit log: who acted on runs, schedules, batches and the fleet, by which way, and with what result."""
