"""The HTTP server of scripted models: chat completions with and without streaming, batches, the journal, the replacement of rules."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self, cast

from pydantic import JsonValue

from cantata.config.documents import Document
from cantata.errors import ConfigError
from cantata.testing import answers
from cantata.testing.answers import JsonObject
from cantata.testing.batches import ScriptedBatches
from cantata.testing.refusals import Provider, Refusal, refusal_of
from cantata.testing.rules import Rule, RuleScript, read_rules

POLL_S = 0.02  # the maximum delay at the end of the `with` block


class ScriptedModels:
    """A scripted model server in threads of this process, for as long as the `with` block runs."""

    def __init__(
        self,
        rules: Sequence[Rule | Mapping[str, object]] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        refuse_like: Provider | None = None,
    ) -> None:
        """Create a server; it listens, and answers within the `with` block.

        Args:
            rules: The rules, or mappings of their fields.
            host: The address to listen on.
            port: The port; 0 for any free one.
            refuse_like: Refuse (400) what this provider is known to refuse, with its message and the `source` of that knowledge.
        """
        self.script(rules)
        self.refuse_like = refuse_like
        self._journal: list[JsonObject] = []
        self._lock = threading.Lock()
        self.batches = ScriptedBatches(self._receive_row)
        """Its files and batches, as OpenAI's."""
        self._host = host
        self._http = _ScriptedServer((host, port), self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(POLL_S,), name="scripted-models", daemon=True
        )

    @property
    def url(self) -> str:
        """Return the value for OPENAI_API_BASE."""
        return f"http://{self._host}:{self._http.server_port}/v1"

    def script(self, rules: Sequence[Rule | Mapping[str, object]]) -> None:
        """Replace the rules. Raises pydantic.ValidationError for invalid rules."""
        self._script = RuleScript(rules)

    def journal(self) -> list[JsonObject]:
        """Return the requests so far, in order of arrival: `{at, until, model, text, stream, rule, body, authorization, client_left,
        batch}`.

        `at` and `until` are the times of arrival and of the end of the answer in seconds since 1970, `until` null while it is under way;
        `rule` is the number of the rule that answered, null for the echo; `client_left`: the client disconnected before the end of the
        answer; `batch`: it is a row of a batch. A request that was refused has `refused`: why.
        """
        with self._lock:
            return [dict(entry) for entry in self._journal]

    @property
    def requests(self) -> list[JsonObject]:
        """The bodies of the requests so far, in order of arrival: `{model, messages, tools, ...}`."""
        return [cast(JsonObject, entry["body"]) for entry in self.journal()]

    def clear(self) -> None:
        """Forget the rules and the requests so far."""
        self.script(())
        with self._lock:
            self._journal.clear()

    def refuse(self, body: JsonObject, authorization: str | None) -> tuple[Refusal, JsonObject] | None:
        """Record a request that `refuse_like` refuses. Returns why, and its entry; None if it is to be answered."""
        refusal = refusal_of(body, self.refuse_like) if self.refuse_like else None
        if refusal is None:
            return None
        entry = self._entry(body, authorization) | {"refused": refusal.message}
        with self._lock:
            self._journal.append(entry)
        return refusal, entry

    def receive(self, body: JsonObject, authorization: str | None) -> tuple[Rule, JsonObject]:
        """Record a request in the journal. Returns the rule that answers it, and its entry."""
        entry = self._entry(body, authorization)
        entry["rule"], rule = self._script.take(str(entry["model"]), str(entry["text"]), answers.tool_results(body))
        with self._lock:
            self._journal.append(entry)
        return rule, entry

    def _entry(self, body: JsonObject, authorization: str | None) -> JsonObject:
        return {
            "at": time.time(),
            "until": None,
            "model": str(body.get("model", "")),
            "text": answers.last_user_text(body),
            "stream": bool(body.get("stream")),
            "rule": None,
            "body": body,
            "authorization": authorization,
            "client_left": False,
            "batch": False,
        }

    def _receive_row(self, body: JsonObject) -> Rule:
        rule, entry = self.receive(body, None)
        entry["batch"] = True
        return rule

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _ScriptedServer(ThreadingHTTPServer):
    request_queue_size = 512  # with the usual 5, a burst of 200 clients waits minutes for TCP to try again
    daemon_threads = True
    block_on_close = False  # a delayed answer must not delay the end

    def __init__(self, address: tuple[str, int], models: ScriptedModels) -> None:
        super().__init__(address, _ScriptedHandler)
        self.models = models

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _ConnectionCut(Exception):
    """The server closes the connection."""


class _ClientLeft(_ConnectionCut):
    """The client closed the connection."""


class _ScriptedHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer may wait 40 ms for an acknowledgement
    wbufsize = -1  # head and body leave together
    server: _ScriptedServer
    _entry: JsonObject | None = None
    """The request that is being answered."""

    def do_GET(self) -> None:
        if self.path == "/journal":
            self._send(200, cast(JsonValue, self.server.models.journal()))
        elif not self._answer_batches(None):
            self._send(404, {"error": {"message": f"there is no {self.path!r} here; there is /journal"}})

    def do_POST(self) -> None:
        try:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self._answer_batches(content):
                return
            body = json.loads(content)
            if self.path == "/script":
                self.server.models.script(read_rules(Document(body)))
                self._send(200, {"rules": len(body)})
            elif self.path.partition("?")[0].endswith("/chat/completions"):  # Azure's paths have a query
                self._complete(body)
            else:
                self._send(
                    404,
                    {
                        "error": {
                            "message": f"there is no {self.path!r} here; there are /v1/chat/completions and /script"
                        }
                    },
                )
        except (json.JSONDecodeError, ConfigError) as error:
            self._send(400, {"error": {"message": str(error)}})
        except (_ConnectionCut, ConnectionError):
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _answer_batches(self, content: bytes | None) -> bool:
        """Answer a request for files or batches; return whether it is one."""
        found = self.server.models.batches.answer(self.path.partition("/v1/")[2], content)
        if found is not None:
            self._send(*found)
        return found is not None

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the journal has the requests."""

    def _complete(self, body: JsonObject) -> None:
        authorization = self.headers.get("Authorization")
        if refused := self.server.models.refuse(body, authorization):
            refusal, self._entry = refused
            fault: JsonObject = {
                "message": refusal.message,
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
            self._send(400, {"error": fault | {"source": refusal.source}})
            return
        rule, entry = self.server.models.receive(body, authorization)
        self._entry = entry
        try:
            self._answer(rule, body)
        except (_ClientLeft, ConnectionError):
            entry["client_left"] = True
            raise
        finally:
            self._end_entry()

    def _end_entry(self) -> None:
        """Record the end of the answer before its last bytes are sent, so that a client that has the answer also finds its end."""
        if self._entry is not None:
            self._entry["until"] = time.time()
            self._entry = None

    def _answer(self, rule: Rule, body: JsonObject) -> None:
        self._wait(rule.delay_s)
        if rule.disconnect:
            raise _ConnectionCut
        if rule.status >= 400:
            self._send(rule.status, answers.fault(rule), rule)
        elif body.get("stream"):
            self._stream(rule, body)
        else:
            self._send(rule.status, answers.completion(rule, body), rule)

    def _wait(self, wait_s: float) -> None:
        """Wait. Raises _ClientLeft as soon as the client closes the connection."""
        readable, _, _ = select.select([self.connection], [], [], wait_s) if wait_s else ([], [], [])
        if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
            raise _ClientLeft

    def _stream(self, rule: Rule, body: JsonObject) -> None:
        """Send the answer as server-sent events, one per chunk of the body."""
        self._start(rule.status, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **rule.headers})
        room = rule.truncate
        lines = [json.dumps(chunk, ensure_ascii=False) for chunk in answers.chunks(rule, body)]
        for number, line in enumerate([*lines, "[DONE]"]):
            self._wait(rule.chunk_delay_s if number else 0.0)
            event = f"data: {line}\n\n".encode()
            if room is not None and room < len(event):
                if room:
                    self._send_chunk(event[:room])
                raise _ConnectionCut
            room = None if room is None else room - len(event)
            if number == len(lines):  # clients read no further
                self._end_entry()
            self._send_chunk(event)
        self._send_chunk(b"")

    def _send_chunk(self, content: bytes) -> None:
        """Send a chunk; an empty one ends the body."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()

    def _send(self, status: int, value: JsonValue | bytes, rule: Rule | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(rule.headers if rule else {}),
        }
        self._start(status, headers)
        truncate = rule.truncate if rule else None
        self.wfile.write(content[:truncate])
        self._end_entry()
        self.wfile.flush()
        if truncate is not None:
            raise _ConnectionCut

    def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
