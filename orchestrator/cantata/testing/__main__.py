"""`python -m cantata.testing [script.yaml] [--host NAME] [--port N] [--refuse-like PROVIDER]`.

It prints its URL, and serves until its parent process exits.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cantata.config import loading
from cantata.errors import ConfigError
from cantata.testing.refusals import PROVIDERS
from cantata.testing.rules import read_rules
from cantata.testing.server import ScriptedModels

PARENT_CHECK_S = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a script. Returns exit status 2 if it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m cantata.testing", description="A scripted OpenAI-compatible model server."
    )
    parser.add_argument(
        "script", nargs="?", type=Path, help="YAML or JSON: a list of rules; without it everything is echoed"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 in a container")
    parser.add_argument("--port", type=int, default=0, help="the port; any free one if absent")
    parser.add_argument("--refuse-like", choices=PROVIDERS, help="refuse what this provider is known to refuse")
    options = parser.parse_args(arguments)
    parent = os.getppid()
    try:
        rules = read_rules(loading.read(options.script)) if options.script else ()
        server = ScriptedModels(rules, host=options.host, port=options.port, refuse_like=options.refuse_like)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        sys.stderr.write(
            f"port {options.port} of {options.host} cannot be listened on: {why}; name another with --port or --host\n"
        )
        return 2
    with server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
