"""The command line: `submit`.

    main ──▶ commands ──▶ connect ──▶ submission, run_queries ──▶ views
                      ──▶ requests

`main` has the table of commands and loads a command's module when it is called. `connect` finds a service or starts one. RunSubmission
submits runs and follows them to their end; RunQueries reads runs that were submitted before. The views show runs and plans as text.
"""

from __future__ import annotations

from cantata.surfaces.cli.main import main

__all__ = ["main"]
