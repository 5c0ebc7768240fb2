"""Files of batches: each format gives the same rows, a fault names its place, and results are where they were delivered."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cantata.errors import ConfigError
from cantata.features.batches.rows import BatchRow
from cantata.surfaces.cli.batch_files import COLUMNS, ResultFile, RowFile, format_of
from cantata.values import ErrorInfo, JsonValue, Usage

ROWS = [{"text": "a, b", "n": "1"}, {"text": 'two\n"lines"', "n": "2"}, {"text": "ü", "n": "3"}]


def write(path: Path) -> Path:
    """Write ROWS in the format of the file's name."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
        return path
    if path.suffix == ".jsonl":
        path.write_text("\n\n".join(json.dumps(row) for row in ROWS), "utf-8")
        return path
    tab = "\t" if path.suffix == ".tsv" else ","
    path.write_text(f'\ufefftext{tab}n\r\n"a, b"{tab}1\r\n"two\n""lines"""{tab}2\r\nü{tab}3\r\n', "utf-8", newline="")
    return path


def result(row: int, output: JsonValue = "yes", *, failed: bool = False) -> BatchRow:
    error = ErrorInfo(code="broke", message="it, broke\nat once") if failed else None
    usage = Usage(input_tokens=3, output_tokens=1, cost_usd=0.5)
    status: Any = "failed" if failed else "succeeded"
    return BatchRow(
        row=row,
        input={"n": row},
        status=status,
        output=None if failed else output,
        error=error,
        run_id=f"run{row}",
        usage=usage,
    )


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet"])
def test_each_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    file = RowFile(str(write(tmp_path / f"rows.{suffix}")))

    assert [*file.rows()] == ROWS
    assert file.count() == 3


def test_rows_of_standard_input_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('"one"\n{"text": "two"}\n'))

    file = RowFile("-")

    assert (file.count(), file.digest) == (None, "")
    assert [*file.rows()] == ["one", {"text": "two"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.jsonl", b'{"a": 1}\n{"a": }\n', r"r\.jsonl: line 2: column 7: no JSON"),
        ("r.jsonl", b"[1]\n", r"r\.jsonl: line 1: expected an object or a text in each line, found \[1\]"),
        ("r.csv", b"a,b\n1,2\n3\n", r"r\.csv: line 3: 1 fields, but the first line names 2 columns"),
        ("r.csv", b"a,b,a\n", r"r\.csv: line 1: column 'a': the first line names the columns, each once"),
        ("r.csv", b'a\n"x\n', r"r\.csv: line 2: unexpected end of data"),
        ("r.csv", b"a\n\xff\n", r"r\.csv: byte 2 of a block is not UTF-8"),
    ],
)  # fmt: skip
def test_a_faulty_row_is_found_before_anything_runs(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match=message):
        RowFile(str(tmp_path / name)).count()


def test_a_file_without_a_known_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rows\.xlsx: .* ends in \.jsonl, \.ndjson, \.csv, \.tsv, \.parquet"):
        format_of("rows.xlsx")
    with pytest.raises(ConfigError, match=r"there is no such file"):
        RowFile("rows.csv")


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("a\n1\n")
    before = RowFile(str(path)).digest

    path.write_text("a\n2\n")

    assert RowFile(str(path)).digest != before


def read(path: Path) -> list[dict[str, Any]]:
    return [dict(row) for row in RowFile(str(path)).rows() if not isinstance(row, str)]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_what_was_written_and_not_delivered_is_written_again_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    first = ResultFile(str(path))
    first.open(0, 0)
    delivered = first.append([result(0)])
    first.append([result(1), result(2, failed=True)])
    first.close()
    assert delivered

    again = ResultFile(str(path))
    again.open(delivered, 0)
    again.append([result(2, failed=True), result(1)])
    again.close()

    found = read(path)
    assert [int(row["row"]) for row in found] == [0, 2, 1]
    assert tuple(found[0]) == COLUMNS
    assert (found[1]["error"], found[1]["error_code"], found[2]["output"]) == ("it, broke\nat once", "broke", "yes")


def test_a_file_that_lost_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("{}\n")

    with pytest.raises(ConfigError, match=r"out\.jsonl has 3 bytes, but 500 were delivered to it; put it back"):
        ResultFile(str(path)).open(500, 0)


def test_parquet_is_written_when_the_batch_is_done(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    file = ResultFile(str(path))
    file.open(0, 0)
    file.append([result(0, {"label": "x"}), result(1, failed=True)])
    file.close()
    assert not path.exists()

    file.finish(ordered=False)
    ResultFile(str(path)).finish(ordered=False)

    assert [each.name for each in tmp_path.iterdir()] == ["out.parquet"]
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == [*COLUMNS]
    assert table.column("output").to_pylist() == ['{"label": "x"}', None]
    assert table.column("cost_usd").to_pylist() == [0.5, 0.5]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_retry_puts_results_in_place_of_failures_in_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    file = ResultFile(str(path))
    file.open(0, 0)
    file.append([result(row, failed=row % 2 == 1) for row in range(6)])
    file.close()
    file.finish(ordered=True)

    size = ResultFile(str(path)).prepare_retry(lambda row: row % 2 == 1, 1)
    again = ResultFile(str(path))
    assert size
    again.open(size, 1)
    again.append([result(row, f"now {row}") for row in (1, 3, 5)])
    again.close()
    again.finish(ordered=True)

    found = read(path)
    assert [int(row["row"]) for row in found] == [*range(6)]
    assert [row["output"] for row in found] == ["yes", "now 1", "yes", "now 3", "yes", "now 5"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
