"""What is said of the gateway, of Flower and of the stack of this folder. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.health.facts import Door
from cantata.health.report import Line, green, red, yellow

SLOW_MS = 1000.0


def of_doors(doors: Sequence[Door]) -> list[Line]:
    """A line for each service that answers over HTTP. Runs go on without any of them; a gateway that is gone is missed by its clients."""
    return [_of_door(door) for door in doors]


def _of_door(door: Door) -> Line:
    if door.answer_ms is None:
        said, todo = f"{door.url} {door.fault}; runs go on without it", "start it again, or look at its log"
        return red(door.name, said, todo) if door.name == "gateway" else yellow(door.name, said, todo)
    said = f"{door.url} answers in {door.answer_ms:.0f} ms"
    if door.fault:
        return yellow(door.name, f"{said}, but is not ready: {door.fault}")
    if door.answer_ms > SLOW_MS:
        return yellow(door.name, f"{said}, which is slow; runs go on without it", "look at its load")
    return green(door.name, said)


def of_stack(home: str, dead: Sequence[str], code_fault: str = "") -> list[Line]:
    """Return a line for the stack of this folder, if there is one."""
    if not home:
        return []
    if code_fault:
        return [yellow("stack", f"the stack in {home} still serves the code of before: {code_fault}", "correct the file; it is noticed")]
    if dead:
        said = f"of the stack in {home} {', '.join(dead)} {'does' if len(dead) == 1 else 'do'} not run"
        return [yellow("stack", said, f"look at {home}/logs if that does not start again by itself")]
    return [green("stack", f"all of it runs, in {home}")]
