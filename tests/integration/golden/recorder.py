"""Calls `submit` and the gateway, and keeps each answer as text without what differs from one run of the same calls to the next."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from cantata.surfaces.cli.main import submit
from tests.acceptance.write_help import commands
from tests.waiting import until

TOKEN = "token-of-golden-0123456789"
WIDTH = 110  # of a line of JSON that is not broken
ID = r"(?<![.\w])[0-9a-f]{16,22}(?:w\d+)?\b"


class Recorder:
    """Makes calls and keeps their answers. In a call and in its answer `<name>` stands for the id of the run with this name."""

    def __init__(self, folder: Path, http: httpx.Client, stranger: httpx.Client) -> None:
        self.folder, self.http, self.stranger = folder, http, stranger
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()
        self.ids: dict[str, str] = {}
        self.answers: dict[str, list[str]] = {"commands": [], "routes": []}
        self.recorded: set[str] = set()
        self._commands = sorted(commands(), key=len, reverse=True)

    def submit(self, line: str, *, name: str = "", given: str | None = None) -> None:
        """Record what a command answers; with a name, the id of the run that it began is known by it."""
        command = f"submit {line}"
        self.recorded.add(next(each for each in self._commands if f"{command} ".startswith(f"{each} ")))
        words = [self._named(word) for word in shlex.split(line)]
        with chdir(self.folder):
            done = CliRunner().invoke(submit, words, input=given, prog_name="submit")
        if name:
            self.ids[name] = self.http.get("/runs?most=1").json()["runs"][0]["run_id"]
        lines = [
            f"$ {command}",
            *([] if given is None else [f"stdin: {given!r}"]),
            f"exit {done.exit_code}",
            self._shown(done.stdout),
        ]
        self.answers["commands"].append(
            "\n".join([*filter(None, lines), *(["stderr:", self._shown(done.stderr)] if done.stderr else [])])
        )

    def ask(self, line: str, body: Any = None, *, http: httpx.Client | None = None) -> None:
        """Record what a route answers. The line is a method and a path; a body is JSON, or text that is sent as it is."""
        method, path = line.split(" ", 1)
        self.recorded.add(self._operation(method, path))
        given = {} if body is None else {"content": body} if isinstance(body, str) else {"json": body}
        answer = (http or self.http).request(method, self._named(path), **given)
        asked = [f"> {line}", *([] if body is None else [f"body: {json.dumps(body)}"]), *(["no token"] if http else [])]
        state = f"{answer.status_code} {answer.headers.get('content-type', '')}".strip()
        self.answers["routes"].append("\n".join([*asked, state, *filter(None, [self._shown(answer.text)])]))

    def operations(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield method, path and description of each operation of the OpenAPI document."""
        for path, methods in self.document["paths"].items():
            yield from ((method.upper(), path, operation) for method, operation in methods.items())

    def until(self, name: str, status: str) -> None:
        """Wait for a status of a run."""
        path = f"/runs/{self.ids[name]}"
        until(lambda: self.http.get(path).json()["status"] == status, f"{name} to be {status}")

    def until_results(self, batch: str, count: int) -> None:
        """Wait until so many rows of a batch have results."""
        until(lambda: len(self.http.get(f"/batches/{batch}/results").json()["rows"]) == count, f"results of {batch}")

    def text(self, kind: str) -> str:
        """Return all answers of `commands` or `routes`."""
        return "\n\n".join(self.answers[kind]) + "\n"

    def _operation(self, method: str, path: str) -> str:
        """Return the operation of a path: of those that fit, the one with fewest names."""
        plain = path.partition("?")[0]

        def fits(template: str) -> bool:
            parts = re.sub(r"{(\w+)}", lambda part: ".+" if part[1].startswith("step") else "[^/]+", template)
            return bool(re.fullmatch(parts, plain))

        fitting = [each for verb, each, _ in self.operations() if verb == method and fits(each)]
        return f"{method} {min(fitting, key=lambda each: each.count('{'), default=plain)}"

    def _named(self, text: str) -> str:
        return re.sub(r"<(\w+)>", lambda found: self.ids.get(found[1], found[0]), text)

    def _shown(self, text: str) -> str:
        for name, run_id in self.ids.items():
            text = text.replace(run_id, f"<{name}>")
        return laid_out(without_chance(text.replace(str(self.folder), "<folder>")))


CHANCE: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\btester@[\w.-]+", "<user>"),
    (r"\b(?:coordinator|agents|tools)@[\w.-]+(?:#\d+)?", "<worker>"),
    (r"^( +)Traceback \(most recent call last\):\n(?:\1 +.*\n)*", r"\1<traceback>\n"),
    (r"Traceback \(most recent (?:[^\"\\\n]|\\.)*", "<traceback>"),
    (
        r'("(?:at|by|ms|ts|now|since|until|pid|received|runtime|\w+_at|\w+_ms|\w+_off_s|\w*age_s)": ?)-?\d[\d.e+-]*',
        r'\1"<number>"',
    ),
    (r'("chain_id": ?"|\bchain )[0-9a-f]{8}\b', r"\1<id>"),
    (r'("host": ?)"[^"]*"', r'\1"<host>"'),
    (r"\b((?:Valkey|Redis|version) v?|\"version\": ?\")\d+\.\d+\.\d+\w*", r"\1<version>"),
    (r"redis\+socket://[^ ,]*", "<url>"),
    (r'^(\w+ +(?:disk|memory) +).*|("name": "(?:disk|memory)", "status": "\w+", "message": )"[^"]*"', r'\1\2"<facts>"'),
    (r'("definitions": ?)"[0-9a-f]{12}"', r'\1"<digest>"'),
    (r'("trace_id": ?)"[0-9a-f]{32}"', r'\1"<id>"'),
    (
        r'("counts": ?)(\{[^}]*\})',
        lambda found: found[1] + json.dumps(dict(sorted(json.loads(found[2]).items()))),
    ),  # in no order
    (r'("cost_usd": ?)(\d[\d.e-]*)', lambda found: f"{found[1]}{float(found[2]):.6g}"),  # a sum, in no order
    (r'("next_at": ?)\[\d[^\]]*\]', r'\1["<number>"]'),
    (r"\b\d{13}-\d+\b", "<offset>"),
    (r"\b\d{13}(?=\.<)", "<time>"),
    (ID, "<id>"),
    (r"\b(?:(?:\d{4}-)?\d\d-\d\d[ T])?\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?|\b\d{4}-\d\d-\d\d\b", "<time>"),
    (r"^((?:cantata|python|process)_\w+(?:\{.*\})?) [\d.e+-]+$", r"\1 <number>"),
    (r"\b\d+(?:\.\d+)? (?:ms|s|min|h|B|kB|MB|GB)\b(?: \d+ (?:ms|s|min)\b)*", "<amount>"),
    (r"\bpid \d+", "pid <number>"),
    (r"(?<=\S) {2,}", "  "),  # columns are as wide as what is replaced here
)
"""Patterns, in this order, and what takes the place of what they match."""


def without_chance(text: str) -> str:
    """Return a text with placeholders for times, durations, ids, ports, processes, hosts and versions."""
    for pattern, placeholder in CHANCE:
        text = re.sub(pattern, placeholder, text, flags=re.MULTILINE)
    return text


def laid_out(text: str) -> str:
    """Return JSON, and each line that is JSON, in lines that a person can compare; other text as it is."""
    try:
        return "\n".join(_lines(json.loads(text), ""))
    except ValueError:
        return "\n".join(_laid_out_line(line) for line in text.strip("\n").split("\n"))


def _laid_out_line(line: str) -> str:
    found = re.fullmatch(r"(data: )?(\{.*\})\s*", line)
    return (found[1] or "") + "\n".join(_lines(json.loads(found[2]), "")) if found else line.rstrip()


def _lines(value: Any, indent: str) -> Iterator[str]:
    """Yield the lines of a value: one if it is short."""
    flat = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or len(indent) + len(flat) <= WIDTH:
        yield indent + flat
        return
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    yield indent + opened
    for number, key in enumerate(value):
        inner = list(_lines(value[key] if isinstance(value, dict) else key, indent + " "))
        if isinstance(value, dict):
            inner[0] = f"{indent} {json.dumps(key)}: {inner[0].lstrip()}"
        inner[-1] += "," if number < len(value) - 1 else ""
        yield from inner
    yield indent + closed
