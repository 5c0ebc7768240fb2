"""Rows of batches: as they are given, as requests of their runs, and as results; which run answers which row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

from pydantic import Field

from cantata import bounds
from cantata.engine.engine import Engine
from cantata.engine.publisher import COORDINATOR
from cantata.engine.requests import CheckedChain, workflow_request
from cantata.engine.start import choose_start_queue, id_of_key
from cantata.errors import ConfigError
from cantata.features.batches.batch_store import BatchInfo, BatchMode, BatchTarget
from cantata.flows.chains import declared_inputs
from cantata.flows.chains.declared_inputs import DeclaredInputs, Schema, inputs_read
from cantata.flows.provider_batches import fault_of_agent
from cantata.flows.submission import Timeout
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ProviderBatchRequest, RowOutcome, RunState, TurnRequest
from cantata.ledger.runs import outcomes
from cantata.values import ErrorInfo, JsonValue, Usage, Value, as_text

UNTRIED = 10  # rows that are open at most while a batch with a budget does not know what a row costs; rows of a small batch of a provider
PROVIDER_ROWS = 500  # of a provider's batch: those whose numbers have the same quotient; a multiple of UNTRIED
PROVIDER_TIMEOUT = Timeout(26 * 3600.0, "of provider batches")  # the providers' own limit is a day
BAD_VALUE = "bad_value"
"""The code of an error in a row's values, which says nothing about other rows."""

_INTEGER = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_WANTED = {"integer": "an integer", "number": "a number", "boolean": "true or false"}

Row = str | Mapping[str, JsonValue]
"""A row as it is given: a text, or its columns."""


class BatchRow(Value):
    """A row of a batch, and its result. A failed one has an `error`, and may have an output."""

    row: int = Field(description="its number, from 0")
    input: JsonValue = Field(None, description="the row as it was given")
    status: RunState = Field(
        description="succeeded, succeeded_with_failures, failed, cancelled, timed_out or exhausted"
    )
    output: JsonValue = Field(None, description="the answer of a turn, the final output of a chain or workflow")
    error: ErrorInfo | None = Field(None, description="why it failed")
    run_id: str = Field(
        "", description="its run, which is deleted when the result of a row that succeeded is delivered"
    )
    usage: Usage = Field(default_factory=Usage, description="its consumption")
    is_priced: bool = Field(True, exclude=True, description="whether the price of each of its model calls is known")

    @property
    def has_failed(self) -> bool:
        """True if it counts as failed: also one that succeeded though steps failed."""
        return self.status != "succeeded"


class BatchPage(Value):
    """Rows of a batch, by their number."""

    rows: list[BatchRow] = Field(description="in the order of their numbers")
    next: int | None = Field(None, description="what `start` is for the rest; null if there is none now")


class RowRequests:
    """Makes the requests of a batch's rows. Raises ConfigError for a target that the configuration does not have."""

    def __init__(
        self, engine: Engine, target: BatchTarget, columns: Mapping[str, str], mode: BatchMode = "live"
    ) -> None:
        self._engine, self._columns = engine, columns
        is_turn = target.kind in ("agent", "team")
        self.kind: Literal["turn", "chain", "batch"] = "batch" if mode == "provider" else "turn" if is_turn else "chain"
        self._target = target
        self._queue = COORDINATOR
        self.timeout = Timeout(None, "")
        if mode == "provider":
            if target.kind != "agent":
                raise ConfigError(
                    f"in mode 'provider' a model answers the rows, not a {target.kind}; name an agent", source="batch"
                )
            fault = (
                fault_of_agent(target.name, engine.definitions) if target.name in engine.definitions.agents else None
            )
            if fault:
                raise ConfigError(fault, source="batch")
            self.timeout = PROVIDER_TIMEOUT
        chain = engine.definitions.chains.get(target.name) if target.kind == "chain" else None
        self._inputs = inputs_read(chain) if chain else []
        if is_turn:
            self._turn = TurnRequest.model_validate({"text": "", target.kind: target.name})
            if faults := turn_plan.check_turn(self._turn.model_copy(update={"text": "text"}), engine.definitions):
                raise ConfigError(faults, source="batch")
            agent = engine.definitions.agents.get(target.name) if target.kind == "agent" else None
            self._queue = agent.queue if agent else "agents"  # whoever plans a row goes on with it at once

    @property
    def queue(self) -> str:
        """The queue of a row's first step; of a chain, as of the newest request."""
        return self._queue

    def of_run(self, rows: Mapping[int, str], *, is_again: bool) -> str:
        """Return the request of the run of rows, with their requests; `is_again` if they may have been submitted before."""
        if self.kind != "batch":
            return next(iter(rows.values()))
        text = f"rows {min(rows):,} to {max(rows):,} to {self._target.name} as a batch of its model's provider"
        named = {str(number): text for number, text in rows.items()}
        return ProviderBatchRequest(text=text, agent=self._target.name, rows=named, is_again=is_again).model_dump_json()

    def request(self, number: int, row: Row) -> str:
        """Return the request of a row as JSON text; its text for a provider's batch. Raises ConfigError."""
        if not isinstance(row, str | Mapping):
            raise ConfigError(f"row {number} is a {type(row).__name__}; a row is a text or an object", source="batch")
        bounds.check(
            row if isinstance(row, str) else dict(row),
            f"row {number}",
            max_bytes=self._engine.definitions.limits.input_bytes,
        )
        try:
            return self._request(number, row)
        except ConfigError:
            raise
        except ValueError as error:  # such as half a character
            raise ConfigError(f"row {number} cannot be stored as JSON: {error}", source="batch") from error

    def _request(self, number: int, row: Row) -> str:
        fields = row if isinstance(row, str) else {self._columns.get(name, name): value for name, value in row.items()}
        if self.kind == "batch":
            text, most = _text(number, fields), self._engine.definitions.limits.input_bytes // PROVIDER_ROWS
            if len(json.dumps(text)) > most:
                message = f"row {number} is larger than {most / 1000:,.0f} kB, a row's part of limits.input_bytes in mode 'provider'"
                raise ConfigError(f"{message}; raise that limit, or leave out the mode", source="batch", code=BAD_VALUE)
            return text
        if self.kind == "turn":
            return self._turn.model_copy(update={"text": _text(number, fields)}).model_dump_json(exclude_defaults=True)
        if isinstance(fields, str):
            raise ConfigError(
                f"row {number} is a text; the rows of a {self._target.kind} are objects: its input", source="batch"
            )
        if self._inputs and fields.keys().isdisjoint(self._inputs):
            found, read = (", ".join(map(repr, [*names][:10])) or "none" for names in (fields, self._inputs))
            message = f"row {number} has none of the inputs that chain {self._target.name!r} reads ({read}); its columns are {found}"
            raise ConfigError(f"{message}: give one of them that name with --map", source="batch")
        if self._target.kind == "workflow":
            chain = self._engine.checked_chain(workflow_request(self._target.name, fields, self._engine.definitions))
        else:
            chain = self._checked_chain(row, fields)
        self.timeout = chain.timeout
        self._queue = choose_start_queue(chain.request, self._engine.definitions, self._engine.step_costs())
        return chain.text

    def _checked_chain(self, row: Row, fields: dict[str, JsonValue]) -> CheckedChain:
        """Return the request of a chain. Raises ConfigError, with the code BAD_VALUE if only values of the row are at fault."""
        declared = self._declared
        if declared and isinstance(row, TextRow) and not [*declared.missing(fields), *declared.unknown(fields)]:
            fields = converted(row, self._columns, declared, self._target.name)
        try:
            return self._engine.checked_chain(self._target.name, fields)
        except ConfigError as error:
            is_named = declared is not None and not [*declared.missing(fields), *declared.unknown(fields)]
            code = BAD_VALUE if declared and is_named and [*declared.misfits(fields)] else error.code
            source = row.place if isinstance(row, TextRow) else error.source
            raise ConfigError(error.faults, source=source, code=code, asked=error.asked) from error

    @cached_property
    def _declared(self) -> DeclaredInputs | None:
        return declared_inputs.sound(self._engine.request_of(self._target.name).inputs)


def _text(number: int, row: Row) -> str:
    """Return the text of a turn: the field `text`, or the only field."""
    if isinstance(row, str):
        return row
    if "text" not in row and len(row) != 1:
        found = ", ".join(map(repr, list(row)[:10])) or "none"
        raise ConfigError(
            f"row {number} has no field 'text' (its fields: {found}); name one: --map FIELD=text", source="batch"
        )
    return as_text(row["text"] if "text" in row else next(iter(row.values())))


# --- texts of CSV and TSV ------------------------------------------------------------------------------------------


class TextRow(dict[str, JsonValue]):
    """A row of CSV or TSV, and its place: file and line."""

    def __init__(self, values: Mapping[str, str], place: str) -> None:
        super().__init__(values)
        self.place = place


def converted(row: TextRow, columns: Mapping[str, str], declared: DeclaredInputs, chain: str) -> dict[str, JsonValue]:
    """Return the chain's input: texts of integers, numbers and booleans as such, without the empty cells of optional inputs.

    Args:
        row: The row.
        columns: Column → input, where they differ.
        declared: The inputs that the chain declares.
        chain: Its name, for messages.

    Raises:
        ConfigError: A text is not of its input's type (BAD_VALUE).
    """
    found: dict[str, JsonValue] = {}
    for column, text in row.items():
        name = columns.get(column, column)
        if text == "" and name in declared.schemas and name not in declared.required:
            continue
        try:
            found[name] = _value(str(text), declared.schemas.get(name, {}))
        except ValueError as error:
            shown = f"{str(text)[:40]!r}" if text else "an empty cell"
            message = f"{row.place}: column {column!r}: the input {name!r} of chain {chain!r} is {error}, not {shown}"
            raise ConfigError(message, source="batch", code=BAD_VALUE) from None
    return found


def _value(text: str, schema: Schema) -> JsonValue:
    """Return the value of a text. Raises ValueError with the name of what is wanted."""
    kind, plain = schema.get("type"), text.strip()
    if not isinstance(kind, str) or kind not in _WANTED:
        return text
    if kind == "boolean" and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if kind != "boolean" and _INTEGER.fullmatch(plain):
        return int(plain)
    if kind == "number" and _NUMBER.fullmatch(plain):
        return float(plain)
    raise ValueError(_WANTED[kind])


# --- rows and their runs ------------------------------------------------------------------------------------------


def run_id_of_row(batch: BatchInfo, row: int) -> str:
    """Return the run of a row in the batch's round."""
    piece = str(row)
    if batch.mode == "provider":
        piece = f"small {row // UNTRIED}" if is_in_small_batch(batch, row) else f"provider {row // PROVIDER_ROWS}"
    return id_of_key(f"batch {batch.uid} {batch.round} {piece}")


def is_in_small_batch(batch: BatchInfo, row: int) -> bool:
    """Return whether a row is in a small batch of the provider; in a later round all are, if some were in the first."""
    if row < batch.small_to or (batch.small_from is not None and row >= batch.small_from):
        return True
    return batch.round > 0 and (batch.small_to > 0 or batch.small_from is not None)


def rows_left(row: int) -> int:
    """Return how many rows from this one on are in the same batch of a provider."""
    return PROVIDER_ROWS - row % PROVIDER_ROWS


def rows_by_run(batch: BatchInfo, rows: Iterable[int]) -> dict[str, list[int]]:
    """Return the runs of rows, each with those that it answers."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(run_id_of_row(batch, row), []).append(row)
    return found


def row_of(batch: BatchInfo, number: int, run_id: str, ended: outcomes.EndedRow, given: JsonValue = None) -> BatchRow:
    """Return a row with the outcome of its run, or its part of it."""
    if batch.mode == "provider" and isinstance(ended.output, dict) and str(number) in ended.output:
        part = RowOutcome.model_validate(ended.output[str(number)])
        status: RunState = "failed" if part.error else "succeeded"
        is_priced = part.usage.cost_usd is not None or not part.usage.model_calls
        ended = outcomes.EndedRow(status, part.output, part.error, part.usage, is_priced)
    elif batch.mode == "provider":
        error = ended.error or ErrorInfo(
            code="row_missing", message=f"run {run_id!r} has no outcome of this row; retry the row"
        )
        ended = outcomes.EndedRow("failed" if ended.state == "succeeded" else ended.state, None, error, Usage())
    return BatchRow(
        row=number,
        input=given,
        status=ended.state,
        output=ended.output,
        error=ended.error,
        run_id=run_id,
        usage=ended.usage,
        is_priced=ended.is_priced,
    )
