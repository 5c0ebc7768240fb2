"""Lua scripts that share a prelude: read once, sent once to each Redis."""

from __future__ import annotations

import threading
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

_LUA = files("orchestrator.state") / "lua"


class Scripts:
    """The scripts `lua/<prelude>_<name>.lua`, each behind `lua/<prelude>_lib.lua`. Safe to share between threads."""

    def __init__(self, prelude: str) -> None:
        self._prelude = prelude
        self._known: dict[str, tuple[str, str]] = {}
        self._loading = threading.Lock()

    def call(self, redis: Redis, name: str, key: str, *args: str) -> Any:
        """What a script replies. It has one key, which all others are built from."""
        sha, text = self._script(name)
        try:
            return redis.evalsha(sha, 1, key, *args)
        except NoScriptError:
            return redis.eval(text, 1, key, *args)

    def text(self, name: str) -> str:
        """A script with its prelude."""
        return "\n".join((_LUA / f"{self._prelude}_{part}.lua").read_text() for part in ("lib", name))

    def _script(self, name: str) -> tuple[str, str]:
        script = self._known.get(name)
        if script is None:
            with self._loading:
                text = self.text(name)
                script = self._known[name] = (sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
        return script
