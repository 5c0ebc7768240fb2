"""The command line: `submit`.

    main ──▶ submitting, runs, documents, stacks   the commands, loaded when called
                 │
                 └── door ──▶ desk ──▶ view ──▶ screen (terminals) or lines (elsewhere)
                     finds    submits    what the events of a run say
                     a service, attends
"""

from __future__ import annotations

from orchestrator.cli.main import main

__all__ = ["main"]
