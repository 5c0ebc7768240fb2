"""The tasks that a head chain lists."""

from __future__ import annotations

import json
import re

_LIST_MARKER = re.compile(r"^\s*(?:\d+\s*[.):-]|[-*•+]|\(\d+\)|\[[ xX]?\])\s+")


def tasks_in(text: str) -> list[str]:
    """Return the tasks in a model's list, in order: the items of a JSON list of texts, else the numbered or bulleted lines, else all lines.

    An indented line continues the task above it.
    """
    return _json_tasks(text) or _marked_tasks(text) or [line.strip() for line in text.splitlines() if line.strip()]


def _json_tasks(text: str) -> list[str]:
    fenced = re.sub(r"^\s*```\w*\n(.*)\n```\s*$", r"\1", text, flags=re.DOTALL)
    try:
        found = json.loads(fenced)
    except ValueError:
        return []
    return [each.strip() for each in found if each.strip()] if isinstance(found, list) and all(isinstance(e, str) for e in found) else []


def _marked_tasks(text: str) -> list[str]:
    tasks: list[str] = []
    for line in text.splitlines():
        marker = _LIST_MARKER.match(line)
        if marker:
            tasks.append(line[marker.end() :].strip())
        elif tasks and line.strip() and line[0].isspace():
            tasks[-1] = f"{tasks[-1]} {line.strip()}"
    return [task for task in tasks if task]
