"""Log lines of a run as text for people."""

from __future__ import annotations

import json
from datetime import datetime

from cantata import text_format
from cantata.models.values import JsonValue
from cantata.observability.logs.lines import LogLine

MAX_SHOWN = 400  # characters of one value on a terminal; --json has it as it was kept


def format_line(line: LogLine) -> str:
    """Return a log line as text for people."""
    at = datetime.fromtimestamp(line.at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    of = f"{line.step}#{line.attempt}" if line.step and line.attempt else line.step or "-"
    event = text_format.clean(line.event) if line.logger else text_format.line(line.event, MAX_SHOWN)
    rest = [f"{name}={_value(value)}" for name, value in line.fields.items() if name != "exception"]
    head = " ".join([at, f"{line.level.upper():<7}", text_format.line(line.worker or "-"), text_format.line(of), event, *rest])
    trace = line.fields.get("exception")
    return head + ("" if trace is None else "\n" + "\n".join(f"    {each}" for each in text_format.clean(str(trace)).rstrip().splitlines()))


def _value(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    flat = text_format.line(text, MAX_SHOWN)
    return json.dumps(flat, ensure_ascii=False) if " " in flat or not flat else flat
