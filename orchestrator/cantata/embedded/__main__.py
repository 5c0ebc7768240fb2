"""`python -m cantata.embedded supervise FOLDER`: the supervisor process that `Stack.start` starts. Not a command for users."""

from __future__ import annotations

from cantata.embedded.supervision.supervisor import main

if __name__ == "__main__":
    main()
