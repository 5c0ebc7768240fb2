"""Comparisons of recorded runs with their replays, and the table of many."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from cantata.values import JsonValue, Usage, as_text

SHOWN_CHARS = 200  # of a value in a message
HEADING = ("recording", "answer", "tokens", "now", "cost (USD)", "now")
BEFORE_CHARS = 60  # of them before the first character that differs


@dataclass(frozen=True, slots=True)
class Difference:
    """The first, or a further, point at which a replay differs from its recording."""

    step: str
    """The step; empty for the run."""
    part: str
    """request, graph, model, prompt, params, tools, schema, tool, arguments, output, status or error."""
    recorded: JsonValue
    now: JsonValue

    def __str__(self) -> str:
        return _described(f"step {self.step!r}" if self.step else "the run", self.part, self.recorded, self.now)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: its status, output and consumption."""

    status: str
    output: JsonValue
    usage: Usage


@dataclass(frozen=True, slots=True)
class Comparison:
    """A recorded run beside its replay."""

    run_id: str
    """The recorded run."""
    same: bool
    """Whether nothing differs; with live models, whether the replay ended as the run did, with an output that counts as the same."""
    differences: tuple[Difference, ...]
    """The points that differ, in the order in which the replay found them."""
    recorded: RunEnd
    now: RunEnd
    stopped: str = ""
    """The reason why the replay could not go on to its end; empty if it did."""

    @property
    def first(self) -> Difference | None:
        """Return the first difference; None if there is none."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        parts = [str(self.first)] if self.first else []
        if len(self.differences) > 1:
            parts.append(f"and {len(self.differences) - 1} more")
        parts += [f"the replay stopped: {self.stopped}"] if self.stopped else []
        return "\n".join([f"run {self.run_id}: {'no difference' if self.same else 'changed'}", *parts])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The comparisons of a folder of recordings, by file. As text it is a table."""

    comparisons: dict[str, Comparison]

    @property
    def changed(self) -> dict[str, Comparison]:
        """Return the comparisons of runs that changed, by file."""
        return {name: each for name, each in self.comparisons.items() if not each.same}

    def __str__(self) -> str:
        found = self.comparisons.items()
        rows = [
            _row(name, "same" if each.same else "changed", each.recorded.usage, each.now.usage) for name, each in found
        ]
        sums = (
            sum((end.usage for end in ends), Usage())
            for ends in zip(*((each.recorded, each.now) for _, each in found), strict=True)
        )
        rows = [HEADING, *rows, _row(f"{len(rows)} runs", f"{len(self.changed)} changed", *sums)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        for name, each in self.changed.items():
            answers = _described(name, "answer", each.recorded.output, each.now.output)
            lines += ["", f"{name}: {each.stopped}" if each.stopped else answers]
        return "\n".join(lines)


def _row(name: str, answer: str, recorded: Usage, now: Usage) -> tuple[str, ...]:
    tokens = (str(usage.input_tokens + usage.output_tokens) for usage in (recorded, now))
    costs = ("unknown" if usage.cost_usd is None else f"{usage.cost_usd:.6f}" for usage in (recorded, now))
    return name, answer, *tokens, *costs


def _described(subject: str, part: str, recorded: JsonValue, now: JsonValue) -> str:
    before, after = map(as_text, (recorded, now))
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    start = max(0, equal - BEFORE_CHARS)
    return f"{subject}: its {part} differs\n  recorded: {_cut(before, start)}\n  now:      {_cut(after, start)}"


def _cut(text: str, start: int) -> str:
    end = start + SHOWN_CHARS
    return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"
