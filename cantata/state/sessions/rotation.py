"""Whose turn it is: one counter for each team, or team and session, that all workers share. `lua/rotation_lib.lua` lists its keys."""

from __future__ import annotations

from urllib.parse import quote

from redis.exceptions import ConnectionError as RedisConnectionError

from cantata import fault_points
from cantata.state.ledger.ledger import Ledger
from cantata.state.redis.keys import key_of
from cantata.state.redis.lua_scripts import Scripts

KEEP_S = 30 * 86_400  # a team that nobody asked for so long begins with its first agent again
REMEMBERED = 1000  # steps that would be given the same number if they were done again

_SCRIPTS = Scripts("rotation")


def take(ledger: Ledger, *, tenant: str, team: str, session: str, step: str) -> int:
    """The next number, from 0, of a team in a session, or of the team if there is none.

    No two steps get the same, and none is left out; a step that is told twice gets the same again.
    """
    name = "{rotation:%s/%s/%s}" % (quote(tenant, safe=""), quote(team, safe=""), session)  # noqa: UP031  # braces are a hash tag

    def call() -> int:
        number = int(_SCRIPTS.call(ledger.redis, "take", key_of(ledger.redis, name), step, str(REMEMBERED), str(KEEP_S)))
        if fault_points.at("rotation-replied"):
            raise RedisConnectionError("the reply was dropped")
        return number

    return ledger.with_retries(call)
