"""A limiter on a clock that the test sets, the workers that ask it, and what holds of it at any time."""

from __future__ import annotations

import json
from collections import Counter
from typing import cast

from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY, Ask, Exhausted, Granted, Limiter, Wait
from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from cantata.ledger.ledger import Ledger
from cantata.ledger.scripts import Scripts

MODEL = "openai/gpt-4o-mini"
CLOCK = "clock"
NOON_MS = 20_000 * 86_400_000 + 43_200_000


class _Clocked(Scripts):
    """Scripts that go by a clock of our own."""

    def text(self, name: str) -> str:
        text = super().text(name)
        assert text.count("redis.call('TIME')") == 1
        return text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK}', 0, 1)")


class Stage(Limiter):
    """A limiter on a clock of our own, and the workers that ask it. The keys' expiry still goes by Redis's clock."""

    scripts = _Clocked()

    def __init__(self, redis: Redis) -> None:
        super().__init__(Ledger(redis))
        self.redis = redis
        self.now_ms = NOON_MS
        self.asked = 0
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self.now_ms += round(seconds * 1000)
        with self.redis.pipeline() as pipe:
            pipe.delete(CLOCK)
            pipe.rpush(CLOCK, self.now_ms // 1000, self.now_ms % 1000 * 1000 + self.asked % 1000)
            pipe.execute()

    def ask(
        self, name: str, limits: Limits, *, tokens: int = 1, usd: float | None = None, tenant: str = ""
    ) -> Granted | Wait | Exhausted:
        """Ask for a call of the step `name`, written `run/step` if the run is another one than `run`."""
        self.asked += 1  # a microsecond goes by
        self.sleep(0)
        return self.take(Ask(holder(name), MODEL, tokens, usd, tenant), limits)

    def goes(self, name: str, limits: Limits, *, tokens: int = 1, usd: float | None = None, tenant: str = "") -> None:
        """Ask for a call, which must be granted."""
        answer = self.ask(name, limits, tokens=tokens, usd=usd, tenant=tenant)
        assert answer == Granted(), answer

    def waits(self, name: str, limits: Limits, *, tokens: int = 1, usd: float | None = None, tenant: str = "") -> Wait:
        """Ask for a call, which must wait."""
        answer = self.ask(name, limits, tokens=tokens, usd=usd, tenant=tenant)
        assert isinstance(answer, Wait)
        return answer

    def ends(self, name: str, *, tokens: int = 1, usd: float | None = None) -> list[str]:
        """Settle a call; answers the steps that were called by that."""
        return steps(self.settle(holder(name), tokens=tokens, usd=usd))

    def calls(self) -> list[str]:
        """Call those for whom there is room, as the sweep does; answers their steps."""
        return steps(self.sweep())


def steps(tickets: list[str]) -> list[str]:
    """The steps of tickets."""
    return [ticket.removeprefix("run|").replace("|", "/") for ticket in tickets]


def holder(name: str, attempt: int = 1) -> str:
    """The name of a step's lease."""
    run_id, _, step_id = name.rpartition("/")
    return f"{run_id or 'run'}|{attempt}|worker~1|{step_id}"


def on_model(**rates: int) -> Limits:
    """Limits of the model."""
    return Limits(models={MODEL: Rates(**rates)})


def on_budget(**budgets: Budget) -> Limits:
    """Limits of what may be spent."""
    return Limits(budgets=Budgets(**budgets))


def check(redis: Redis) -> None:
    """Check what lies in Redis: it is in one slot, it expires, and its parts agree."""
    keys = [key for key in cast("list[str]", redis.keys("*")) if key != CLOCK]
    held = set(cast("list[str]", redis.zrange(f"cantata:{LIMITS_KEY}:active", 0, -1)))
    late = set(cast("list[str]", redis.zrange(f"cantata:{LIMITS_KEY}:late", 0, -1)))
    holds = {
        name: json.loads(text)
        for name, text in cast("dict[str, str]", redis.hgetall(f"cantata:{LIMITS_KEY}:permits")).items()
    }
    assert not held & late, "a call is under way or was given up"
    assert held | late == holds.keys(), "what it took is known as long as it may be told what it cost"
    aside: Counter[tuple[str, str]] = Counter()
    for name in held:
        for budget, *_ in holds[name]["budgets"]:
            aside[budget, "reserved_tokens"] += holds[name]["tokens"]
            aside[budget, "reserved_nano"] += holds[name]["nano"]
    budgets = cast("list[str]", redis.zrange(f"cantata:{LIMITS_KEY}:budgets", 0, -1))
    lasting = {f"cantata:{LIMITS_KEY}:budget:run:{run_id}" for run_id in budgets} | {
        f"cantata:{LIMITS_KEY}:{name}" for name in ("budgets", "active", "late", "permits", "tickets", "kept", "queues")
    }
    for key in keys:
        assert key.startswith(f"cantata:{LIMITS_KEY}:"), f"{key} is in the slot of the others"
        if key in lasting or key.endswith(":slots") or ":queue:" in key:
            assert redis.pttl(key) == -1, f"{key} goes with its run or its calls"
        else:
            assert redis.pttl(key) != -1, f"{key} expires"
        part = "" if ":queue:" in key else key.rpartition(":")[2]
        if part in ("rpm", "tpm"):
            counts = {field: int(count) for field, count in cast("dict[str, str]", redis.hgetall(key)).items()}
            head, total = counts.pop("head"), counts.pop("sum")
            assert total == sum(counts.values()), f"{key} adds up"
            assert all(head <= int(bucket) for bucket in counts), f"{key} holds no bucket that has left the window"
        elif part == "slots":
            assert set(cast("set[str]", redis.smembers(key))) <= held, "only calls under way have slots"
        elif part and ":budget:" in key:
            for field in ("reserved_tokens", "reserved_nano"):
                assert int(cast("str | None", redis.hget(key, field)) or 0) == aside[key, field], (
                    "what is set aside is what calls under way may cost"
                )
    queues = dict(cast("list[tuple[str, float]]", redis.zrange(f"cantata:{LIMITS_KEY}:queues", 0, -1, withscores=True)))
    firsts = {
        name: dict(
            cast("list[tuple[str, float]]", redis.zrange(f"cantata:{LIMITS_KEY}:queue:{name}", 0, -1, withscores=True))
        )
        for name in queues
    }
    assert queues == {name: min(places.values()) for name, places in firsts.items()}, (
        "the queues are in the order of their first"
    )
    assert len(queues) == len([key for key in keys if ":queue:" in key])
    tickets = cast("dict[str, str]", redis.hgetall(f"cantata:{LIMITS_KEY}:tickets"))
    waiting = {(name, ticket) for name, places in firsts.items() for ticket in places}
    assert waiting == {(of, ticket) for ticket, text in tickets.items() if (of := json.loads(text).get("queue"))}, (
        "each waits in its queue"
    )
    kept = set(cast("list[str]", redis.zrange(f"cantata:{LIMITS_KEY}:kept", 0, -1)))
    assert kept == tickets.keys() - {ticket for _, ticket in waiting}, "others keep their places for a while"
