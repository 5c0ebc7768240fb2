"""Adopts the code that the configuration of this machine names, before a worker process has children."""

from __future__ import annotations

import re

import structlog

from orchestrator import config
from orchestrator.errors import CantataError
from workers import usercode
from workers.folders import folder_here

# Functions stand in many places of definitions. What looks like one and is no module of the user's is passed over.
_FUNCTION = re.compile(r'"([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]\w*"')

log = structlog.get_logger(__name__)


def adopt() -> None:
    """Adopt the modules that CANTATA_CONFIG, or configs/default.yaml here, names: all children then serve what is read now."""
    try:
        definitions = config.load(config.find())
        folder = folder_here(definitions.folder)
        if definitions.diskurs is not None and folder is not None:
            usercode.use(folder, "")
        for module in sorted(set(_FUNCTION.findall(definitions.model_dump_json(exclude_defaults=True)))):
            usercode.use(folder, module)
    except (CantataError, OSError, ValueError, RecursionError) as error:
        log.warning("configuration_not_read", error=str(error), note="runs bring their own; code is read when a step first needs it")
