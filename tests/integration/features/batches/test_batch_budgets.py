"""The budget of a batch against random failures, prices, cached replies and unknown prices: fed, by a provider, over HTTP, in retries."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cantata.client.client import Client
from cantata.errors import ConfigError
from cantata.features.batches import batch_feed
from cantata.features.batches import rows as batch_rows
from cantata.features.batches.batch_store import BatchInfo, BatchMode
from cantata.features.batches.batches import batch_target
from cantata.features.batches.rows import BatchRow, rows_by_run
from cantata.flows.definitions import Agent, Definitions
from cantata.flows.graph import Outcome
from cantata.flows.wire import RowOutcome
from cantata.ledger.ledger import Ledger
from cantata.ledger.runs import outcomes
from cantata.values import ErrorInfo, JsonValue, Usage
from tests.examples import thorough
from tests.integration.state.play import Play, work
from tests.integration.test_threads import url_of

UNTRIED = 10  # rows: the promise, not the constant
PRICE = 0.01
TOTAL = 40
FAILED = ErrorInfo(code="model_error", message="no")
Ends = Literal["refused", "cached", "paid", "paid in vain", "unpriced"]
Way = Literal["feed", "provider", "http"]
MIXED: tuple[Ends, ...] = ("refused", "cached", "paid", "paid", "paid in vain")
TRIES = settings(
    max_examples=thorough(15, plain=4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feeder that yields whenever it has looked, and small batches of the provider."""
    for name in ("CONTROL_S", "MIN_POLL_S", "MAX_POLL_S"):
        monkeypatch.setattr(batch_feed, name, 0.0)
    monkeypatch.setattr(batch_rows, "PROVIDER_ROWS", 2 * UNTRIED)


@pytest.fixture
def client(ledger: Ledger) -> Iterator[Client]:
    config = Definitions.model_validate({"agents": {"ann": Agent(model="openai/gpt-4o-mini")}})
    with Client(url_of(ledger.redis), config=config) as client:
        yield client


class Provider:
    """Ends the rows of a batch, each as drawn, and keeps what they cost: the truth that a budget is held against."""

    def __init__(
        self, client: Client, batch: BatchInfo, random: Random, ends: tuple[Ends, ...], prices: tuple[float, ...]
    ) -> None:
        self.client, self.name, self.random, self.ends, self.prices = client, batch.name, random, ends, prices
        self.budget = batch.budget_usd or 0.0
        self.spent, self.called = 0.0, 0
        self.most_untried = 0
        """The most rows that were open while none had shown a price."""
        self.late = 0
        """Rows that began after the budget was spent."""
        self._open: set[str] = set()

    def open_rows(self) -> dict[str, list[int]]:
        """Return the runs under way, with their rows."""
        batch, ledger = self.client.batches.find(self.name), self.client.ledger
        runs = rows_by_run(batch, range(TOTAL))
        over, missing = outcomes.ended(ledger, [*runs])
        rows = {run_id: self._given(batch, run_id, runs[run_id]) for run_id in runs.keys() - over.keys() - missing}
        if not self.spent:
            self.most_untried = max(self.most_untried, sum(map(len, rows.values())))
        if self.spent >= self.budget:
            self.late += len(rows.keys() - self._open)
        self._open = {*rows}
        return rows

    def _given(self, batch: BatchInfo, run_id: str, rows: list[int]) -> list[int]:
        """Return those of the rows of a run that are in its request."""
        return (
            rows
            if batch.mode == "live"
            else [int(row) for row in json.loads(self.client.ledger.runs.request_of(run_id)[1])["rows"]]
        )

    def end_some(self) -> None:
        """End some open runs."""
        batch, rows = self.client.batches.find(self.name), self.open_rows()
        for run_id in self.random.sample(sorted(rows), self.random.randint(min(1, len(rows)), len(rows))):
            self._end(batch, run_id, rows[run_id])

    def _end(self, batch: BatchInfo, run_id: str, rows: list[int]) -> None:
        ends = {row: self._draw() for row in rows}
        usage = sum((each.usage for each in ends.values()), Usage())
        output: JsonValue = {str(row): each.model_dump(mode="json") for row, each in ends.items()}
        error = None
        if batch.mode == "live":
            output, error = "yes", ends[rows[0]].error
        play = Play(self.client.ledger, run_id)
        play.plan(work("answer"), terminals=("answer",))
        status: Literal["done", "failed"] = "failed" if error else "done"
        play.commit(play.begin("answer"), outcome=Outcome(status=status, output=output, error=error, usage=usage))

    def _draw(self) -> RowOutcome:
        how = self.random.choice(self.ends)
        if how == "refused":
            return RowOutcome(error=FAILED)
        if how == "cached":
            return RowOutcome(usage=Usage(cost_usd=0.0))
        self.called += 1
        usage = Usage(input_tokens=9, output_tokens=1, model_calls=1)
        if how == "unpriced":
            return RowOutcome(usage=usage)
        price = self.random.choice(self.prices)
        self.spent += price
        return RowOutcome(
            error=FAILED if how == "paid in vain" else None, usage=usage.model_copy(update={"cost_usd": price})
        )


class Caller:
    """Runs a batch to its end in one of three ways; a sloppy caller is killed, or acknowledges only some results."""

    def __init__(self, client: Client, way: Way, seed: int, budget: float, *, is_sloppy: bool) -> None:
        self.client, self.way, self.is_sloppy, self.random = client, way, is_sloppy, Random(seed)
        client.redis.flushdb()
        self.mode: BatchMode = "provider" if way == "provider" else "live"
        self.settings: dict[str, Any] = {
            "mode": self.mode,
            "budget_usd": budget,
            "concurrency": self.random.choice([5, 25, 100]),
        }
        self.name = client.batches.open(way, batch_target(agent="ann"), **self.settings).name

    @property
    def batch(self) -> BatchInfo:
        return self.client.batches.find(self.name)

    def run(self, ends: tuple[Ends, ...], prices: tuple[float, ...] = (PRICE,)) -> Provider:
        """Run the batch, and its failed rows once more; return the provider that answered them."""
        provider = self.provider = Provider(self.client, self.batch, self.random, ends, prices)
        for run_round in (self._give, self._retry) if self.way == "http" else (self._feed, self._feed):
            if self.batch.state == "done" and self.batch.failed and self.way != "http":
                self.client.batches.retry(self.name)
            run_round(provider)
        return provider

    def _feed(self, provider: Provider) -> None:
        killed: list[Generator[list[BatchRow], None, None]] = []
        while True:
            feed = self.client.feed_batch(
                [f"row {number}" for number in range(TOTAL)], agent="ann", name=self.name, **self.settings
            )
            for group in (groups := feed.groups()):
                provider.open_rows()
                if self.is_sloppy and self.random.random() < 0.1:
                    break
                feed.deliver(group)
                provider.end_some()
            else:
                break
            assert self.client.redis.delete(*self.client.redis.scan_iter(match="*:feeder")) == 1
            killed.append(groups)
        for each in killed:
            each.close()

    def _give(self, provider: Provider) -> None:
        while self.batch.state == "running":
            rows = {row: f"row {row}" for row in range(self.batch.submitted, TOTAL)}
            with allowed_refusals():
                self.client.batches.add_rows(self.name, rows, {}, start=self.batch.submitted, last=True)
            self._acknowledge(provider)

    def _retry(self, provider: Provider) -> None:
        while self.batch.state == "running" or (
            self.batch.state == "done" and self.batch.failed and not self.batch.round
        ):
            with allowed_refusals():
                self.client.batches.retry_rows(self.name, {})
            if self.batch.state == "done":
                return  # the budget pays no further row
            self._acknowledge(provider)

    def _acknowledge(self, provider: Provider) -> None:
        provider.end_some()
        found = [each.row for each in self.client.batches.results(self.name, most=TOTAL).rows]
        some = self.random.sample(found, self.random.randint(0, len(found))) if self.is_sloppy else found
        self.client.batches.acknowledge(self.name, some)


@contextmanager
def allowed_refusals() -> Iterator[None]:
    """Let a caller be refused as the routes document."""
    try:
        yield
    except ConfigError as error:
        if error.code not in ("batch_full", "batch_state") or "price" in str(error):
            raise


@pytest.mark.parametrize("way", ["feed", "provider", "http"])
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 80),
    ends=st.sampled_from([("paid",), MIXED, ("refused", "cached", "paid")]),
)
@example(seed=440, rows=20, ends=MIXED)
@TRIES
def test_rows_of_one_price_cost_no_more_than_the_budget_or_than_ten_of_them(
    client: Client, way: Way, seed: int, rows: int, ends: tuple[Ends, ...]
) -> None:
    caller = Caller(client, way, seed, budget := rows * PRICE, is_sloppy=True)

    provider = caller.run(ends)

    assert provider.most_untried <= UNTRIED
    assert provider.spent <= max(budget, UNTRIED * PRICE) * (1 + 1e-9)
    assert caller.batch.usage.cost_usd is None or caller.batch.usage.cost_usd <= provider.spent * (1 + 1e-9)
    if caller.batch.state == "budget_spent":
        left = 1 if caller.mode == "live" else UNTRIED
        assert provider.spent > budget - left * PRICE * (1 + 1e-9), "it stops only if the next rows do not fit"


@pytest.mark.parametrize("way", ["feed", "http"])
@given(seed=st.integers(0, 2**32), budget=st.floats(0.001, 1.0))
@TRIES
def test_no_row_begins_after_the_budget_is_spent_whatever_rows_cost(
    client: Client, way: Way, seed: int, budget: float
) -> None:
    provider = Caller(client, way, seed, budget, is_sloppy=False).run(MIXED, (0.0001, 0.01, 0.3))

    assert provider.most_untried <= UNTRIED
    assert provider.late == 0


@pytest.mark.parametrize("way", ["feed", "provider", "http"])
@given(seed=st.integers(0, 2**32))
@TRIES
def test_no_more_than_ten_rows_are_asked_while_their_price_is_not_known(client: Client, way: Way, seed: int) -> None:
    caller = Caller(client, way, seed, 1.0, is_sloppy=True)

    with pytest.raises(
        ConfigError, match="price of a model of 'ann' is not known, so budget_usd cannot hold; go on without it"
    ):
        caller.run(("refused", "refused", "unpriced"))

    assert caller.provider.called <= UNTRIED


def test_a_batch_that_a_process_feeds_takes_no_rows_of_another_caller(client: Client) -> None:
    feed = client.feed_batch(["a", "b"], agent="ann", name="fed", budget_usd=1.0)
    groups = feed.groups()
    next(groups)

    with pytest.raises(ConfigError, match=r"batch 'fed' is fed by process \d+") as refused:
        client.batches.add_rows("fed", {2: "c"}, {}, start=2)
    assert refused.value.code == "batch_state"

    groups.close()
    assert client.batches.add_rows("fed", {2: "c"}, {}, start=2)[0] == 1
