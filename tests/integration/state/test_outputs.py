"""The beginnings of outputs, as pages read them."""

from __future__ import annotations

from cantata.ledger.ledger import Ledger
from cantata.ledger.run_reader import OUTPUT_BYTES, OUTPUTS_AT_ONCE
from cantata.ledger.runs.run_snapshot import Beginning
from cantata.values import JsonValue
from tests.integration.state.play import Play, work


def test_of_large_outputs_only_the_beginning_is_read(ledger: Ledger) -> None:
    outputs: dict[str, JsonValue] = {
        "small": {"a": [1]}, "stored beside": "b" * 50_000, "text": "é\n" * OUTPUT_BYTES, "list": ["c" * 10] * OUTPUT_BYTES, "none": None,
    }  # fmt: skip
    play = Play(ledger)
    play.plan(*map(work, outputs), work("later"))
    for step_id, output in outputs.items():
        play.do(step_id, output=output)

    small, beside, text, items, none, later = ledger.reader.beginnings(play.run_id, [*outputs, "later"])

    assert (small, beside) == (Beginning({"a": [1]}), Beginning("b" * 50_000))
    assert (none, later) == (Beginning(None), Beginning(None))
    assert text.is_cut
    assert str(text.value).startswith("é\né\n")
    assert len(str(text.value)) >= 20_000
    assert items.is_cut
    assert str(items.value).startswith('["cccccccccc","')


def test_many_are_told_in_order(ledger: Ledger) -> None:
    names = [f"s{i}" for i in range(2 * OUTPUTS_AT_ONCE + 1)]
    play = Play(ledger)
    play.plan(*map(work, names))
    for number, name in enumerate(names):
        play.do(name, output=number)

    assert [found.value for found in ledger.reader.beginnings(play.run_id, names)] == list(range(len(names)))
    assert ledger.reader.beginnings(play.run_id, []) == []
