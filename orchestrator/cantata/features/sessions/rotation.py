"""Rotation of a team's agents: a counter for each team, or team and session. `rotation.lua` lists the keys."""

from __future__ import annotations

from urllib.parse import quote

from redis.exceptions import ConnectionError as RedisConnectionError

from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import key_of
from cantata.ledger.scripts import SCRIPTS
from cantata.operation import fault_points

KEEP_S = 30 * 86_400  # a team that was not used for so long begins with its first agent again
REMEMBERED = 1000  # steps that get the same number if they are executed again


def take(ledger: Ledger, *, tenant: str, team: str, session: str, step: str) -> int:
    """Return the next number, from 0, of a team in a session, or of the team without a session.

    No two steps get the same number, and none is left out; a repeated step gets the same number again.
    """
    name = "{rotation:%s/%s/%s}" % (quote(tenant, safe=""), quote(team, safe=""), session)  # noqa: UP031  # braces are a hash tag

    def call() -> int:
        number = int(
            SCRIPTS.call(
                ledger.redis, "sessions/rotation", key_of(ledger.redis, name), step, str(REMEMBERED), str(KEEP_S)
            )
        )
        if fault_points.at("rotation-replied"):
            raise RedisConnectionError("the reply was dropped")
        return number

    return ledger.with_retries(call)
