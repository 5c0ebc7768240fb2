"""What a run is called in lists, and what of a search Redis is asked for."""

from __future__ import annotations

import json
from typing import cast

import pytest

from cantata.errors import ConfigError
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter, matches_text
from cantata.ledger.runs.summaries import RunSummary, target_of, title_of
from cantata.values import JsonValue

CHAIN: dict[str, JsonValue] = {
    "chain_id": "report",
    "nodes": [{"node_id": "read", "kind": "tool"}, {"node_id": "write", "kind": "agent"}],
}


def written(value: JsonValue) -> str:
    """As requests are kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("text", ["What does E42 mean?", 'Say "hi" \\ now', "Grüße 😀", "a" * 120])
def test_a_turn_is_called_by_its_text(text: str) -> None:
    assert title_of("turn", written({"text": text, "team": "desk"})) == text


def test_a_long_text_is_one_line_of_120_characters() -> None:
    title = title_of("turn", written({"text": "one\n\n two\t" + "x" * 500}))

    assert title.startswith("one two xxx")
    assert (len(title), title[-1]) == (120, "…")


def test_a_request_may_be_cut_anywhere() -> None:
    text = 'Ein "Zitat" \\ und \n\u0001 Grüße'
    whole = json.dumps({"text": text}, separators=(",", ":"))  # with escapes of several characters

    titles = [title_of("turn", whole[:length]) for length in range(len(whole) + 1)]

    full = " ".join(text.split())
    assert titles[-1] == full
    assert all(full.startswith(title.rstrip()) for title in titles)


def test_a_chain_is_called_by_its_name_or_else_its_nodes() -> None:
    assert title_of("chain", written(CHAIN)) == "report"
    assert title_of("chain", written(CHAIN)[:40]) == "report"
    assert title_of("chain", written({**CHAIN, "chain_id": "0a1b2c3d"})) == "read, write", "its name was made up"
    assert title_of("chain", "") == title_of("turn", "{}") == ""


def test_a_run_names_its_team_agent_chain_or_workflow() -> None:
    text = 'say "agent":"nobody"' + "x" * 700
    assert target_of("turn", written({"text": text, "agent": 'wri"ter', "session": "anna"})) == 'wri"ter'
    assert target_of("turn", written({"text": text})) == ""
    assert target_of("chain", written(CHAIN)) == "report"
    assert target_of("chain", written({**CHAIN, "chain_id": "0a1b2c3d"})) == target_of("webhook", '{"team":"x"}') == ""


def test_a_text_is_found_in_id_title_session_and_labels_in_any_case() -> None:
    run = RunSummary(
        run_id="0a1b",
        kind="turn",
        status="running",
        created_at=1,
        title="Größe der Bestellung",
        session="Anna",
        labels={"tenant": "Acme"},
    )

    for text in ("", "0A1", "GRÖSSE", "größe DER", "anna", "tenant=acme", "acme"):
        assert matches_text(run, text), text
    for text in ("bestellung größe", "tenant = acme", "otto"):
        assert not matches_text(run, text), text


def test_redis_is_asked_for_each_word_as_it_may_be_written() -> None:
    assert listing._words("") == listing._words(' "\\ ') == []
    assert listing._words('Order "777"') == [["order"], ["777"]]
    (spellings,) = listing._words("Größe")
    assert set(cast("list[str]", spellings)) >= {"größe", "grÖssE".lower().replace("ö", "Ö")}
    assert len(listing._words(" ".join(f"word{number}" for number in range(100)))) == listing.MAX_WORDS


@pytest.mark.parametrize("wanted", [{"statuses": ("done",)}, {"kind": "task"}, {"text": "x" * 201}])
def test_what_no_run_can_be_is_refused(wanted: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RunFilter(**wanted)  # type: ignore[arg-type]  # the wrong ones, on purpose


@pytest.mark.parametrize("text", ["", "abc", "12", "12.", ".x", "-1.x", "1.a b", "9" * 16 + ".x"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a position"):
        listing._place(text)
