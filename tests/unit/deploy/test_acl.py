"""The user of deploy/redis/users.acl may do what our scripts do."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[3]
LUA = TOP / "orchestrator" / "state" / "lua"


def test_every_command_of_a_script_is_permitted() -> None:
    lines = (TOP / "deploy" / "redis" / "users.acl").read_text().splitlines()
    permitted = {word.removeprefix("+") for line in lines if line.startswith("user cantata ") for word in line.split() if word[0] == "+"}
    called = {command.lower() for file in LUA.glob("*.lua") for command in re.findall(r"redis\.p?call\('(\w+)'", file.read_text())}

    assert called - {word.partition("|")[0] for word in permitted} == set()
    assert len(called) > 30, "the commands were found"
