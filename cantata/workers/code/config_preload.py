"""Reads the user code that this machine's configuration names, before a worker process has children."""

from __future__ import annotations

import re

import structlog

from cantata.config import loading
from cantata.errors import CantataError
from cantata.workers.code import user_code
from cantata.workers.code.config_folder import local_folder

# Functions are named in many fields of definitions. Text that looks like a function, but is not in a user's module, is ignored.
_FUNCTION = re.compile(r'"([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]\w*"')

log = structlog.get_logger(__name__)


def preload() -> None:
    """Read the modules that CANTATA_CONFIG, or ./configs/default.yaml, names, so that all children serve one version of them."""
    try:
        definitions = loading.load(loading.find())
        folder = local_folder(definitions.folder)
        if definitions.extension is not None and folder is not None:
            user_code.use(folder, "")
        for module in sorted(set(_FUNCTION.findall(definitions.model_dump_json(exclude_defaults=True)))):
            user_code.use(folder, module)
    except (CantataError, OSError, ValueError, RecursionError) as error:
        log.warning("configuration_not_read", error=str(error), note="code is read when a step first needs it")
