"""Whose turn it is: one counter for each team, or team and session, that all workers share."""

from __future__ import annotations

from urllib.parse import quote

from orchestrator.state.ledger import Ledger

KEEP_S = 30 * 86_400  # a team that nobody asked for so long begins with its first agent again
REMEMBERED = 1000  # steps that would be given the same number if they were done again


def take(ledger: Ledger, *, tenant: str, team: str, session: str, step: str) -> int:
    """The next number, from 0, of a team in a session, or of the team if there is none. No two steps get the same; a step told twice does.

    Keys: `...:count` string, the numbers given; `...:taken` zset, step -> its number. Both expire 30 days after their last use.
    """
    key = "cantata:{rotation:%s/%s/%s}" % (quote(tenant, safe=""), quote(team, safe=""), session)  # noqa: UP031  # braces are a hash tag

    def call() -> int:
        redis = ledger.redis
        known = redis.zscore(f"{key}:taken", step)
        if known is not None:
            return int(known)
        number = redis.incr(f"{key}:count") - 1
        with redis.pipeline(transaction=True) as pipe:
            pipe.zadd(f"{key}:taken", {step: number}, nx=True)
            pipe.zscore(f"{key}:taken", step)  # that of another attempt, if one came between
            pipe.zremrangebyrank(f"{key}:taken", 0, -REMEMBERED - 1)
            for part in ("count", "taken"):
                pipe.expire(f"{key}:{part}", KEEP_S)
            return int(pipe.execute()[1])

    return ledger.patiently(call)
