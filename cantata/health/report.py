"""What is said of the whole: a line for each matter, and the worst of their colours."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cantata.models.values import Value

Colour = Literal["green", "yellow", "red"]

RANKS: dict[Colour, int] = {"green": 0, "yellow": 1, "red": 2}


class Line(Value):
    """How one matter stands."""

    matter: str = Field(description="what it is about, in a word or two")
    colour: Colour = Field(description="green: all is well; yellow: it works, but look; red: it does not work")
    said: str = Field(description="how it stands, and why that is not well")
    todo: str = Field(default="", description="what to do; empty if nothing, or if `said` says it")


class Report(Value):
    """How all stands."""

    colour: Colour = Field(description="the worst of the lines")
    lines: tuple[Line, ...] = Field(description="a line for each matter")


def green(matter: str, said: str) -> Line:
    """All is well."""
    return Line(matter=matter, colour="green", said=said)


def yellow(matter: str, said: str, todo: str = "") -> Line:
    """It works, but somebody should look."""
    return Line(matter=matter, colour="yellow", said=said, todo=todo)


def red(matter: str, said: str, todo: str = "") -> Line:
    """It does not work."""
    return Line(matter=matter, colour="red", said=said, todo=todo)


def worst(colours: list[Colour]) -> Colour:
    """The worst of these; green if there are none."""
    return max(colours, key=RANKS.__getitem__, default="green")


def report(lines: list[Line]) -> Report:
    """These lines, and their worst."""
    return Report(colour=worst([line.colour for line in lines]), lines=tuple(lines))
