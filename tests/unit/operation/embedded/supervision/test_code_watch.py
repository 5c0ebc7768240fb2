from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cantata.operation.embedded.supervision.code_watch import (
    MAX_SETTLE_S,
    SETTLE_S,
    CodeStatus,
    CodeWatch,
    WatchedFile,
    compare,
)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def save(path: Path, text: str) -> None:
    """Save as editors do: under another name first."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


HERE = (1, 1, 1)


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"a.py": WatchedFile(HERE, "1"), "b.py": WatchedFile(HERE, "1")}, CodeStatus()),
        ({"a.py": WatchedFile(HERE, "2"), "b.py": WatchedFile(HERE, "1")}, CodeStatus(("a.py",))),
        (
            {"a.py": WatchedFile(HERE, "2"), "b.py": WatchedFile(HERE, "2", "line 1: no")},
            CodeStatus(fault="b.py: line 1: no"),
        ),
        (
            {"a.py": WatchedFile(HERE, "1", "line 1: no"), "b.py": WatchedFile(HERE, "1")},
            CodeStatus(),
        ),  # it was so when it was read
        ({"a.py": WatchedFile(), "b.py": WatchedFile(HERE, "1")}, CodeStatus(fault="a.py: the file is gone")),
        (
            {"a.py": WatchedFile(), "b.py": WatchedFile(HERE, "2")},
            CodeStatus(("b.py",)),
        ),  # it may need the other no more
    ],
)
def test_a_process_is_replaced_if_what_it_read_has_changed_and_can_be_imported(
    files: dict[str, WatchedFile], status: CodeStatus
) -> None:
    assert compare({"a.py": {"1"}, "b.py": {"1"}}, files) == status


def test_a_process_whose_children_read_two_versions_is_replaced() -> None:
    assert compare({"a.py": {"1", "2"}}, {"a.py": WatchedFile(HERE, "2")}) == CodeStatus(("a.py",))


def test_a_change_counts_when_nothing_changes_any_more(tmp_path: Path) -> None:
    path, watch = tmp_path / "a.py", CodeWatch()
    save(path, "x = 1\n")
    assert watch.poll({str(path): {"1"}}, 0.0)
    assert watch.files[str(path)].digest == digest("x = 1\n")

    save(path, "x = 2\n")

    assert not watch.poll({str(path): {"1"}}, 1.0)
    assert watch.poll({str(path): {"1"}}, 1.0 + SETTLE_S + 0.001)
    assert watch.files[str(path)].digest == digest("x = 2\n")


def test_a_file_that_changes_all_the_time_is_served_now_and_then(tmp_path: Path) -> None:
    path, watch, served = tmp_path / "a.py", CodeWatch(), []
    for number in range(20):
        save(path, f"x = {number}\n")
        if watch.poll({str(path): {"1"}}, number * SETTLE_S / 2):
            served.append(number)

    assert served[0] == 0
    assert 1 < len(served) <= 2 + 20 * SETTLE_S / 2 / MAX_SETTLE_S


def test_a_file_is_gone_for_a_moment_while_it_is_saved(tmp_path: Path) -> None:
    path, watch = tmp_path / "a.py", CodeWatch()
    save(path, "x = 1\n")
    watch.poll({str(path): {"1"}}, 0.0)
    path.unlink()

    assert not watch.poll({str(path): {"1"}}, 1.0)
    save(path, "x = 1\n")
    assert not watch.poll({str(path): {"1"}}, 1.1)
    assert watch.poll({str(path): {"1"}}, 1.1 + SETTLE_S + 0.001)

    assert compare({str(path): {digest("x = 1\n")}}, watch.files) == CodeStatus()


@pytest.mark.parametrize(
    ("text", "fault"), [("def f(:\n", "line 1: invalid syntax"), ("x = 1\0\n", "null bytes"), ("\n  x\n", "line 2")]
)
def test_a_file_that_cannot_be_imported_is_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    path, watch = tmp_path / "a.py", CodeWatch()
    path.write_text(text)

    watch.poll({str(path): {"1"}}, 0.0)

    assert fault in watch.files[str(path)].fault


def test_a_file_that_is_served_as_it_is_need_not_be_compiled(tmp_path: Path) -> None:
    path, watch = tmp_path / "a.py", CodeWatch()
    path.write_text("def f(:\n")

    watch.poll({str(path): {digest("def f(:\n")}}, 0.0)

    assert watch.files[str(path)].fault == ""


def test_an_unreadable_file_is_a_fault(tmp_path: Path) -> None:
    path, watch = tmp_path / "a.py", CodeWatch()
    path.mkdir()

    watch.poll({str(path): {"1"}}, 0.0)

    assert compare({str(path): {"1"}}, watch.files).fault == f"{path}: {os.strerror(21)}"


def test_files_that_nobody_serves_any_more_are_not_watched(tmp_path: Path) -> None:
    watch = CodeWatch()
    watch.poll({str(tmp_path / "a.py"): {"1"}, str(tmp_path / "b.py"): {"1"}}, 0.0)

    watch.poll({str(tmp_path / "b.py"): {"1"}}, 1.0)

    assert list(watch.files) == [str(tmp_path / "b.py")]
