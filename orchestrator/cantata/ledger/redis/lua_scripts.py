"""The Lua scripts, read on import: a long-lived process must not load those of a version installed over its own."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

_FOLDERS = (
    "ledger", "ledger/runs", "engine/fleet", "engine/limits", "features/batches", "features/forks", "features/inbox", "features/memory",
    "features/schedules", "features/sessions",
)  # fmt: skip
TEXTS = {
    f"{folder.rpartition('/')[2]}/{file.name.removesuffix('.lua')}": file.read_text()
    for folder in _FOLDERS
    for file in files("cantata").joinpath(folder).iterdir() if file.name.endswith(".lua")
}  # fmt: skip
"""Each script by its name, `ledger/commit`: it lies in the folder of the module that calls it."""
_RUN = ("ledger/charges", "ledger/run")
_STEPS = (*_RUN, "ledger/steps")
_LEDGER = (*_STEPS, "ledger/lib")
_WITHOUT_LIB = (
    "answers", "append_event", "append_log", "begin", "dispatched", "due", "ended_order", "leases", "open_deliveries", "outbox_due",
    "read_small", "record_usage", "renew", "unbegun",
)  # fmt: skip
PRELUDES = {
    "ledger": _LEDGER,
    "forks": _LEDGER,
    "runs": (*_STEPS, "runs/lib"),
    "inbox": (*_STEPS, "runs/lib"),
    "limits": ("limits/lib",),
    "ledger/charge": ("ledger/charges",),
    "memory": ("memory/lib",),
    "batches": ("ledger/charges", "batches/lib"),
    **{f"sessions/{name}": ("ledger/charges",) for name in ("clear", "restore", "change_builder")},
    "schedules": (*_LEDGER, "ledger/accepting"),
    **{f"ledger/{name}": (*_LEDGER, "ledger/cancelling") for name in ("cancel", "finish")},
    "ledger/accept": (*_LEDGER, "ledger/accepting"),
    "ledger/commit": (*_RUN, "ledger/commit_plain", *_LEDGER[len(_RUN) :], "ledger/expand"),
    **{f"ledger/{name}": (*_LEDGER, "ledger/parking") for name in ("item_failed", "unpark")},
    "ledger/sweep": (*_LEDGER, "ledger/cancelling", "ledger/parking"),
    **{f"ledger/{name}": _STEPS for name in _WITHOUT_LIB},
}
"""What comes before the scripts of a folder, or before one script."""


def sha_of(text: str) -> str:
    """Return the name that Redis has for a script."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """The scripts, each behind its prelude. Safe to share between threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def script(self, name: str) -> tuple[str, str]:
        """Return the name that Redis has for a script, and its text."""
        known = self._known.get(name)
        if known is None:
            text = self.text(name)
            known = self._known[name] = (sha_of(text), text)
        return known

    def text(self, name: str) -> str:
        """Return a script with its prelude."""
        prelude = PRELUDES.get(name) or PRELUDES.get(name.partition("/")[0], ())
        text = "\n".join(TEXTS[part] for part in (*prelude, name))
        return f"{text}\nend)()\nwrite_changes()\nreturn reply" if "ledger/run" in prelude else text

    def call(self, redis: Redis, name: str, key: str, *args: str) -> Any:
        """Call a script. It has one key, which all others are built from."""
        sha, text = self.script(name)
        try:
            return redis.evalsha(sha, 1, key, *args)
        except NoScriptError:
            return redis.eval(text, 1, key, *args)

    def call_each(self, redis: Redis, name: str, calls: Sequence[tuple[str, Sequence[str]]], *, at_once: int = 1000) -> list[Any]:
        """Call a script with each key and its arguments.

        `at_once` calls go in one round trip, during which a server serves no other client.
        """
        parts = [calls[start : start + at_once] for start in range(0, len(calls), at_once)]
        return [reply for part in parts for reply in self._call_all(redis, name, part)]

    def _call_all(self, redis: Redis, name: str, calls: Sequence[tuple[str, Sequence[str]]]) -> list[Any]:
        sha, text = self.script(name)

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


SCRIPTS = Scripts()
