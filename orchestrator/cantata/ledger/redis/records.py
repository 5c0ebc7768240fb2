"""Stored records for lists: one that cannot be read is a row that says so, and costs no other.

A row has the field `unreadable`: why its record cannot be read, and how to remove it. Its other fields are then unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from shlex import quote
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import ResponseError

from cantata.errors import CantataError, StoredDataError, unreadable
from cantata.ledger.redis.redis_errors import is_outage

Item = TypeVar("Item")
Row = TypeVar("Row")


def readable(read: Callable[[], Row], row: Callable[[str], Row], *, remedy: str) -> Row:
    """Return the row that `read` decodes. If its record cannot be read, return `row(why)`; `why` ends in how to remove the record.

    Raises other errors of ours, and what says that Redis is away: these are no faults of a record.
    """
    try:
        return read()
    except Exception as error:
        if (isinstance(error, CantataError) and not isinstance(error, StoredDataError)) or is_outage(error):
            raise
        return row(f"it cannot be read ({unreadable(error)}); {remedy}")


def command(words: str, name: str, tenant: str = "") -> str:
    """Return a command of `submit` about something of a tenant, as a shell takes it."""
    return f"`submit {words} {quote(name)}{f' --tenant {quote(tenant)}' if tenant else ''}`"


def remedy_for(run_id: str) -> str:
    """Return how to remove a run that cannot be read."""
    return f"{command('runs cancel', run_id)} ends it, or deletes what is left of it"


def ask_apart(redis: Redis, items: Iterable[Item], ask: Callable[[Any, Item], object]) -> list[Any]:
    """Return the replies to the commands that `ask` adds to a pipeline for each item: an error, if a key has another type."""
    with redis.pipeline(transaction=False) as pipe:
        for item in items:
            ask(pipe, item)
        return apart(pipe.execute(raise_on_error=False))


def apart(replies: list[Any]) -> list[Any]:
    """Return the replies of a pipeline that raised no errors. Raises that of an outage, which is about no single key."""
    for reply in replies:
        if isinstance(reply, Exception) and (is_outage(reply) or not isinstance(reply, ResponseError)):
            raise reply
    return replies


def good(reply: Any) -> Any:
    """Return a reply of `ask_apart`. Raises StoredDataError if it is an error."""
    if isinstance(reply, ResponseError):
        raise StoredDataError(str(reply).partition(" : ")[0])
    return reply


def check_script(why: Sequence[str] | str) -> None:
    """Raise StoredDataError if a script could not read a record, and replied why."""
    if why:
        raise StoredDataError(str(why))
