"""Files of batches: rows in JSONL, CSV, TSV or Parquet, and results in JSONL, CSV or Parquet, read and written one after the other."""

from __future__ import annotations

import csv
import heapq
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from pydantic_core import to_jsonable_python

from cantata.bounds import read_json
from cantata.client.records import BatchRow, Row, TextRow
from cantata.errors import ConfigError
from cantata.operation.extras import check_extras
from cantata.values import JsonValue, as_text

DIGESTED_BYTES = 1_000_000  # of a file, which with its size tell it from another
MAX_FIELD_CHARS = 16_000_000  # of a field in CSV
ROW_GROUP = 10_000  # rows that are in memory while Parquet is written
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
COLUMNS = (
    "row",
    "status",
    "output",
    "error",
    "error_code",
    "run_id",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "input",
)

Record = Mapping[str, JsonValue]
"""A result as it is written: its value of each of COLUMNS."""


def format_of(path: str, *, of_results: bool = False) -> str:
    """Return the format of a file, by its name; "-" is JSONL. Raises ConfigError for another, and without the extra for Parquet."""
    known = {suffix: name for suffix, name in SUFFIXES.items() if not (of_results and name == "tsv")}
    found = "jsonl" if path == "-" else known.get(Path(path).suffix.lower())
    if found is None:
        raise ConfigError(
            f"{path}: the format of a batch's file follows from its name: it ends in {', '.join(known)}", source="batch"
        )
    if found == "parquet":
        check_extras("parquet", needed_by=f"{path} (Parquet)")
    return found


# --- rows -------------------------------------------------------------------------------------------------------------------


class RowFile:
    """The file of a batch's rows; "-" is standard input, which is read once. Errors name file, line and column."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._format = format_of(path)
        if path != "-" and not Path(path).is_file():
            raise ConfigError(f"{path}: there is no such file", source="batch")

    @property
    def digest(self) -> str:
        """The digest of its beginning and its size; empty for standard input."""
        if self.path == "-":
            return ""
        with open(self.path, "rb") as file:
            return sha256(b"%d\n" % os.path.getsize(self.path) + file.read(DIGESTED_BYTES)).hexdigest()

    def count(self) -> int | None:
        """Read all rows and return their number, so that a faulty one is found before anything runs; None for standard input."""
        return None if self.path == "-" else sum(1 for _ in self.rows())

    def rows(self) -> Iterator[Row]:
        """Yield the rows. Raises ConfigError for the first faulty one."""
        if self._format == "parquet":
            for group in import_module("pyarrow.parquet").ParquetFile(self.path).iter_batches(ROW_GROUP):
                yield from to_jsonable_python(group.to_pylist())
            return
        file = sys.stdin if self.path == "-" else open(self.path, encoding="utf-8-sig", newline="")  # noqa: SIM115  # closed below
        try:
            if self._format == "jsonl":
                yield from self._json_rows(file)
            else:
                yield from self._csv_rows(file)
        except UnicodeDecodeError as error:
            raise self._fault(f"byte {error.start} of a block is not UTF-8; convert the file to UTF-8") from error
        finally:
            if file is not sys.stdin:
                file.close()

    def _json_rows(self, file: TextIO) -> Iterator[Row]:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                row = read_json(line, "the row")
            except json.JSONDecodeError as error:
                raise self._fault(f"no JSON: {error.msg}", number, f"column {error.colno}") from error
            except ValueError as error:
                raise self._fault(str(error), number) from error
            if not isinstance(row, (dict, str)):
                raise self._fault(f"expected an object or a text in each line, found {line.strip()[:40]}", number)
            yield row

    def _csv_rows(self, file: TextIO) -> Iterator[Row]:
        csv.field_size_limit(MAX_FIELD_CHARS)
        reader = csv.reader(file, strict=True, delimiter="\t" if self._format == "tsv" else ",")
        try:
            header = next(reader, [])
            if twice := next((name for name in header if header.count(name) > 1 or not name), None):
                raise self._fault("the first line names the columns, each once", 1, f"column {twice!r}")
            for row in reader:
                if row and len(row) != len(header):
                    raise self._fault(
                        f"{len(row)} fields, but the first line names {len(header)} columns", reader.line_num
                    )
                if row:
                    yield TextRow(dict(zip(header, row, strict=True)), f"{self.path}: line {reader.line_num}")
        except csv.Error as error:
            raise self._fault(str(error), reader.line_num) from error

    def _fault(self, message: str, line: int | None = None, where: str = "") -> ConfigError:
        places = [self.path, *([f"line {line}"] if line else []), *([where] if where else [])]
        return ConfigError(f"{': '.join(places)}: {message}", source="batch")


# --- results ----------------------------------------------------------------------------------------------------------------


def record_of(row: BatchRow) -> Record:
    """Return a result as it is written."""
    message, code = (row.error.message, row.error.code) if row.error else (None, None)
    known: Record = {
        **row.usage.model_dump(),
        **row.model_dump(mode="json", exclude={"usage"}),
        "error": message,
        "error_code": code,
    }
    return {name: known[name] for name in COLUMNS}


class ResultFile:
    """The file that gets the results of a batch; "-" is standard output.

    Results are appended in JSONL or CSV. Parquet cannot grow: its results are in `OUT.part.jsonl` until the batch is done.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._final = format_of(path, of_results=True)
        self._format = "jsonl" if self._final == "parquet" else self._final
        self._work = Path(f"{path}.part.jsonl" if self._final == "parquet" else path)
        self._file: BinaryIO | None = None

    @property
    def exists(self) -> bool:
        """True if there is a file already."""
        return self.path != "-" and (Path(self.path).exists() or self._work.exists())

    def open(self, size: int, round_: int) -> None:
        """Open the file to append, at the size that it had when the last result was delivered; what is behind it is written again."""
        if self.path == "-":
            return
        if self._retried(round_).exists():  # a retry was stopped just before this
            self._retried(round_).replace(self._work)
        found = self._work.stat().st_size if self._work.exists() else 0
        if found < size:
            message = f"{self._work} has {found:,} bytes, but {size:,} were delivered to it; put it back, or begin with another --name"
            raise ConfigError(message, source="batch")
        self._file = open(self._work, "r+b" if self._work.exists() else "x+b")  # noqa: SIM115  # closed by `close`
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, rows: Sequence[BatchRow]) -> int | None:
        """Write results, so that they outlast a crash of this machine; return the size after that, None for standard output."""
        records = map(record_of, rows)
        if self._file is None:
            sys.stdout.write(_text_of(records, self._format, is_first=False))
            sys.stdout.flush()
            return None
        self._file.write(_text_of(records, self._format, is_first=self._file.tell() == 0).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self, *, ordered: bool) -> None:
        """Make the file complete when the batch is done: in order, if it is ordered, and Parquet. Repeated, it changes nothing."""
        if self.path == "-" or not self._work.exists():
            return
        if ordered and (sorted_up_to := self._sorted()) is not None:
            first, rest = islice(self._records(), sorted_up_to), islice(self._records(), sorted_up_to, None)
            self._replace(heapq.merge(first, rest, key=lambda record: int(str(record["row"]))), self._work)
        if self._final == "parquet":
            _write_parquet(self._records(), self.path)
            self._work.unlink()

    def prepare_retry(self, is_retried: Callable[[int], bool], round_: int) -> int | None:
        """Write the results without those of the rows to retry to a file that `open` puts in place in that round; return its size."""
        if self.path == "-":
            return None
        kept = (record for record in self._records() if not is_retried(int(str(record["row"]))))
        self._replace(kept, self._retried(round_))
        return self._retried(round_).stat().st_size

    def _retried(self, round_: int) -> Path:
        return Path(f"{self._work}.retry-{round_}")

    def _sorted(self) -> int | None:
        """Return after how many results their order breaks; None if it does not."""
        numbers = (int(str(record["row"])) for record in self._records())
        return next((count for count, (one, other) in enumerate(pairwise(numbers), 1) if other < one), None)

    def _records(self) -> Iterator[Record]:
        """Yield the results in the file."""
        if not self._work.exists():
            yield from RowFile(self.path).rows()  # type: ignore[misc]  # objects, as we wrote them
        elif self._format == "jsonl":
            with open(self._work, encoding="utf-8") as file:
                yield from map(json.loads, file)
        else:
            with open(self._work, encoding="utf-8", newline="") as file:
                csv.field_size_limit(MAX_FIELD_CHARS)
                yield from csv.DictReader(file)

    def _replace(self, records: Iterable[Record], path: Path) -> None:
        new = Path(f"{path}.new")
        with open(new, "w", encoding="utf-8", newline="") as file:
            for number, group in enumerate(_groups(records)):
                file.write(_text_of(group, self._format, is_first=number == 0))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


def _groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    records = iter(records)
    while group := [*islice(records, ROW_GROUP)]:
        yield group


def _text_of(records: Iterable[Record], name: str, *, is_first: bool) -> str:
    if name == "jsonl":
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if is_first:
        writer.writerow(COLUMNS)
    writer.writerows(["" if record[name] is None else as_text(record[name]) for name in COLUMNS] for record in records)
    return text.getvalue()


def _write_parquet(records: Iterable[Record], path: str) -> None:
    """Write results as Parquet, in groups of rows. Outputs and inputs are texts: as they are, else as JSON."""
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    types = {
        "row": arrow.int64(),
        "input_tokens": arrow.int64(),
        "output_tokens": arrow.int64(),
        "cost_usd": arrow.float64(),
    }
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in COLUMNS])
    new = f"{path}.new"
    with parquet.ParquetWriter(new, schema) as writer:
        for group in _groups(records):
            rows = [{**each, **{name: _text_or_none(each[name]) for name in ("output", "input")}} for each in group]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    os.replace(new, path)


def _text_or_none(value: JsonValue) -> str | None:
    return None if value is None else as_text(value)
