"""Each alert fires where it should and keeps silent where it should, as Prometheus's own `promtool` evaluates the rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance import write_metrics

Series = dict[str, str]
"""A series → its values, one a minute, in promtool's notation: `1x90` is ninety-one times 1, `0+5x90` grows by 5."""

REFUSED = {"cantata_redis_writable": "0x90", 'cantata_queue_ready{queue="tools"}': "9x90", "cantata_redis_up": "1x90"}
"""While Redis refuses writes there are no metrics of workers, slots and the sweep."""


@dataclass(frozen=True)
class Case:
    """Series for which an alert fires, and others for which it does not."""

    fires: Series
    silent: Series
    at: str = "80m"
    """When it fires, after the series began."""
    also_silent: Series | None = None
    """Other series for which it does not fire."""


CASES = {
    "CantataGatewayDown": Case({'cantata_build_info{version="1"}': "1x90"}, {
        'up{job="cantata-gateway",instance="a"}': "0x90", 'up{job="cantata-gateway",instance="b"}': "1x90",
        'cantata_redis_up{job="pods",instance="b"}': "1x90"}, at="1m"),
    "CantataWorkersUnseen": Case(
        {'cantata_redis_up{instance="a"}': "1x90", 'cantata_build_info{version="1",instance="a"}': "1x90"},
        {'cantata_redis_up{instance="a"}': "1x90", 'cantata_build_info{version="1",instance="a"}': "1x90",
         'cantata_build_info{version="1",instance="b"}': "1x90"}),
    "CantataRedisUnreachable": Case({"cantata_redis_up": "0x90"}, {"cantata_redis_up": "1x90"}, at="1m"),
    "CantataRedisRefusesWrites": Case(REFUSED, {"cantata_redis_writable": "1x90"}, at="1m"),
    "CantataRedisMemoryFilling": Case({"cantata_redis_memory_full_seconds": "7200x90"}, {
        "cantata_redis_memory_full_seconds": "90000x90"}),
    "CantataSweepStopped": Case({"cantata_sweep_age_seconds": "40+60x90"}, REFUSED),
    "CantataRedisFull": Case(
        {"cantata_redis_memory_bytes": "92x90", "cantata_redis_memory_limit_bytes": "100x90"},
        {"cantata_redis_memory_bytes": "85x90", "cantata_redis_memory_limit_bytes": "100x90"}, at="1m"),
    "CantataRedisMemoryHigh": Case(
        {"cantata_redis_memory_bytes": "90x90", "cantata_redis_memory_limit_bytes": "100x90"},
        {"cantata_redis_memory_bytes": "90x90", "cantata_redis_memory_limit_bytes": "0x90"}),
    "CantataWorkersLost": Case({"cantata_workers_lost": "1x90"}, {"cantata_workers_lost": "0x90"}, at="1m"),
    "CantataCoordinatorMissing": Case({'cantata_queue_workers{queue="coordinator"}': "0x90"}, {
        **REFUSED, 'cantata_queue_workers{queue="tools"}': "0x90"}, at="1m"),
    "CantataVersionsMixed": Case({'cantata_build_info{version="1"}': "1x90", 'cantata_build_info{version="2"}': "1x90"}, {
        'cantata_build_info{version="1",instance="a"}': "1x90", 'cantata_build_info{version="1",instance="b"}': "1x90"}),
    "CantataCodeBroken": Case({"cantata_workers_without_code": "1x90"}, {"cantata_workers_without_code": "0x90"}, at="1m"),
    "CantataCodeMixed": Case({"cantata_code_modules_mixed": "1x90"}, {"cantata_code_modules_mixed": "0x90"}),
    "CantataQueueUnserved": Case(
        {'cantata_queue_ready{queue="gpu"}': "3x90", 'cantata_queue_workers{queue="gpu"}': "0x90",
         'cantata_queue_paused{queue="gpu"}': "0x90"}, REFUSED, also_silent={
            'cantata_queue_ready{queue="gpu"}': "3x90", 'cantata_queue_workers{queue="gpu"}': "0x90",
            'cantata_queue_paused{queue="gpu"}': "1x90"}),
    "CantataQueueSlow": Case({'cantata_queue_oldest_wait_seconds{queue="tools"}': "90x90"}, {
        'cantata_queue_oldest_wait_seconds{queue="tools"}': "30x90"}, also_silent={
        'cantata_queue_oldest_wait_seconds{queue="tools"}': "90x90", 'cantata_queue_paused{queue="tools"}': "1x90"}),
    "CantataQueuePaused": Case(
        {'cantata_queue_paused{queue="tools"}': "1x90", 'cantata_queue_ready{queue="tools"}': "5x90"},
        {'cantata_queue_paused{queue="tools"}': "1x90", 'cantata_queue_ready{queue="tools"}': "0x90",
         'cantata_queue_paused{queue="agents"}': "0x90", 'cantata_queue_ready{queue="agents"}': "5x90"}),
    "CantataDeadLetters": Case({"cantata_dead_letters": "1x90"}, {"cantata_dead_letters": "0x90"}),
    "CantataWorkersFull": Case(
        {'cantata_queue_leased{queue="tools"}': "4x90", 'cantata_queue_slots{queue="tools"}': "4x90",
         'cantata_queue_ready{queue="tools"}': "1x90"},
        {'cantata_queue_leased{queue="tools"}': "0x90", 'cantata_queue_slots{queue="tools"}': "0x90",
         'cantata_queue_ready{queue="tools"}': "1x90"}, also_silent={
            'cantata_queue_leased{queue="tools"}': "4x90", 'cantata_queue_slots{queue="tools"}': "4x90",
            'cantata_queue_ready{queue="tools"}': "1x90", 'cantata_queue_paused{queue="tools"}': "1x90"}),
    "CantataRunsFailing": Case(
        {'cantata_runs_closed_total{status="failed"}': "0+2x90", 'cantata_runs_closed_total{status="succeeded"}': "0+8x90"},
        {'cantata_runs_closed_total{status="failed"}': "0+2x90", 'cantata_runs_closed_total{status="succeeded"}': "0+80x90"}),
    "CantataWebhooksFailing": Case({'cantata_webhooks_total{status="failed"}': "0+1x90"}, {
        'cantata_webhooks_total{status="succeeded"}': "0+1x90"}),
    "CantataSchedulesOverdue": Case({"cantata_schedules_overdue": "1x90"}, {"cantata_schedules_overdue": "0x90"}),
    "CantataSchedulesMissed": Case({'cantata_schedule_times_total{outcome="missed"}': "0+1x90"}, {
        'cantata_schedule_times_total{outcome="fired"}': "0+1x90"}),
    "CantataBatchRowsFailing": Case(
        {'cantata_batch_rows_total{outcome="failed"}': "0+2x90", 'cantata_batch_rows_total{outcome="succeeded"}': "0+2x90"},
        {'cantata_batch_rows_total{outcome="failed"}': "0+1x90", 'cantata_batch_rows_total{outcome="succeeded"}': "0+90x90"}),
    "CantataLeasesLost": Case({"cantata_leases_lost_total": "0+1x90"}, {"cantata_leases_lost_total": "7x90"}),
    "CantataModelFailing": Case(
        {'cantata_model_calls_total{model="m",outcome="error"}': "0+3x90", 'cantata_model_calls_total{model="m",outcome="ok"}': "0+3x90"},
        {'cantata_model_calls_total{model="m",outcome="cancelled"}': "0+3x90",
         'cantata_model_calls_total{model="m",outcome="ok"}': "0+3x90"}),
    "CantataLimitsTight": Case({'cantata_limit_waits_total{model="m",reason="rpm"}': "0+120x90"}, {
        'cantata_limit_waits_total{model="m",reason="rpm"}': "0+1x90"}),
    "CantataBudgetSpent": Case({'cantata_budget_refusals_total{budget="day"}': "0+1x90"}, {
        'cantata_budget_refusals_total{budget="day"}': "3x90"}),
}  # fmt: skip


def promtool() -> str:
    """The path of Prometheus's tool, which Debian's package `prometheus` has."""
    if found := shutil.which("promtool"):
        return found
    missing = "promtool is missing: Debian: apt-get install --no-install-recommends prometheus"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def asked(name: str, series: Series, at: str, *, fires: bool) -> dict[str, Any]:
    """A test of one alert in promtool's form."""
    return {
        "interval": "1m",
        "name": f"{name} {'fires' if fires else 'keeps silent'}",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def test_each_alert_has_a_case() -> None:
    assert CASES.keys() == {rule["alert"] for rule in write_metrics.rules()}


@pytest.mark.slow("promtool evaluates each rule for 80 minutes, twice")
def test_each_alert_fires_where_it_should_and_keeps_silent_where_it_should(tmp_path: Path) -> None:
    tests = [
        asked(name, series, case.at, fires=fires)
        for name, case in CASES.items()
        for series, fires in ((case.fires, True), (case.silent, False), (case.also_silent, False))
        if series is not None
    ]
    file = tmp_path / "alerts.test.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(write_metrics.ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )

    ran = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr + json.dumps([each["name"] for each in tests])
