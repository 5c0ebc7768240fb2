"""Modules of user code that are served, or were run, in more than one version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_mixed(code: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules that have several versions, with their digests; `code` is `module@digest`."""
    found: dict[str, set[str]] = {}
    for entry in code:
        module, _, digest = entry.rpartition("@")
        found.setdefault(module, set()).add(digest)
    return {module: sorted(digests) for module, digests in sorted(found.items()) if len(digests) > 1}


def describe_mixed(code: Iterable[str]) -> str:
    """Return the modules that have several versions, as text; empty if none has."""
    return "; ".join(f"{module} ({', '.join(digests)})" for module, digests in find_mixed(code).items())


def describe_served(code_of: Mapping[str, Iterable[str]]) -> str:
    """Return which workers serve which version of the modules that have several in the fleet, as text; empty if none has."""
    by_entry: dict[str, list[str]] = {}
    for worker, code in sorted(code_of.items()):
        for entry in code:
            by_entry.setdefault(entry, []).append(worker)
    lines = []
    for module, digests in find_mixed(by_entry).items():
        serving = ", ".join(f"{digest} by {_some(by_entry[f'{module}@{digest}'])}" for digest in digests)
        lines.append(f"{module}: {serving}")
    return "; ".join(lines)


def _some(names: list[str], most: int = 3) -> str:
    return " and ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
