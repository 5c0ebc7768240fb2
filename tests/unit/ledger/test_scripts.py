"""Every script of the package is read."""

from __future__ import annotations

from pathlib import Path

import cantata
from cantata.ledger.scripts import SCRIPTS, TEXTS


def test_every_script_of_the_package_is_read_under_a_name_of_its_own() -> None:
    texts = [path.read_text() for path in Path(cantata.__file__).parent.rglob("*.lua")]

    assert sorted(TEXTS.values()) == sorted(texts)
    assert all(SCRIPTS.text(name) for name in TEXTS)
