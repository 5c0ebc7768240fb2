"""What processes count, in files that others read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from cantata.operation import metrics
from cantata.operation.metrics.counts import ENDED, MAX_VALUES, OTHER, Counts, files, fold
from cantata.operation.metrics.families import FAMILIES
from cantata.operation.metrics.http_server import make_handler, registry
from cantata.operation.metrics.worker_metrics import _MergedCounts
from cantata.values import Usage


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    """Counts that this process counts with."""
    counts = Counts(tmp_path)
    metrics.set_counts(counts)
    yield counts
    metrics.set_counts(None)
    counts.close()


def shown(folder: Path) -> Callable[..., float | None]:
    registry = CollectorRegistry()
    registry.register(_MergedCounts(folder))
    return lambda name, **labels: registry.get_sample_value(name, labels)


def in_children(folder: Path, *codes: str) -> None:
    """Count in processes that are then killed, one after the other; they are forks of one that has imported what counts."""
    counting = f"""
import os, signal
from pathlib import Path
from cantata.operation.metrics.counts import Counts
for code in {codes!r}:
    pid = os.fork()
    if not pid:
        counts = Counts(Path({str(folder)!r}))
        exec(code)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
"""
    subprocess.run([sys.executable, "-c", counting], check=True, timeout=40)


def test_what_is_off_counts_nothing_and_needs_no_library() -> None:
    code = (
        "import sys\nfrom cantata.operation import metrics\n"
        "metrics.record_step_ended('k', '', 'done', 1.0)\nprint('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_steps_are_counted_and_timed(counts: Counts, tmp_path: Path) -> None:
    metrics.record_step_started("tools", 0.25)
    metrics.record_step_started("tools", None)
    metrics.record_step_ended("tool.call", "tools:add", "done", 0.005)
    metrics.record_step_ended("tool.call", "tools:add", "done", 0.0051)
    metrics.record_step_ended("tool.call", "tools:add", "failed", 2.0)

    value = shown(tmp_path)
    assert value("cantata_steps_total", kind="tool.call", status="done") == 2
    assert value("cantata_steps_total", kind="tool.call", status="failed") == 1
    assert value("cantata_step_duration_seconds_bucket", kind="tool.call", le="0.005") == 1, (
        "a bound is within its bucket"
    )
    assert value("cantata_step_duration_seconds_bucket", kind="tool.call", le="0.01") == 2
    assert value("cantata_step_duration_seconds_bucket", kind="tool.call", le="+Inf") == 3
    assert value("cantata_step_duration_seconds_count", kind="tool.call") == 3
    assert value("cantata_step_duration_seconds_sum", kind="tool.call") == pytest.approx(2.0101)
    assert value("cantata_tool_calls_total", tool="add", outcome="done") == 2
    assert value("cantata_tool_calls_total", tool="add", outcome="failed") == 1
    assert value("cantata_queue_wait_seconds_count", queue="tools") == 1, "what ran ahead waited in no queue"


def test_model_calls_are_counted_with_what_they_took_and_cost(counts: Counts, tmp_path: Path) -> None:
    metrics.record_model_call(
        "m", "ok", "acme", 1.5, Usage(input_tokens=10, output_tokens=4, cost_usd=0.25, model_calls=1)
    )
    metrics.record_model_call("m", "ok", "acme", 1.5, Usage(input_tokens=1, output_tokens=1, model_calls=1))
    metrics.record_model_call("m", "rate_limited", "", 0.1, None)
    metrics.record_limit_wait("m", "rpm", 2.5)
    metrics.record_budget_refusal("run")

    value = shown(tmp_path)
    assert [
        value("cantata_model_calls_total", model="m", outcome=outcome, tenant="") for outcome in ("ok", "rate_limited")
    ] == [
        2,
        1,
    ]
    assert [
        value("cantata_model_tokens_total", model="m", direction=way, tenant="") for way in ("input", "output")
    ] == [11, 5]
    assert value("cantata_model_cost_usd_total", model="m", tenant="") == 0.25
    assert value("cantata_model_call_duration_seconds_count", model="m") == 3
    assert value("cantata_limit_wait_seconds_total", model="m", reason="rpm") == 2.5
    assert value("cantata_budget_refusals_total", budget="run") == 1


def test_all_that_a_worker_is_said_to_count_it_counts(counts: Counts, tmp_path: Path) -> None:
    metrics.record_step_started("tools", 0.25)
    metrics.record_step_ended("tool.call", "tools:add", "done", 0.005)
    metrics.record_model_call("m", "ok", "acme", 1.5, Usage(input_tokens=10))
    metrics.record_limit_wait("m", "rpm", 2.5)
    metrics.record_budget_refusal("run")
    metrics.record_schedule_times("fired", 1)
    metrics.record_schedule_lateness(0.2)
    metrics.record_sweep_error("schedules")
    metrics.record_run_ended("report", "succeeded", "", 1.0)
    metrics.record_first_token("m", 0.2)

    found = {(metric.name, metric.type) for metric in _MergedCounts(tmp_path).collect()}
    assert found == {
        (family.name.removesuffix("_total"), family.kind) for family in FAMILIES if family.source == "worker"
    }


def test_a_label_that_users_fill_has_so_many_values_at_most(counts: Counts, tmp_path: Path) -> None:
    for number in range(MAX_VALUES + 50):
        counts.add("cantata_model_cost_usd_total", (f"model-{number}", ""), 1.0)
    counts.add("cantata_model_cost_usd_total", ("model-0", ""), 1.0)

    value = shown(tmp_path)
    assert value("cantata_model_cost_usd_total", model=OTHER, tenant="") == 50
    assert value("cantata_model_cost_usd_total", model="model-0", tenant="") == 2


def test_tenants_are_a_label_only_where_that_is_set_and_so_many_at_most(counts: Counts, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    some = Counts(tmp_path / "some", tenants=2)
    for each in (counts, some):
        for tenant in ("acme", "globex", "initech", "umbrella", "acme", ""):
            each.add("cantata_model_cost_usd_total", ("m", tenant), 1.0)
    some.close()

    without, with_two = shown(tmp_path), shown(tmp_path / "some")
    assert without("cantata_model_cost_usd_total", model="m", tenant="") == 6
    found = {
        tenant: with_two("cantata_model_cost_usd_total", model="m", tenant=tenant)
        for tenant in ("acme", "globex", OTHER, "")
    }
    assert found == {"acme": 2, "globex": 1, OTHER: 2, "": 1}


def test_threads_lose_no_count(counts: Counts, tmp_path: Path) -> None:
    def count() -> None:
        for _ in range(500):
            counts.add("cantata_steps_total", ("tool.call", "done"))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert shown(tmp_path)("cantata_steps_total", kind="tool.call", status="done") == 4000


def test_what_killed_processes_counted_stays_and_their_files_go(counts: Counts, tmp_path: Path) -> None:
    counts.add("cantata_steps_total", ("tool.call", "done"))
    steps = "[counts.add('cantata_steps_total', ('tool.call', 'done')) for _ in range(3)]"
    waits = "counts.observe('cantata_queue_wait_seconds', ('tools',), 0.3)"
    in_children(tmp_path, steps, waits, steps, waits)
    value = shown(tmp_path)

    for _ in range(2):
        assert value("cantata_steps_total", kind="tool.call", status="done") == 7
        assert value("cantata_queue_wait_seconds_count", queue="tools") == 2
        assert value("cantata_queue_wait_seconds_sum", queue="tools") == pytest.approx(0.6)
    assert {file.stem.partition("_")[2] for file in files(tmp_path)} == {ENDED, str(os.getpid())}


def test_a_process_goes_on_with_what_a_dead_one_of_its_id_had_counted(counts: Counts, tmp_path: Path) -> None:
    counts.add("cantata_steps_total", ("tool.call", "done"))
    counts.close()

    later = Counts(tmp_path)
    later.add("cantata_steps_total", ("tool.call", "done"))
    later.close()

    assert shown(tmp_path)("cantata_steps_total", kind="tool.call", status="done") == 2


def test_a_process_killed_before_it_counted_disturbs_nobody(counts: Counts, tmp_path: Path) -> None:
    counts.add("cantata_steps_total", ("tool.call", "done"))
    (tmp_path / f"counter_{2**22 + 1}.db").write_bytes(bytes(2**16))  # made, and nothing written to it yet

    assert shown(tmp_path)("cantata_steps_total", kind="tool.call", status="done") == 1
    assert {file.stem.partition("_")[2] for file in files(tmp_path)} == {ENDED, str(os.getpid())}


def test_a_full_disk_costs_only_the_series_that_are_new(
    counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    counts.add("cantata_steps_total", ("tool.call", "done"))
    in_children(tmp_path, "counts.add('cantata_steps_total', ('tool.call', 'done'))")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        for number in range(MAX_VALUES):
            counts.observe("cantata_model_call_duration_seconds", (f"model-{number}",), 1.0)
        counts.add("cantata_steps_total", ("tool.call", "done"))
        value = shown(tmp_path)
        assert value("cantata_steps_total", kind="tool.call", status="done") == 3, (
            "those of the dead are read where they lie"
        )
        assert value("cantata_model_call_duration_seconds_count", model="model-0") == 1
        assert not value("cantata_model_call_duration_seconds_count", model=f"model-{MAX_VALUES - 1}")
        with pytest.raises(OSError, match="No space"):
            Counts(tmp_path / "..")

    counts.observe("cantata_model_call_duration_seconds", (f"model-{MAX_VALUES - 1}",), 1.0)
    assert value("cantata_model_call_duration_seconds_count", model=f"model-{MAX_VALUES - 1}") == 1, (
        "once there is room"
    )
    assert value("cantata_steps_total", kind="tool.call", status="done") == 3


def test_a_clock_that_was_set_back_takes_nothing_from_a_sum(counts: Counts, tmp_path: Path) -> None:
    for took_s in (2.0, -5.0):
        metrics.record_step_ended("tool.call", "tools:add", "done", took_s)

    assert shown(tmp_path)("cantata_step_duration_seconds_sum", kind="tool.call") == 2.0
    assert shown(tmp_path)("cantata_step_duration_seconds_count", kind="tool.call") == 2


def test_a_label_that_is_no_text_is_shown_as_well_as_can_be(counts: Counts, tmp_path: Path) -> None:
    counts.add("cantata_model_cost_usd_total", ("half\ud800", ""), 1.0)

    assert b'model="half?"' in make_handler(registry("1", _MergedCounts(tmp_path)))("", "").body


def test_a_file_that_is_just_being_made_disturbs_nobody(counts: Counts, tmp_path: Path) -> None:
    counts.add("cantata_steps_total", ("tool.call", "done"))
    (tmp_path / f"counter_{2**22 + 1}.db").touch()

    fold(tmp_path)

    assert shown(tmp_path)("cantata_steps_total", kind="tool.call", status="done") == 1
