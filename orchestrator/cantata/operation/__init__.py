"""The operation of a deployment: logs, metrics, traces; its health, and the embedded stack."""
