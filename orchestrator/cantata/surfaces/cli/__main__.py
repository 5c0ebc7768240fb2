"""`python -m cantata.surfaces.cli`, the same as `submit`."""

from __future__ import annotations

from cantata.surfaces.cli.main import main

if __name__ == "__main__":
    main()
