"""Parameters of model calls, which hold no secrets: they are stored with every run."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, JsonValue

SECRETS = ("api_key", "token", "secret", "password", "authorization")


def _no_secrets(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    named = next((key for key in params if any(word in key.lower() for word in SECRETS) and not key.lower().endswith("tokens")), None)
    if named:
        raise ValueError(f"{named!r} does not belong in a configuration, which is stored with every run; set it in the environment")
    return params


Params = Annotated[dict[str, JsonValue], AfterValidator(_no_secrets)]
