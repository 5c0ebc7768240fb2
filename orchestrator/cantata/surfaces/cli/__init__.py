"""The command line: `submit`.

    main ──▶ commands ──▶ connect ──▶ connection ──▶ Client
                      ──▶ requests        run_commands ──▶ views

`main` has the table of commands and loads a command's module when it is called. `connect` finds a service or starts one and gives the
command a ServiceConnection: the client, and how runs are shown until they are over. A command is a call of the client and a print; what
`submit runs` prints is in `run_commands`. The views show runs and plans as text.
"""

from __future__ import annotations

from cantata.surfaces.cli.main import main

__all__ = ["main"]
