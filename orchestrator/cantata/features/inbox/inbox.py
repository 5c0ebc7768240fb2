"""The inbox: steps that wait for a person, those that have waited longest first, in pages. Read from an index, not from runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from cantata.errors import ConfigError, StoredDataError, unreadable
from cantata.flows.waits import Inbox, InboxItem, WaitOptions, question_of
from cantata.ledger.encoding import to_json, whole_spec_of
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS, shard_key, shard_of
from cantata.ledger.redis.records import check_script, readable, remedy_for
from cantata.ledger.runs.summaries import REQUEST_BYTES, title_of
from cantata.ledger.scripts import SCRIPTS
from cantata.values import JsonValue, stored

SCANNED_PER_CALL = 500  # entries of a shard that one page looks at
UNREADABLE_ROW = 4  # values in the row of a step that the script could not read
MAX_PAGE = 200  # items that a list reads at once
UNCERTAIN = "Its worker was lost, so its outcome is unknown. The value becomes its result."
"""The question of a step that runs at most once and whose worker died."""
_PLACE = re.compile(r"(\d{1,15})\.(\S{1,2000})")


@dataclass(frozen=True, slots=True)
class InboxFilter:
    """The steps to list."""

    tenant: str | None = None
    """None: all tenants."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the runs have."""
    who: str = ""
    """Only those that this name, group or scope may answer."""


def find_page(ledger: Ledger, wanted: InboxFilter, *, after: str | None = None, most: int = 50) -> Inbox:
    """Return a page, behind the `next` of an earlier one; it may be short though `next` is set. Raises ConfigError for another `after`."""
    at, member = _place(after) if after else ("", "")
    call: dict[str, JsonValue] = {
        "at": at, "member": member, "most_found": most + 1, "most_looked": SCANNED_PER_CALL, "labels": dict(wanted.labels),
        "request_bytes": REQUEST_BYTES, **({"who": wanted.who} if wanted.who else {}),
        **({} if wanted.tenant is None else {"tenant": wanted.tenant}),
    }  # fmt: skip
    calls = [(shard_key(ledger.redis, shard), [to_json(call)]) for shard in range(SHARDS)]
    replies = ledger.with_retries(lambda: SCRIPTS.call_each(ledger.redis, "inbox/inbox", calls))
    rows = sorted(((int(row[2]), f"{row[0]}|{row[1]}"), row) for _, _, _, *found in replies for row in found)
    open_ends = [(int(looked_at), looked) for looked, looked_at, is_end, *_ in replies if not int(is_end)]
    complete_to = min(open_ends, default=None)
    sure = [(place, row) for place, row in rows if complete_to is None or place <= complete_to]
    last = sure[most - 1][0] if len(sure) > most else complete_to
    return Inbox(items=[_item(row) for _, row in sure[:most]], next=last and f"{last[0]}.{last[1]}")


def iterate(ledger: Ledger, wanted: InboxFilter) -> Iterator[InboxItem]:
    """Yield all, the longest waiting first."""
    after: str | None = None
    while True:
        page = find_page(ledger, wanted, after=after, most=MAX_PAGE)
        yield from page.items
        if (after := page.next) is None:
            return


def find(ledger: Ledger, run_id: str, step: str) -> InboxItem | None:
    """Return a step that waits for a person; None if it does not wait now."""
    call: dict[str, JsonValue] = {"only": f"{run_id}|{step}", "request_bytes": REQUEST_BYTES}
    _, _, _, *rows = ledger.caller.call_shard("inbox/inbox", shard_of(run_id), to_json(call))
    return _item(rows[0]) if rows else None


def _place(text: str) -> tuple[str, str]:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text[:100]!r} is not a position in the inbox; use `next` of an earlier page", source="after"
        )
    return match[1], match[2]


def _item(row: Sequence[str]) -> InboxItem:
    """Return a step that waits, from its row. Nobody may answer one that cannot be read, since who may is unknown."""
    run_id, step, since = row[:3]

    def read() -> InboxItem:
        if len(row) == UNREADABLE_ROW:
            check_script(row[3])
        text, info_text, due, run_kind, labels, request = row[3:]
        spec, info = whole_spec_of(text), json.loads(info_text)
        options, asks = wait_options(spec.params), spec.params.get("asks")
        question = question_of(options.question, asks) if spec.kind == "wait" else UNCERTAIN
        return InboxItem(
            id=f"{run_id}/{step}",
            run_id=run_id,
            step=step,
            kind=spec.kind,
            work=spec.work,
            question=question,
            context=asks,
            answer_schema=options.answer_schema,
            who=options.answerers(is_escalated="escalated_at_ms" in info),
            since=int(since) / 1000,
            ends_at=float(due) / 1000 if due else None,
            reminded_at=_seconds(info, "reminded_at_ms"),
            escalated_at=_seconds(info, "escalated_at_ms"),
            run_kind=run_kind,
            title=title_of(run_kind, request),
            labels=json.loads(labels),
        )

    def listed(why: str) -> InboxItem:
        return InboxItem(
            id=f"{run_id}/{step}",
            run_id=run_id,
            step=step,
            kind="",
            question=why,
            who=[],
            since=float(since) / 1000,
            run_kind="",
            title="",
            unreadable=why,
        )

    return readable(read, listed, remedy=remedy_for(run_id))


def wait_options(params: Mapping[str, JsonValue]) -> WaitOptions:
    """Return the options of a waiting step, from its parameters. Raises StoredDataError."""
    try:
        return stored(WaitOptions, params.get("wait") or {}, ignores_unknown=True)
    except ValidationError as error:
        raise StoredDataError(
            f"the options of the wait cannot be read ({unreadable(error)}); cancel its run"
        ) from error


def _seconds(info: Mapping[str, float], name: str) -> float | None:
    return info[name] / 1000 if name in info else None
