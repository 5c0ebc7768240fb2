"""`python -m cantata.operation.embedded supervise FOLDER`: the supervisor process that `Stack.start` starts. Not a command for users."""

from __future__ import annotations

from cantata.operation.embedded.supervision.supervisor import main

if __name__ == "__main__":
    main()
