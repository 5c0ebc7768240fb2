"""`submit logs`: the log lines of a run."""

from __future__ import annotations

import json
from datetime import datetime

import click

from cantata import text_format
from cantata.cli.connect import open_queries
from cantata.cli.options import json_option
from cantata.models.values import JsonValue
from cantata.observability.logs.lines import LogLine

LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_SHOWN = 400  # characters of one value on a terminal; --json has it as it was kept


@click.command()
@click.argument("run_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Also print lines to come, until the run is over.")
@click.option("--step", metavar="STEP", help="Only lines of this step and of its expansion.")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), help="Only lines of this level or above.")
@json_option
def logs(run_id: str, follow: bool, step: str | None, level: str | None, as_json: bool) -> int:
    """Show the log lines of a run, from workers and tools on all machines. With --json: one line of JSON for each."""
    with open_queries(workers=follow, as_json=as_json) as queries:
        return queries.logs(run_id, follow=follow, step=step, level=level)


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
