"""Files and batches of a scripted model server, as OpenAI's: each row of a batch is answered by the rules, like a request of its own."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import cast

from pydantic import JsonValue

from cantata.testing import answers
from cantata.testing.answers import CREATED, JsonObject
from cantata.testing.rules import Rule

Answer = tuple[int, JsonValue | bytes]
"""HTTP status, and the body: JSON, or the content of a file."""


class ScriptedBatches:
    """The files and batches of one server. A batch is over after the longest `delay_s` of its rows' rules."""

    def __init__(self, receive: Callable[[JsonObject], Rule]) -> None:
        self._receive = receive
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, JsonObject] = {}
        self._numbers, self._lock = count(1), threading.Lock()

    def created(self) -> list[JsonObject]:
        """Return the batches so far, the oldest first."""
        with self._lock:
            return [*self._batches.values()]

    def answer(self, path: str, body: bytes | None) -> Answer | None:
        """Answer a request to a path behind /v1; None if it is not for files or batches. GET has no body."""
        parts, query = path.partition("?")[0].split("/"), path.partition("?")[2]
        with self._lock:
            match parts:
                case ["files"] if body is not None:
                    return 200, self._store(_file_in(body))
                case ["files", name, "content"] if name in self._files:
                    return 200, self._files[name]
                case ["batches"] if body is not None:
                    return 200, self.create(json.loads(body))
                case ["batches"]:
                    return 200, self._list(query)
                case ["batches", name, "cancel"] if name in self._batches:
                    return self.cancel(name)
                case ["batches", name] if name in self._batches:
                    return 200, self._shown(self._batches[name])
        return None

    def _store(self, content: bytes) -> JsonObject:
        name = f"file-{next(self._numbers)}"
        self._files[name] = content
        return {
            "id": name,
            "object": "file",
            "bytes": len(content),
            "created_at": CREATED,
            "filename": "rows.jsonl",
            "purpose": "batch",
            "status": "processed",
        }

    def create(self, asked: JsonObject) -> JsonObject:
        """Create a batch, and answer its rows."""
        done, failed, delays, expires = list[JsonObject](), list[JsonObject](), [0.0], False
        rows = [json.loads(line) for line in self._files[str(asked["input_file_id"])].splitlines()]
        for row in rows:
            rule = self._receive(row["body"])
            delays.append(rule.delay_s)
            expires = expires or rule.expires
            body = answers.fault(rule) if rule.status >= 400 else answers.completion(rule, row["body"])
            response: JsonObject = {"status_code": rule.status, "request_id": "scripted", "body": body}
            line = {
                "id": f"line-{row['custom_id']}",
                "custom_id": row["custom_id"],
                "response": response,
                "error": None,
            }
            (failed if rule.status >= 400 else done).append({**line, "expires": rule.expires})
        files = [
            self._store("".join(json.dumps(row) + "\n" for row in each if not row.pop("expires")).encode())
            for each in (done, failed)
        ]
        name = f"batch_{next(self._numbers)}"
        self._batches[name] = {
            "id": name, "object": "batch", "endpoint": asked["endpoint"], "completion_window": "24h", "created_at": CREATED,
            "input_file_id": asked["input_file_id"], "metadata": asked.get("metadata"), "status": "expired" if expires else "completed",
            "output_file_id": files[0]["id"] if files[0]["bytes"] else None, "error_file_id": files[1]["id"] if files[1]["bytes"] else None,
            "request_counts": {"total": len(rows), "completed": len(done), "failed": len(failed)}, "over_at": time.time() + max(delays),
        }  # fmt: skip
        return self._shown(self._batches[name])

    def cancel(self, name: str) -> Answer:
        """Cancel a batch: it is over, without answers."""
        batch = self._batches[name]
        status = str(self._shown(batch)["status"])
        if status != "in_progress":
            return 409, {"error": {"message": f"Cannot cancel a batch with status '{status}'."}}
        batch.update(status="cancelled", output_file_id=None, error_file_id=None, over_at=time.time())
        return 200, self._shown(batch)

    def _shown(self, batch: JsonObject) -> JsonObject:
        shown = {key: value for key, value in batch.items() if key != "over_at"}
        if time.time() >= cast(float, batch["over_at"]):
            return shown
        counts = {"total": cast(JsonObject, batch["request_counts"])["total"], "completed": 0, "failed": 0}
        return {
            **shown,
            "status": "in_progress",
            "output_file_id": None,
            "error_file_id": None,
            "request_counts": counts,
        }

    def _list(self, query: str) -> JsonObject:
        newest = [self._shown(each) for each in reversed(self._batches.values())]
        after, limit = re.search(r"after=([^&]+)", query), re.search(r"limit=(\d+)", query)
        if after:
            newest = newest[next(n for n, each in enumerate(newest, 1) if each["id"] == after[1]) :]
        page = newest[: int(limit[1]) if limit else 20]
        return {"object": "list", "data": cast(JsonValue, page), "has_more": len(page) < len(newest)}


def _file_in(body: bytes) -> bytes:
    """Return the file of a multipart body."""
    boundary = body.partition(b"\r\n")[0]
    part = next(each for each in body.split(boundary) if b"filename=" in each.partition(b"\r\n\r\n")[0])
    return part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
