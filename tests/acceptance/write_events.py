"""`python -m tests.acceptance.write_events`: writes what docs and run pages say of event types, from their classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from cantata.client.graphs.map_folding import COUNTED_AS
from cantata.flows.events import EVENT_CLASSES, RunEvent
from cantata.flows.graph import STEP_OVER
from cantata.flows.wire import RUN_OVER

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "events.md"
SCHEMA = TOP / "docs" / "events.schema.json"
SCRIPT = TOP / "orchestrator" / "cantata" / "surfaces" / "pages" / "static" / "core" / "vocabulary.js"

BEGIN, END = "<!-- events -->\n", "<!-- end of events -->"


def files() -> dict[Path, str]:
    """Return each file with the text that it should have."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    page = f"{before}{BEGIN}{''.join(_rows())}{END}{rest.split(END)[1]}"
    return {PAGE: page, SCHEMA: _schema(), SCRIPT: "".join(_script())}


def _own_fields(event: type[RunEvent]) -> dict[str, FieldInfo]:
    return {name: field for name, field in event.model_fields.items() if name not in RunEvent.model_fields}


def _rows() -> Iterator[str]:
    yield "| type | class | it means | fields |\n|---|---|---|---|\n"
    for name, event in EVENT_CLASSES.items():
        fields = "; ".join(f"`{field}`: {info.description}" for field, info in _own_fields(event).items())
        yield f"| `{name}` | `{event.__name__}` | {str(event.__doc__).splitlines()[0]} | {fields} |\n"


def _schema() -> str:
    schemas = {name: event.model_json_schema(mode="serialization") for name, event in EVENT_CLASSES.items()}
    shared = {name: each for schema in schemas.values() for name, each in schema.pop("$defs", {}).items()}
    return json.dumps({"oneOf": list(schemas.values()), "$defs": shared}, indent=1, ensure_ascii=False) + "\n"


def _script() -> Iterator[str]:
    yield "/** Event types, and what states are. Written from Python by `python -m tests.acceptance.write_events`. */\n\n"
    yield "/** Type → the state it puts its step in, if any, and whether it voids what the attempt streamed. */\nexport const EVENTS = {\n"
    for name, event in EVENT_CLASSES.items():
        yield f"  {name}: {{ state: {json.dumps(event.step_state)}, voids: {json.dumps(bool(event.voids_attempt))} }},\n"
    yield "};\n\n"
    yield "/** State of a step → what it counts as; in any other state as waiting, or as running once it began. */\n"
    yield f"export const COUNTED_AS = {json.dumps(COUNTED_AS)};\n\n"
    yield f"export const STEP_OVER = new Set({json.dumps(sorted(STEP_OVER))});\n\n"
    yield f"export const RUN_OVER = new Set({json.dumps(sorted(RUN_OVER))});\n"


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
