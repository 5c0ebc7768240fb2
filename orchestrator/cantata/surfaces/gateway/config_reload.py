"""Reload of a changed configuration: checks its files twice a second, and keeps the previous one while the new one has faults."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path

import structlog

from cantata.client.client import Client
from cantata.errors import CantataError
from cantata.surfaces.gateway.service import GatewayService

POLL_S = 0.5
MAX_UNSETTLED_POLLS = 3  # of files that change all the time, before the configuration is read nonetheless
MAX_FILES = 2000  # of a configuration's folder, the nearest first
SKIPPED = {"__pycache__", "node_modules", "site-packages"}

log = structlog.get_logger(__name__)

_Stats = dict[str, tuple[int, int]]


async def reload_on_change(service: GatewayService) -> None:
    """Keep the configuration of a service equal to its files, until cancelled."""
    original = service.client
    served = seen = await asyncio.to_thread(stat_files, original)
    unsettled = 0
    while True:
        await asyncio.sleep(POLL_S)
        before, seen = seen, await asyncio.to_thread(stat_files, original)
        unsettled = unsettled + 1 if seen != before else 0
        if seen == served or 0 < unsettled < MAX_UNSETTLED_POLLS:  # unchanged, or still being saved
            continue
        served, unsettled = seen, 0
        try:
            found = await asyncio.to_thread(original.read_definitions)
        except (CantataError, OSError) as error:
            log.error(
                "configuration_not_served", error=str(error), note="the previous one is served until it is corrected"
            )
            continue
        if found != service.client.definitions:
            service.client = original.with_definitions(found)
            log.info("configuration_served", folder=found.folder)


def stat_files(client: Client) -> _Stats:
    """Return modification time and size of the files in a configuration's folder."""
    try:
        path = client.find_config()
    except CantataError:
        return {}
    found: _Stats = {}
    if path is not None:
        _add(found, path)
        folders = deque([path if path.is_dir() else path.parent])
        while folders and len(found) < MAX_FILES:
            folders.extend(_scan(folders.popleft(), found))
    return found


def _scan(folder: Path, found: _Stats) -> list[Path]:
    """Add the files of a folder; return its subfolders."""
    subfolders = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.name[0] == "." or entry.name in SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(Path(entry.path))
                elif len(found) < MAX_FILES:
                    _add(found, Path(entry.path))
    except OSError:
        return []
    return subfolders


def _add(found: _Stats, path: Path) -> None:
    try:
        stat = path.stat()
    except OSError:
        return
    found[str(path)] = stat.st_mtime_ns, stat.st_size
