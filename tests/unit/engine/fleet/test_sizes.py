"""What is measured of a run is all that a run has."""

from __future__ import annotations

import re
from importlib.resources import files

LUA = files("cantata")


def test_every_key_of_a_run_that_the_library_lists_is_measured_but_its_backlogs() -> None:
    listed = re.findall(r"^--   R(:\w+|) +(?:hash|stream)", (LUA / "ledger" / "run.lua").read_text(), re.MULTILINE)
    measured = (LUA / "engine" / "fleet" / "sizes.lua").read_text().split("local RUN = {")[1].split("}")[0]

    assert "" in listed
    assert sorted(re.findall(r"'([^']*)'", measured)) == sorted(listed)
