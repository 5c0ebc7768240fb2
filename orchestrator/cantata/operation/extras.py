"""The extras of the package, and the error that names the one to install."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

from cantata.errors import UnavailableError

EXTRAS = {
    "celery": ("celery",),
    "worker": ("docstring_parser", "litellm", "mcp", "prometheus_client", "setproctitle", "tenacity"),
    "gateway": ("fastapi", "prometheus_client", "uvicorn", "websockets"),
    "flower": ("flower",),
    "parquet": ("pyarrow",),
}
"""Extra → the modules that it installs. The embedded server is not listed: the machine may have its own."""

FLEET = {"celery": (5, 7), "kombu": (5, 7), "redis": (8, 1)}
"""The oldest versions that the extras need that serve; the client works with older ones too."""

NO_BROKER = "none"
"""In place of a broker's address: this process sends nothing, and the coordinator that sweeps does it."""

OLDEST_CELERY = (5, 5)
"""The oldest Celery by which a process sends messages; beside an older one it sends none."""

SERVING = ("worker", "gateway", "flower")


def check_extras(*extras: str, needed_by: str) -> None:
    """Raise UnavailableError if a module of these extras is not installed, with the modules and the command that installs them."""
    missing = [extra for extra in extras if missing_modules(extra)]
    if missing:
        modules = sorted({module for extra in missing for module in missing_modules(extra)})
        raise UnavailableError(
            f"{needed_by} needs packages that are not installed ({', '.join(modules)}): run `pip install 'cantata[{','.join(missing)}]'`"
        )


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed, and those that are too old with the version that is needed."""
    fleet = FLEET if extra in SERVING else {}
    old = [f"{name}>={major}.{minor}" for name, (major, minor) in fleet.items() if _version_of(name) < (major, minor)]
    return [*old, *(module for module in EXTRAS[extra] if not _is_installed(module))]


def has_celery() -> bool:
    """Return whether this process can send messages by Celery, which is not imported."""
    has_both = _is_installed("celery") and _is_installed(
        "packaging"
    )  # which kombu's Redis transport imports, and does not bring
    return has_both and _version_of("celery") >= OLDEST_CELERY


def _is_installed(module: str) -> bool:
    return module in sys.modules or find_spec(module) is not None  # an old Celery that is loaded has no spec


def _version_of(distribution: str) -> tuple[int, int]:
    metadata = import_module("importlib.metadata")  # 30 ms, which few commands need
    try:
        major, minor = metadata.version(distribution).split(".")[:2]
    except metadata.PackageNotFoundError:
        return 0, 0
    return int(major), int(minor)
