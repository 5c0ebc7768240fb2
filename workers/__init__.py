"""How one step is done. Imports orchestrator; nothing there imports this."""
