"""`python -m tests.acceptance.write_replies`: writes the table of providers of docs/models.md from the replies that the tests read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.integration.model_upstream import Cell, cells, providers, read

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- replies -->\n", "<!-- end of replies -->"
COLUMNS = (
    "text", "stream", "tools", "parallel tools", "structured output", "structured with tools", "reasoning with tools", "refusal",
    "filter", "length",
)  # fmt: skip


def written(page: str) -> str:
    """The page with its table as it should be."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{''.join(_lines())}{END}{rest.split(END)[1]}"


def _lines() -> Iterator[str]:
    notes: list[str] = []
    tested = {provider: [cell for cell in cells() if cell.provider == provider] for provider in providers()}
    yield _row(["provider", *COLUMNS])
    yield _row(["---"] * (len(COLUMNS) + 1))
    for provider in sorted(providers(), key=lambda each: str(read(each)["title"]).lower()):
        own: dict[str, str] = read(provider)["notes"]
        yield _row([read(provider)["title"], *(_cell(column, tested[provider], own, notes) for column in COLUMNS)])
    yield "\n"
    for number, note in enumerate(notes, 1):
        yield f"{number}. {note[0].upper()}{note[1:]}.\n"
    yield "\n"


def _cell(column: str, tested: Sequence[Cell], own: dict[str, str], notes: list[str]) -> str:
    """Return `yes` if replies of this column are tested, each whole and streamed, else a dash; with the number of its note."""
    names = {"text"} if column == "stream" else {column}
    found = [cell for cell in tested if cell.column in names and (column != "stream" or cell.turns[0]["stream"])]
    mark = "yes" if found else "-"
    if column not in own:
        assert found, f"{tested[0].provider} has no replies of {column!r}, and no note that says why"
        return mark
    if own[column] not in notes:
        notes.append(own[column])
    return f"{mark} [{notes.index(own[column]) + 1}]"


def _row(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
