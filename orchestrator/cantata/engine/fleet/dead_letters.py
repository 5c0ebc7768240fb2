"""Dead letters: messages in our queues that are not steps, kept for inspection.

`<namespace>:dead_letters` is a list of JSON, newest first. It keeps the last MAX_LETTERS and expires KEEP_S after the last one.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from redis import Redis

from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import key_of
from cantata.values import JsonValue

LETTERS_KEY = "dead_letters"
MAX_LETTERS = 1000
MAX_BYTES = 65_536  # of a body; the rest is cut off
KEEP_S = 30 * 86_400


def add(redis: Redis, reason: str, *, queue: str, headers: object, content_type: object, body: bytes | str) -> None:
    """Store a message, with the reason."""
    raw = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    letter = {
        "at": clock.now(), "reason": reason, "queue": queue, "headers": headers, "content_type": content_type, "bytes": len(raw),
        **_body(raw[:MAX_BYTES]),
    }  # fmt: skip
    key = key_of(redis, LETTERS_KEY)
    with redis.pipeline(transaction=True) as pipe:
        pipe.lpush(key, json.dumps(letter, default=repr))
        pipe.ltrim(key, 0, MAX_LETTERS - 1)
        pipe.expire(key, KEEP_S)
        pipe.execute()


def letters(redis: Redis, most: int = MAX_LETTERS) -> list[dict[str, JsonValue]]:
    """Return the stored messages, newest first."""
    return [json.loads(text) for text in cast("list[str]", redis.lrange(key_of(redis, LETTERS_KEY), 0, most - 1))]


def _body(raw: bytes) -> dict[str, Any]:
    try:
        return {"body": raw.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(raw).decode()}
