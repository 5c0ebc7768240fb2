"""BatchFeed: submits the rows of a batch as others end, and yields their results; all state is in Redis, so another process can go on."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from threading import Event
from typing import cast
from uuid import uuid4

from cantata.engine.engine import Engine
from cantata.errors import ConfigError
from cantata.features.batches.batch_store import BatchInfo
from cantata.features.batches.batches import DELIVERED_AT_ONCE, Batches, affordable_rows, check_prices
from cantata.features.batches.rows import (
    BAD_VALUE,
    UNTRIED,
    BatchRow,
    Row,
    RowRequests,
    is_in_small_batch,
    row_of,
    rows_left,
    run_id_of_row,
)
from cantata.ledger.quotas import QUOTA_CODE
from cantata.ledger.runs import outcomes
from cantata.values import ErrorInfo, JsonValue

FEEDER_MS = 5000  # how long another process waits for a feeder that was killed
CONTROL_S = 0.5  # between looks at the state of the batch
MIN_POLL_S, MAX_POLL_S = 0.02, 0.2  # between looks for ended rows; the longer none ends, the longer
CHECK_S = 5.0  # between looks at each open row: Redis may have lost what says that it ended, or the row itself
HELD = 10  # times the concurrency: results that wait for an earlier row, if they are delivered in order


class BatchFeed:
    """The feeding of one batch by this process: `for rows in feed.groups(): ...; feed.deliver(rows)`.

    Raises ConfigError if another process feeds the batch.
    """

    def __init__(
        self,
        engine: Engine,
        batches: Batches,
        batch: BatchInfo,
        rows: Iterable[Row],
        *,
        labels: Mapping[str, str],
        group_s: float,
    ) -> None:
        self._engine, self._batches, self._labels, self._group_s = engine, batches, labels, group_s
        self.batch = batch
        self.note = ""
        """Why nothing is submitted now, for people."""
        self._requests = RowRequests(engine, batch.target, batch.columns, batch.mode)
        self._feeder = f"process {os.getpid()} on {socket.gethostname()} ({uuid4().hex[:6]})"
        self._stopped = Event()
        self._open: dict[str, dict[int, Row]] = {}
        """The runs under way, with their rows."""
        self._ended: dict[int, BatchRow] = {}
        self._order: deque[int] = deque()
        """The submitted rows whose results were not yielded, in their order."""
        self._unchecked: set[str] = set()
        """Open rows that may have been submitted, and have ended, before."""
        self._known_below, self._checked_at = batch.submitted, time.monotonic()
        self._taken = 0
        self._cost, self._priced, self._unpriced = batch.usage.cost_usd, batch.priced, batch.unpriced
        self._has_ended = batch.delivered > 0
        self._controlled_at = self._grouped_at = -CONTROL_S
        self._rows = self._undelivered(rows, batch)
        self._next = next(self._rows, None) if not batch.is_over else None

    @property
    def open_rows(self) -> int:
        """Rows under way."""
        return sum(map(len, self._open.values()))

    def groups(self, stop_after: int | None = None) -> Generator[list[BatchRow], None, None]:
        """Yield results as rows end, and nothing twice a second, until no row is left, or as many as `stop_after` were taken.

        It waits while the batch is paused, and ends early if its budget is spent or it is cancelled.
        """
        wait_s = MIN_POLL_S
        try:
            while not self._stopped.is_set():
                found = self._collect()
                self._control()
                self._submit(stop_after)
                now = time.monotonic()
                if found and (now - self._grouped_at >= self._group_s or not self._open):
                    self._grouped_at = now
                    yield self._take(found)
                elif self._is_finished(stop_after):
                    return
                elif now - self._grouped_at >= CONTROL_S:
                    self._grouped_at = now
                    yield []
                wait_s = MIN_POLL_S if found else min(MAX_POLL_S, wait_s * 1.3)
                self._stopped.wait(wait_s)
        finally:
            self._batches.store.feed(self.batch.name, self._feeder, 0)

    def deliver(self, rows: Sequence[BatchRow], *, out_bytes: int | None = None) -> None:
        """Record that the results of rows were delivered: they are never yielded again."""
        if rows:
            self.batch = self._batches.deliver(self.batch, rows, out_bytes=out_bytes)

    def stop(self) -> None:
        """End `groups` soon; open rows go on. May be called in another thread."""
        self._stopped.set()

    def _undelivered(self, rows: Iterable[Row], batch: BatchInfo) -> Iterator[tuple[int, Row]]:
        """Yield the rows whose result was not delivered, and record their number at the end."""
        todo = chain(self._batches.store.undelivered(batch.name, 0, batch.submitted), count(batch.submitted))
        wanted, number = next(todo), -1
        for number, row in enumerate(rows):
            if number == wanted:
                yield number, row
                wanted = next(todo)
        if batch.total is not None and batch.total != number + 1:
            raise ConfigError(
                f"batch {batch.name!r} had {batch.total} rows before, and has {number + 1} now", code="batch_differs"
            )
        self.batch = self._batches.deliver(self.batch, (), total=number + 1)

    def _control(self) -> None:
        """Renew the right to feed, read the state of the batch, and cancel open rows of one that was cancelled."""
        now = time.monotonic()
        if now - self._controlled_at < CONTROL_S:
            return
        give_up = now + FEEDER_MS / 1000 + 1
        while True:
            feeder, self.batch = self._batches.store.feed(self.batch.name, self._feeder, FEEDER_MS)
            if feeder == self._feeder:
                break
            if time.monotonic() > give_up or self._open:
                raise ConfigError(
                    f"batch {self.batch.name!r} is fed by {feeder}; wait until that ends, or stop it",
                    code="batch_state",
                )
            time.sleep(CONTROL_S / 2)
        self._controlled_at = time.monotonic()
        if self.batch.state == "cancelled" and self._open:
            self._engine.ledger.runs.cancel_all([*self._open])
        self.note = "it is paused" if self.batch.state == "paused" else ""

    def _submit(self, stop_after: int | None) -> None:
        """Submit as many rows as may be open."""
        room, affordable = self._room()
        if stop_after is not None:
            room = min(room, stop_after - self._taken)
        rows: dict[int, Row] = {}
        requests: dict[int, str] = {}
        number = -1
        while self._next is not None and (
            (rows and self._shares_run(number, self._next[0]))
            or self._may_begin(self._next[0], room - len(rows), affordable - len(rows))
        ):
            number, row = self._next
            rows[number] = row
            self._next = next(self._rows, None)
            try:
                requests[number] = self._requests.request(number, row)
            except ConfigError as error:
                is_first = not self._has_ended and not self._open and not requests
                if is_first and error.code != BAD_VALUE:  # it shows what is wrong with all rows
                    raise
                reason = ErrorInfo(code=error.code, message=str(error))
                self._ended[number] = BatchRow(row=number, input=_plain(row), status="failed", error=reason)
        if not rows and room > 0 and not self._open and not self._ended:
            self.batch = (
                self._batches.store.change(self.batch.name, "spend")[1] or self.batch
            )  # unless it was paused just now
        runs: dict[int, str] = {}
        try:
            runs = self._batches.submit(self.batch, self._requests, requests, self._labels) if requests else {}
        except ConfigError as error:
            if error.code != QUOTA_CODE:
                raise
            self.note = str(error)
        for number, run_id in runs.items():
            self._open.setdefault(run_id, {})[number] = rows[number]
        self._unchecked |= {run_id for number, run_id in runs.items() if number < self._known_below}
        if late := [number for number in requests if number not in runs]:  # the quota has no room for them now
            self._rows = chain(
                [(number, rows[number]) for number in late[1:]], [self._next] if self._next else (), self._rows
            )
            self._next = late[0], rows[late[0]]
        submitted = [number for number in rows if number not in late]
        self._taken += len(submitted)
        self._order.extend(submitted)

    def _shares_run(self, one: int, other: int) -> bool:
        """Return whether two rows go into the same batch of a provider."""
        return self.batch.mode == "provider" and run_id_of_row(self.batch, one) == run_id_of_row(self.batch, other)

    def _may_begin(self, number: int, room: int, affordable: int) -> bool:
        """Return whether the run of a row may be begun, if so many more rows may be open, and so many are within the budget.

        A row gets into a small batch of the provider if the budget does not pay a whole one, or no price is known.
        """
        batch = self.batch
        if min(room, affordable) <= 0 or batch.mode == "live" or batch.budget_usd is None:
            return min(room, affordable) > 0
        if number >= self._known_below and not is_in_small_batch(batch, number) and affordable < rows_left(number):
            record = self._batches.store.record  # rows between the two bounds are in whole batches
            is_next = number == batch.small_to
            self.batch = batch = (
                record(batch, small_to=number + UNTRIED) if is_next else record(batch, small_from=number)
            )
        return affordable >= UNTRIED - number % UNTRIED if is_in_small_batch(batch, number) else True

    def _room(self) -> tuple[int, int]:
        """Return how many more rows may be submitted now, and how many are within the budget."""
        batch = self.batch
        if batch.state != "running" or self._next is None:
            return 0, 0
        room = batch.concurrency - self.open_rows
        if batch.ordered:
            room = min(room, HELD * batch.concurrency - len(self._order))
        check_prices(batch, self._unpriced)
        return room, affordable_rows(batch, self._cost, self._priced) - self.open_rows

    def _collect(self) -> bool:
        """Read which open rows have ended; return whether there are results to yield."""
        if self._open:
            now = time.monotonic()
            ended_runs = outcomes.newly_ended(self._engine.ledger, self._batches.store.scope(self.batch.name))
            asked = self._unchecked.union(ended_runs).intersection(self._open)
            if now - self._checked_at >= CHECK_S:
                asked, self._checked_at = {*self._open}, now
            self._unchecked.clear()
            over, gone = outcomes.ended(self._engine.ledger, [*asked])
            for run_id, ended in over.items():
                rows = {
                    number: row_of(self.batch, number, run_id, ended, _plain(row))
                    for number, row in self._open.pop(run_id).items()
                }
                self._ended |= rows
                self._has_ended = True
                if ended.state == "cancelled":  # perhaps the batch is: look before more is submitted
                    self._controlled_at = -CONTROL_S
                for row in rows.values():
                    if row.usage.cost_usd is not None:
                        self._cost = (self._cost or 0.0) + row.usage.cost_usd
                    self._priced += bool(row.usage.cost_usd)
                    self._unpriced += not row.is_priced
            if gone:  # Redis has lost them: they are the same runs, accepted anew
                lost = {
                    number: self._requests.request(number, row)
                    for run_id in gone
                    for number, row in self._open[run_id].items()
                }
                self._batches.submit(self.batch, self._requests, lost, self._labels)
        return bool(self._ended) and (not self.batch.ordered or self._order[0] in self._ended)

    def _take(self, has_any: bool) -> list[BatchRow]:
        """Return the results to yield, and forget them."""
        if not self.batch.ordered:
            self._order.clear()
            return [self._ended.pop(number) for number in [*islice(self._ended, DELIVERED_AT_ONCE)]]
        found: list[BatchRow] = []
        while self._order and self._order[0] in self._ended and len(found) < DELIVERED_AT_ONCE:
            found.append(self._ended.pop(self._order.popleft()))
        return found

    def _is_finished(self, stop_after: int | None) -> bool:
        if self._open or self._ended:
            return False
        is_stopped = self.batch.state in ("budget_spent", "cancelled", "done") or (
            stop_after is not None and self._taken >= stop_after
        )
        return is_stopped or self._next is None


def _plain(row: Row) -> JsonValue:
    return row if isinstance(row, str) else cast(JsonValue, dict(row))
