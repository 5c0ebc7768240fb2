"""Tells where one module of user code is served, or was run, in more than one version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_mixed(code: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules of which there are several versions, with their digests; `code` is `module@digest`."""
    found: dict[str, set[str]] = {}
    for entry in code:
        module, _, digest = entry.rpartition("@")
        found.setdefault(module, set()).add(digest)
    return {module: sorted(digests) for module, digests in sorted(found.items()) if len(digests) > 1}


def describe_mixed(code: Iterable[str]) -> str:
    """Return the modules that have several versions as a text; empty if none has."""
    return "; ".join(f"{module} ({', '.join(digests)})" for module, digests in find_mixed(code).items())


def describe_served(code_of: Mapping[str, Iterable[str]]) -> str:
    """Return which workers serve which version, for the modules of which the fleet serves several; empty if it serves one of each."""
    by_entry: dict[str, list[str]] = {}
    for worker, code in sorted(code_of.items()):
        for entry in code:
            by_entry.setdefault(entry, []).append(worker)
    told = []
    for module, digests in find_mixed(by_entry).items():
        serving = ", ".join(f"{digest} by {_some(by_entry[f'{module}@{digest}'])}" for digest in digests)
        told.append(f"{module}: {serving}")
    return "; ".join(told)


def _some(names: list[str], most: int = 3) -> str:
    return " and ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
