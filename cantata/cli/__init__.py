"""The command line: `submit`.

    main ──▶ submitting, runs ──▶ door ──▶ submission, queries ──▶ view ──▶ screen, lines
         ──▶ documents ──▶ requests, plans
         ──▶ stacks, worker

`main` has the table of commands, and loads a command's module when it is called. The door finds a service or starts one. At the submission runs
are submitted and attended to their end; on the queries they are found again. The view is what the events of a run print_note.
"""

from __future__ import annotations

from cantata.cli.main import main

__all__ = ["main"]
