"""The import of LiteLLM; no other module imports it.

It takes 3.5 s and 160 MB, so it is done in processes that call models, before they accept work.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from cantata.workers.code import prefork_imports
from cantata.workers.models.llm import request_start

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its price list from GitHub
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # else it fetches these too
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env of the working directory
}

_loading = threading.Lock()
_litellm: Any = None


def load(home: Path | None = None) -> Any:
    """Import and configure LiteLLM, once; return it.

    `home` is the folder of the embedded model's server: by default CANTATA_HOME, else `.cantata`.
    """
    global _litellm
    with _loading:
        if _litellm is None:
            os.environ.update(ENVIRONMENT)
            litellm = import_litellm()
            _configure(litellm)
            _register_local_models(litellm, home or Path(os.environ.get("CANTATA_HOME") or ".cantata"))
            _litellm = litellm
            prefork_imports.litellm_modules.clear()  # this process keeps them
        return _litellm


def import_litellm() -> Any:
    """Import LiteLLM without configuring it, as before a fork: not all children call models."""
    os.environ.update(ENVIRONMENT)
    import litellm  # noqa: PLC0415  # the only import: it is slow and large

    return litellm


def _configure(litellm: Any) -> None:
    import aiohttp  # noqa: PLC0415  # LiteLLM has loaded it

    request_start.patch(aiohttp)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_token_counter = True  # of a stream it would count the prompt's tokens on the event loop, with 39 MB of tables


def _register_local_models(litellm: Any, home: Path) -> None:
    from cantata.workers.models.local.provider import Provider  # noqa: PLC0415  # it imports httpx, which LiteLLM has loaded by now

    class LocalModels(Provider, litellm.CustomLLM):  # type: ignore[misc]  # mypy does not read litellm
        """The provider `local` of LiteLLM."""

    litellm.custom_provider_map = [{"provider": "local", "custom_handler": LocalModels(home.resolve())}]
    litellm.utils.custom_llm_setup()
