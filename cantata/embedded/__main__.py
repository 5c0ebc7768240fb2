"""`python -m cantata.embedded supervise FOLDER`: the process that `Stack.launch` starts; not for typing."""

from __future__ import annotations

from cantata.embedded.supervision.supervisor import main

if __name__ == "__main__":
    main()
