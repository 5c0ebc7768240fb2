"""The error of requests whose connection to an MCP server was lost."""

from __future__ import annotations

from cantata.errors import StepError


class ConnectionLost(StepError):
    """The connection was lost. If the request `was_sent`, the server may have executed it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message, code="mcp_unavailable", retryable=True)
        self.was_sent = was_sent
