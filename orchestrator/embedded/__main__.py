"""`python -m orchestrator.embedded supervise FOLDER`: the process that `Stack.launch` starts; not for typing."""

from __future__ import annotations

from orchestrator.embedded.supervisor import main

if __name__ == "__main__":
    main()
