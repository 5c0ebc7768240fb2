"""The ledger's Lua scripts, and calls of them, retried while Redis is unavailable.

Their texts are read on import: a long-lived process must not load those of a version installed over its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar, cast

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from cantata.errors import ConfigError
from cantata.ledger.intervals import RESEND_MS
from cantata.ledger.redis.cluster import Cluster
from cantata.ledger.redis.keys import SHARDS, shard_key, shard_of
from cantata.ledger.redis.redis_errors import Unconfirmed, with_retries
from cantata.operation import fault_points

CONFIRM_MS = 1000  # how long replicas have to confirm, before the call is repeated
CONFIRMED = frozenset(
    {
        "ledger/accept",
        "ledger/cancel",
        "ledger/commit",
        "forks/fork",
        "ledger/signal",
        "audit/append",
        "batches/open",
        "batches/record",
        "batches/change",
    }
)
"""Scripts that replicas confirm, if so many are required: those that make a promise, or need not run again."""
CALLS_AT_ONCE = 200  # in one round trip, during which a server serves no other client

UNFINISHED = ["unfinished"]
"""The reply of a script that is to be called again, when what an earlier call left of the run is done."""

Reply = TypeVar("Reply")
Calls = Sequence[tuple[int, tuple[str | float, ...]]]
"""Shards, each with the arguments of a script."""

_FOLDERS = (
    "ledger", "ledger/runs", "engine/fleet", "engine/limits", "features/audit", "features/batches", "features/forks", "features/inbox",
    "features/memory", "features/schedules", "features/sessions",
)  # fmt: skip
TEXTS = {
    f"{folder.rpartition('/')[2]}/{file.name.removesuffix('.lua')}": file.read_text()
    for folder in _FOLDERS
    for file in files("cantata").joinpath(folder).iterdir()
    if file.name.endswith(".lua")
}
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

    def call_each(
        self, redis: Redis, name: str, calls: Sequence[tuple[str, Sequence[str]]], *, at_once: int = 1000
    ) -> list[Any]:
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


class Finished(NamedTuple):
    """The result of what was left of a run: steps to send, `id, spec, ...`; its status; `run, priority, id, spec, ...` of other runs."""

    sends: list[str]
    status: str
    following: list[str]
    has_posts: bool
    """The outbox has an event of the run to post to webhooks."""


class ScriptCaller:
    """Calls scripts in the shards of runs. Safe to share between threads."""

    def __init__(self, redis: Redis, *, patience_s: float, replicas: int, sends: bool = True) -> None:
        if replicas and isinstance(redis, Cluster):
            raise ConfigError(
                "CANTATA_WAIT_REPLICAS is not for a Redis Cluster: its nodes are not waited for; unset it"
            )
        self.redis = redis
        self._prefixes = tuple(shard_key(redis, shard) for shard in range(SHARDS))
        self._patience_s = patience_s
        self.resend_ms = RESEND_MS if sends else 0
        """How long a sweep waits for what this process has made ready to be begun; 0: this process sends nothing, the next sweep does."""
        self._replicas = replicas

    def call(self, name: str, run_id: str, *args: str | float) -> list:  # type: ignore[type-arg]  # what Lua replies
        """Call a script in the shard of a run, which is its first argument; first do what an earlier call left of the run."""
        while (reply := self.call_shard(name, shard_of(run_id), run_id, *args)) == UNFINISHED:
            self.finish(run_id)
        return reply

    def finish(self, run_id: str, *, resend_ms: int = 0) -> Finished:
        """Do what a call left of a run, in pieces, so that no call keeps Redis from others for long.

        `resend_ms` is the time until a sweep checks the steps that become ready, which the caller sends; 0: the next sweep sends them.
        """
        sends: list[str] = []
        following: list[str] = []
        has_posts, is_left, status = False, True, ""
        while is_left:
            reply = named(self.call_shard("ledger/finish", shard_of(run_id), run_id, resend_ms))
            sends += reply.get("sends", ())
            following += reply.get("following", ())
            is_left, status, has_posts = (
                "is_left" in reply,
                reply.get("run_status", ""),
                has_posts or "has_posts" in reply,
            )
        return Finished(sends, status, following, has_posts)

    def settle(self, run_id: str) -> None:
        """Do what a call left of a run that is about to be read: steps that are being stopped count as skipped. Raise no error of that."""
        with suppress(ResponseError):
            self.finish(run_id)

    def call_shard(self, name: str, shard: int, *args: str | float) -> list:  # type: ignore[type-arg]  # what Lua replies
        """Call a script in a shard."""
        sha, text = SCRIPTS.script(name)
        key = self._prefixes[shard]

        def call() -> list:  # type: ignore[type-arg]  # what Lua replies
            execute = self._execute_confirmed if self._replicas and name in CONFIRMED else self._execute
            try:
                reply = execute("EVALSHA", sha, 1, key, *args)
            except NoScriptError:
                reply = execute("EVAL", text, 1, key, *args)
            if fault_points.at(f"{name.partition('/')[2]}-replied"):
                raise RedisConnectionError("the reply was dropped")
            return cast("list", reply)  # type: ignore[type-arg]

        return self.with_retries(call)

    def call_runs(self, name: str, calls: Sequence[tuple[str, ...]]) -> list[Any]:
        """Call a script for each of many runs, with arguments that begin with the run's id; CALLS_AT_ONCE in one round trip."""
        parts = (calls[start : start + CALLS_AT_ONCE] for start in range(0, len(calls), CALLS_AT_ONCE))
        return [reply for part in parts for reply in self.call_all(name, [(shard_of(args[0]), args) for args in part])]

    def call_all(
        self, name: str, calls: Calls, on_error: Callable[[ResponseError], list[Any]] | None = None
    ) -> list[Any]:
        """Call a script in many shards, in one round trip; `on_error` makes the reply of a shard in which it failed.

        One that replicas are to confirm is called in one shard after the other.
        """
        if self._replicas and name in CONFIRMED:
            replies: list[Any] = [self.call_shard(name, shard, *args) for shard, args in calls]
        else:
            replies = self.with_retries(lambda: self.call_all_once(name, calls, on_error))
        for index, (_, args) in enumerate(calls):
            if replies[index] == UNFINISHED:
                try:
                    replies[index] = self.call(name, *cast("tuple[str]", args))
                except ResponseError as error:
                    if on_error is None:
                        raise
                    replies[index] = on_error(error)
        return replies

    def call_all_once(
        self, name: str, calls: Calls, on_error: Callable[[ResponseError], list[Any]] | None = None
    ) -> list[Any]:
        """Do the same without retries. Raises RedisError."""
        sha, _ = SCRIPTS.script(name)
        if not calls:
            return []
        with self.redis.pipeline(transaction=False) as pipe:
            for shard, args in calls:
                pipe.evalsha(sha, 1, self._prefixes[shard], *map(str, args))
            replies: list[Any] = pipe.execute(raise_on_error=False)
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # the first call loads the script into its node
            first, *others = unknown
            try:
                replies[first] = self.call_shard(name, calls[first][0], *calls[first][1])
            except ResponseError as error:
                replies[first] = error
            again = self.call_all_once(name, [calls[index] for index in others], on_error)
            for index, reply in zip(others, again, strict=True):
                replies[index] = reply
        for index, reply in enumerate(replies):
            if isinstance(reply, Exception):
                if on_error is None or not isinstance(reply, ResponseError):
                    raise reply
                replies[index] = on_error(reply)
        return replies

    def read_shards(self, name: str, shards: Sequence[int], *args: str) -> list[tuple[Sequence[int], list[Any]]]:
        """Call a script that only reads with all of some shards, or in a cluster with each; return shards and reply of each call.

        Its arguments are `args`, and then the prefixes of the shards but the first.
        """
        parts = [[shard] for shard in shards] if isinstance(self.redis, Cluster) else [shards] if shards else []
        keys = [[self._prefixes[shard] for shard in part] for part in parts]
        found = self.with_retries(
            lambda: SCRIPTS.call_each(self.redis, name, [(first, (*args, *others)) for first, *others in keys])
        )
        return list(zip(parts, found, strict=True))

    def nodes(self) -> dict[str, list[int]]:
        """Return the shards of each node; of a single Redis all under ""."""
        if not isinstance(self.redis, Cluster):
            return {"": list(range(SHARDS))}
        shards: dict[str, list[int]] = {}
        for shard in range(SHARDS):
            shards.setdefault(self.redis.node_of(self._prefixes[shard]), []).append(shard)
        return shards

    def with_retries(self, call: Callable[[], Reply]) -> Reply:
        """Call Redis, repeatedly while it is unavailable or takes no writes, for `patience_s` in all.

        Raises UnavailableError after that.
        """
        return with_retries(call, patience_s=self._patience_s)

    def _execute(self, *command: str | float) -> object:
        return self.redis.execute_command(*command)  # type: ignore[no-untyped-call]  # untyped in redis-py

    def _execute_confirmed(self, *command: str | float) -> object:
        """Execute a command and wait until replicas have what it changed. Raises Unconfirmed, after which it is repeated."""
        with self.redis.pipeline(transaction=False) as pipe:
            for each in (command, ("WAIT", self._replicas, CONFIRM_MS)):
                pipe.execute_command(*each)  # type: ignore[no-untyped-call]  # as above
            reply, confirmed = pipe.execute()
        if confirmed < self._replicas:
            raise Unconfirmed(f"{confirmed} of {self._replicas} replicas have it")
        return cast(object, reply)


def number_text(number: int | None) -> str:
    """Return a number as an argument of a script; None as an empty text."""
    return "" if number is None else str(number)


def named(reply: Sequence[Any]) -> dict[str, Any]:
    """Return a reply of a script with names, `{name, value, ...}`, as a mapping."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
