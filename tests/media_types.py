"""Serializers of schemathesis for the media types of our gateway that it does not know."""

from __future__ import annotations

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def json_lines(ctx: Any, value: Any) -> bytes:
    """The rows of a batch: whatever text there is."""
    return json.dumps(value).encode()
