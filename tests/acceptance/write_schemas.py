"""`python -m tests.acceptance.write_schemas`: writes the JSON Schemas of files that people write, which the wheel has."""

from __future__ import annotations

import json
from pathlib import Path

from cantata.flows.definitions import Definitions
from cantata.flows.wire import ChainRequest
from tests.acceptance.write_settings import SET_WHEN_READ

FOLDER = Path(__file__).parents[2] / "orchestrator" / "cantata" / "config" / "schemas"


def files() -> dict[Path, str]:
    """Each file and its text."""
    config = Definitions.model_json_schema()
    for name in SET_WHEN_READ:
        del config["properties"][name]
    del config["$defs"]["Extension"]
    return {
        FOLDER / "config.schema.json": _text("Configuration of Cantata", config),
        FOLDER / "chain.schema.json": _text("Chain request of Cantata", ChainRequest.model_json_schema()),
    }


def _text(title: str, schema: dict[str, object]) -> str:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**head, **schema, "title": title}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
