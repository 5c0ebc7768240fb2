"""Logs: one event, one line; JSON where a program reads, plain where a person does."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def configure_logs() -> None:
    """Send log events to standard error. The level is CANTATA_LOG_LEVEL (default WARNING)."""
    level = logging.getLevelNamesMapping().get(os.environ.get("CANTATA_LOG_LEVEL", "WARNING").upper(), logging.WARNING)
    last = structlog.dev.ConsoleRenderer(colors=True) if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
