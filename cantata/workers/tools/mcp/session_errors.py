"""The end of a connection to an MCP server, as those that wait for an answer are told of it."""

from __future__ import annotations

from cantata.errors import StepError


class ConnectionLost(StepError):
    """The connection is over. The server may have done what was asked if it `was_sent`."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message, code="mcp_unavailable", retryable=True)
        self.was_sent = was_sent
