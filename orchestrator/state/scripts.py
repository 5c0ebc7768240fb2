"""Lua scripts that share a prelude: read at once, sent once to each Redis."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

_LUA = files("orchestrator.state") / "lua"


class Scripts:
    """The scripts `lua/<prelude>_<name>.lua`, each behind `lua/<prelude>_lib.lua`. Safe to share between threads.

    All are read now: a long-lived process must not meet those of a version that is installed over it.
    """

    def __init__(self, prelude: str) -> None:
        self._prelude = prelude
        names = {
            file.name.removesuffix(".lua").removeprefix(f"{prelude}_") for file in _LUA.iterdir() if file.name.startswith(f"{prelude}_")
        }
        texts = {name: self.text(name) for name in names - {"lib"}}
        self._known = {name: (sha1(text.encode(), usedforsecurity=False).hexdigest(), text) for name, text in texts.items()}

    def call(self, redis: Redis, name: str, key: str, *args: str) -> Any:
        """What a script replies. It has one key, which all others are built from."""
        sha, text = self._known[name]
        try:
            return redis.evalsha(sha, 1, key, *args)
        except NoScriptError:
            return redis.eval(text, 1, key, *args)

    def call_each(self, redis: Redis, name: str, calls: Sequence[tuple[str, Sequence[str]]], *, at_once: int = 1000) -> list[Any]:
        """What a script replies to each key and its arguments.

        So many calls go `at_once`, in one round trip; meanwhile a server turns to nobody else.
        """
        parts = [calls[start : start + at_once] for start in range(0, len(calls), at_once)]
        return [reply for part in parts for reply in self._call_all(redis, name, part)]

    def _call_all(self, redis: Redis, name: str, calls: Sequence[tuple[str, Sequence[str]]]) -> list[Any]:
        sha, text = self._known[name]

        def ask() -> list[Any]:
            with redis.pipeline(transaction=False) as pipe:
                for key, args in calls:
                    pipe.evalsha(sha, 1, key, *args)
                return pipe.execute()

        try:
            return ask()
        except NoScriptError:
            redis.script_load(text)
            return ask()

    def text(self, name: str) -> str:
        """A script with its prelude."""
        return "\n".join((_LUA / f"{self._prelude}_{part}.lua").read_text() for part in ("lib", name))
