"""Maps are one node with a count, until they are opened."""

from __future__ import annotations

from cantata.client.graphs.map_folding import MAX_ITEMS, fold
from tests.unit.client.graphs.graphs import snapshot


def test_items_of_a_map_are_counted_and_not_shown() -> None:
    words = {"@start": "done", "m": "done", "m/@gather": "waiting"}
    items = {"m/0": "done", "m/1": "failed", "m/2": "running", "m/3": "sent", "m/4": "ready", "m/5": "skipped"}

    folded = fold(snapshot({**words, **items}), ())

    assert folded.shown == list(words)
    assert folded.maps["m"].counts == {"waiting": 2, "running": 1, "done": 1, "failed": 1, "skipped": 1}
    assert (folded.maps["m"].total, folded.limits) == (6, {"m": 0})


def test_an_item_that_grew_stands_as_what_answers_for_it() -> None:
    words = {
        "m": "done",
        "m/@gather": "waiting",
        "m/0": "done",
        "m/0/t0": "done",
        "m/0/r1": "running",
        "m/1": "done",
        "m/1/r1": "failed",
    }

    folded = fold(snapshot(words, names={"m/0": "m/0/r1", "m/1": "m/1/r1"}), ())

    assert folded.shown == ["m", "m/@gather"]
    assert folded.maps["m"].counts == {"waiting": 0, "running": 1, "done": 0, "failed": 1, "skipped": 0}


def test_of_an_opened_map_the_first_items_are_shown_with_what_they_grew() -> None:
    items = {f"m/{number}": "done" for number in range(MAX_ITEMS + 5)}
    grown = {"m/3/t0": "done", f"m/{MAX_ITEMS + 1}/t0": "done"}

    folded = fold(snapshot({"m": "done", "m/@gather": "done", **items, **grown}), {"m"})

    assert len(folded.shown) == 2 + MAX_ITEMS + 1
    assert "m/3/t0" in folded.shown
    assert f"m/{MAX_ITEMS}" not in folded.shown
    assert folded.maps["m"].total == MAX_ITEMS + 5
    assert folded.map_of["m/3/t0"] == "m"


def test_a_map_in_an_item_of_an_opened_map_stays_folded() -> None:
    words = {
        "m": "done",
        "m/@gather": "waiting",
        "m/0": "done",
        "m/0/n": "done",
        "m/0/n/@gather": "done",
        "m/0/n/0": "done",
        "m/0/n/1": "done",
    }

    both = fold(snapshot(words), {"m", "m/0/n"})
    outer = fold(snapshot(words), {"m"})
    inner = fold(snapshot(words), {"m/0/n"})

    assert both.shown == list(words)
    assert outer.shown == ["m", "m/@gather", "m/0", "m/0/n", "m/0/n/@gather"]
    assert outer.maps["m/0/n"].total == 2
    assert inner.shown == ["m", "m/@gather"]
    assert set(inner.maps) == {"m"}


def test_a_step_whose_name_is_a_number_is_no_item_where_there_is_no_map() -> None:
    folded = fold(snapshot({"plan": "done", "plan/1": "done", "plan/2": "running"}), ())

    assert folded.shown == ["plan", "plan/1", "plan/2"]
    assert not folded.maps


def test_an_item_that_waits_for_a_person_or_for_its_retry_counts_as_running() -> None:
    words = {"m": "done", "m/@gather": "waiting", "m/0": "waiting_signal", "m/1": "ready"}

    new, retried = fold(snapshot(words), ()), fold(snapshot(words, attempts={"m/1": 1}), ())

    assert new.maps["m"].counts == {"waiting": 1, "running": 1, "done": 0, "failed": 0, "skipped": 0}
    assert retried.maps["m"].counts == {"waiting": 0, "running": 2, "done": 0, "failed": 0, "skipped": 0}
