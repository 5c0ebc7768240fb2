"""Memories of agents, tools and users in Redis; `lib.lua` lists the keys."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from secrets import token_hex
from typing import Any, Self, cast
from urllib.parse import quote, unquote

from redis.exceptions import ConnectionError as RedisConnectionError

from cantata import bounds
from cantata.errors import ConfigError, StoredDataError, UnavailableError, unreadable
from cantata.flows.definitions import Limits
from cantata.flows.wire import fault_of_session
from cantata.ledger import conversations
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import exceeded
from cantata.ledger.redis.keys import memory_key
from cantata.ledger.scripts import SCRIPTS
from cantata.operation import fault_points
from cantata.values import JsonValue

DEFAULT = "default"
CONVERSATIONS = "conversations"
"""The read-only namespace of the conversations of sessions."""

KEY_BYTES = 1024
NAMESPACE_BYTES = 256
MAX_ATTEMPTS = 10_000  # of an update; each that fails means that another writer succeeded

_KINDS = {'"': "a text", "{": "an object", "t": "true", "f": "false", "n": "null"}


class MemoryStore:
    """Values by key and namespace, of one tenant; or of one of its sessions. They outlive runs, workers and restarts.

    Values are JSON. Safe to share between threads and processes. Raises ConfigError for what is no JSON, too long or too large.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        tenant: str = "",
        session: str | None = None,
        limits: Limits | None = None,
        of_run: bool = False,
    ) -> None:
        """Open the memories of a tenant, or of a session; without `limits` the default quota applies.

        `of_run` says that an open run writes them, which goes on while Redis is nearly full.
        """
        self._ledger = ledger
        self._of_run = of_run
        self._limits = limits or Limits()
        self._scripts = SCRIPTS
        self._enter(tenant, session)

    def of(self, *, tenant: str | None = None, session: str | None = None) -> Self:
        """Return the memories of a tenant, by default this one, or of one of its sessions.

        Raises ConfigError for another tenant than this one.
        """
        if tenant is not None and self.tenant and tenant != self.tenant:
            raise _refused(f"this is the memory of tenant {self.tenant!r}, which cannot open that of {tenant!r}")
        other = copy.copy(self)
        other._enter(self.tenant if tenant is None else tenant, session)
        return other

    # --- as documented ----------------------------------------------------------------------------------------------

    def store_memory(self, key: str, value: JsonValue, namespace: str = DEFAULT, ttl_s: float | None = None) -> None:
        """Store a value for `ttl_s` seconds; by default for the namespace's time (`keep_for`), or without one for good."""
        self._put(key, value, namespace, ttl=_ms(ttl_s))

    def retrieve_memory(self, key: str, namespace: str = DEFAULT, default: JsonValue = None) -> JsonValue:
        """Return the value, or `default` if there is none."""
        if namespace == CONVERSATIONS:
            return cast(JsonValue, self._said(key)) or default
        packed = self._packed(key, namespace)
        return default if packed is None else _value(packed)

    def memory_exists(self, key: str, namespace: str = DEFAULT) -> bool:
        """Return whether there is a value."""
        if namespace == CONVERSATIONS:
            return bool(self._said(key))
        return self._packed(key, namespace) is not None

    def list_memories(self, namespace: str = DEFAULT) -> list[str]:
        """Return the keys of a namespace, sorted."""
        if namespace == CONVERSATIONS:
            return self._sessions()
        return sorted(cast("list[str]", self._call("list", self._scope, _namespace(namespace))))

    def clear_memories(self, namespace: str | None = None) -> int:
        """Delete a namespace, or all memories of this tenant or session; return how many values were deleted."""
        forgotten, more = 0, 1
        while more:
            count, more = self._call("clear", self._scope, "" if namespace is None else _written(namespace))
            forgotten += int(count)
        return forgotten

    # --- besides ----------------------------------------------------------------------------------------------------

    def delete_memory(self, key: str, namespace: str = DEFAULT) -> bool:
        """Delete one value; return whether there was one."""
        return bool(self._call("delete", self._scope, _written(namespace), _key(key)))

    def append(self, key: str, item: JsonValue, namespace: str = DEFAULT) -> int:
        """Append an item to a list, which is created if absent; return its length. Concurrent writers lose nothing."""
        text = _json(key, item)
        with self._storing(text):
            word, more, *used = self._call(
                "append", self._write(key, namespace, value_bytes=bounds.MAX_MEMORY_BYTES), text
            )
        if word == "quota":
            raise self._exceeded(more, *used)
        if word == "other":
            raise _refused(
                f"{key!r} in {namespace!r} holds {_KINDS.get(more, 'a number')}, and only lists can be appended to"
            )
        if word == "large":
            raise _too_large(key, int(more))
        return int(more)

    def update(self, key: str, change: Callable[[Any], JsonValue], namespace: str = DEFAULT) -> JsonValue:
        """Replace a value, None if absent, by `change(value)`; return the new one.

        If another writer was faster, `change` is called again with the current value.
        """
        for _ in range(MAX_ATTEMPTS):
            packed = self._packed(key, namespace)
            value = change(None if packed is None else _value(packed))
            if self._put(key, value, namespace, expected=packed.split(" ", 1)[0] if packed else "", ttl="keep"):
                return value
        raise UnavailableError(
            f"memory: others change {key!r} faster than it can be updated; try again, or let fewer write it"
        )

    def retrieve_each(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], JsonValue]:
        """Return the values that exist, by (namespace, key), in one call; those that a session lacks are taken from its tenant."""
        names = list(dict.fromkeys(wanted))
        found = {
            (namespace, key): value
            for namespace, key in names
            if namespace == CONVERSATIONS and (value := self._said(key))
        }
        stored = [name for name in names if name[0] != CONVERSATIONS]
        scopes = list(dict.fromkeys([self._scope, ""]))
        args = [
            part for scope in scopes for namespace, key in stored for part in (scope, _namespace(namespace), _key(key))
        ]
        packed = iter(self._call("get", *args) if stored else ())
        answers = cast("dict[tuple[str, str], JsonValue]", found)
        for name, each in zip(stored * len(scopes), packed, strict=True):
            if each is not None and name not in answers:
                answers[name] = _value(each)
        return answers

    def namespaces(self) -> list[str]:
        """Return the namespaces that are not empty, sorted."""
        kept = list(map(unquote, self._call("namespaces", self._scope)))
        return sorted([*kept, *([CONVERSATIONS] if self._sessions() else [])])

    def keep_for(self, namespace: str, ttl_s: float | None) -> None:
        """Set the default time to live of values stored in a namespace from now on; None is for good."""
        word, *more = self._call("keep_for", _ms(ttl_s), self._write(DEFAULT, namespace))
        if word == "quota":
            raise self._exceeded(*more)

    # ----------------------------------------------------------------------------------------------------------------

    def _enter(self, tenant: str, session: str | None) -> None:
        if session is not None and (fault := fault_of_session(session)):
            raise _refused(fault)
        self.tenant, self.session = tenant, session
        _size("tenant", tenant)
        self._root = memory_key(self._ledger.redis, tenant)
        self._scope = "" if session is None else f":session:{_quoted('session', session)}"

    def _packed(self, key: str, namespace: str) -> str | None:
        return cast("str | None", self._call("get", self._scope, _namespace(namespace), _key(key))[0])

    def _put(self, key: str, value: JsonValue, namespace: str, *, ttl: str, expected: str | None = None) -> bool:
        text = _json(key, value)
        items = str(len(value)) if isinstance(value, list | tuple) else "-"
        write = self._write(
            key, namespace, items=items, ttl=ttl, **({} if expected is None else {"expected": expected})
        )
        with self._storing(text):
            word, *more = self._call("put", write, text)
        if word == "quota":
            raise self._exceeded(*more)
        return bool(word == "ok")

    def _write(self, key: str, namespace: str, **more: JsonValue) -> str:
        """Return a write as `put.lua` and `append.lua` take it; its mark names it."""
        quota = self._limits.quota_of(self.tenant)
        most: dict[str, JsonValue] = {"memory_bytes": quota.memory_bytes, "memory_namespaces": quota.memory_namespaces}
        return to_json(
            {
                "scope": self._scope,
                "namespace": _written(namespace),
                "key": _key(key),
                "mark": token_hex(8),
                **most,
                **more,
            }
        )

    def _exceeded(self, name: str, used: int) -> ConfigError:
        most = getattr(self._limits.quota_of(self.tenant), name)
        return exceeded(
            self.tenant,
            name,
            f"{used:,} of {most:,} are kept",
            "delete some, or wait until some expire",
            source="memory",
        )

    def _storing(self, text: str) -> AbstractContextManager[None]:
        """Let a block store a value, given as JSON text, as far as the quota of all that its tenant keeps allows."""
        return self._ledger.quotas.store(
            self.tenant, self._limits.quota_of(self.tenant), len(text), of_run=self._of_run
        )

    def _said(self, session: str) -> list[dict[str, JsonValue]]:
        """Return the conversation of a session, if it belongs to this bank."""
        if self.session not in (None, session) or fault_of_session(session):
            return []
        entries = conversations.history(self._ledger, conversations.scoped(self.tenant, session))
        return [entry.model_dump(mode="json", exclude={"run_id"}, exclude_none=True) for entry in entries]

    def _sessions(self) -> list[str]:
        if self.session is not None:
            return [self.session] if self._said(self.session) else []
        return sorted(
            info.session for info in conversations.last_used(self._ledger, self.tenant, sys.maxsize) if info.entries
        )

    def _call(self, name: str, *args: str) -> Any:
        def call() -> Any:
            reply = self._scripts.call(self._ledger.redis, f"memory/{name}", self._root, *args)
            if fault_points.at("memory-replied"):
                raise RedisConnectionError("the reply was dropped")
            return reply

        return self._ledger.with_retries(call)


def _value(packed: str) -> JsonValue:
    """Return a stored value. Raises StoredDataError if it cannot be read."""
    try:
        return cast(JsonValue, json.loads(packed.split(" ", 2)[2]))
    except (ValueError, IndexError, RecursionError) as error:
        raise StoredDataError(
            f"a stored memory cannot be read ({unreadable(error)}); delete it, or store another value"
        ) from error


def _json(key: str, value: JsonValue) -> str:
    if excess := bounds.find(value):
        fault = excess.of("the value")
        raise _refused(
            f"the value of {key!r} is no JSON to store: {fault}; store texts, numbers, booleans, None, lists and dicts of them"
        )
    text = to_json(value)
    size = len(text.encode())
    if size > bounds.MAX_MEMORY_BYTES:
        raise _too_large(key, size)
    return text


def _key(key: str) -> str:
    return _text("key", key, KEY_BYTES)


def _namespace(namespace: str) -> str:
    return quote(_text("namespace", namespace, NAMESPACE_BYTES), safe="")


def _written(namespace: str) -> str:
    if namespace == CONVERSATIONS:
        raise _refused(
            f"the namespace {CONVERSATIONS!r} holds the conversations of sessions and is read-only; use another"
        )
    return _namespace(namespace)


def _text(what: str, text: str, most: int) -> str:
    if not isinstance(text, str) or not text:
        raise _refused(f"a {what} is a text of at least one character, not {text!r}")
    size = _size(what, text)
    if size > most:
        raise _refused(
            f"the {what} {text[:40]!r}… has {size:,} bytes; at most {most:,} are allowed; shorten it, or use a hash of it"
        )
    return text


def _quoted(what: str, text: str) -> str:
    _size(what, text)
    return quote(text, safe="")


def _size(what: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise _refused(f"the {what} {text[:40]!r} is no text in Unicode: {error.reason}") from error


def _ms(ttl_s: float | None) -> str:
    if ttl_s is None:
        return ""
    try:
        seconds = bounds.duration_of(ttl_s, "ttl_s", most=bounds.MAX_MEMORY_TTL_S)
    except bounds.OutOfBoundsError:
        found = bounds.shown(ttl_s)
        message = f"'ttl_s' is a number of seconds above 0 and up to 100 years, not {found}; leave it out to keep a value for good"
        raise _refused(message) from None
    return str(max(1, math.ceil(seconds * 1000)))


def _too_large(key: str, size: int) -> ConfigError:
    message = f"the value of {key!r} would have {size:,} bytes as JSON; at most {bounds.MAX_MEMORY_BYTES:,} are allowed"
    return _refused(f"{message}; keep it elsewhere and store where it is, or use several keys")


def _refused(message: str) -> ConfigError:
    return ConfigError(message, source="memory", code="bad_memory")
