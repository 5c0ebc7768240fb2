"""Where metrics are shown, and what is left when their process has gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from cantata.errors import ConfigError, UnavailableError
from cantata.operation import metrics
from cantata.operation.embedded import Home
from cantata.operation.embedded import ports as embedded_ports
from cantata.operation.embedded.stack_plan import make_plan, worker_command
from cantata.operation.metrics import http_server
from cantata.operation.metrics.http_server import MetricsServer, ScrapeResponse
from cantata.operation.metrics.scrape_address import ScrapeAddress, scrape_address
from cantata.operation.metrics.worker_metrics import CountsFolder, WorkerMetrics
from cantata.surfaces.cli.commands.processes.worker import workers_for

HERE = ScrapeAddress("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def own_config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """CountsFolders are made here, not beside those of others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    metrics.set_counts(None)


def test_without_a_port_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_METRICS_PORT", raising=False)

    assert scrape_address() is None
    assert scrape_address(0) == HERE


def test_the_environment_names_port_and_host_and_the_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_METRICS_PORT", "9464")
    monkeypatch.setenv("CANTATA_METRICS_HOST", "0.0.0.0")

    assert scrape_address() == ScrapeAddress("0.0.0.0", 9464)
    assert scrape_address(1) == ScrapeAddress("0.0.0.0", 1)


def test_a_port_that_is_none_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_METRICS_PORT", "70000")

    with pytest.raises(ConfigError, match="CANTATA_METRICS_PORT"):
        scrape_address()


def test_workers_that_are_started_together_have_ports_that_follow_each_other() -> None:
    def ports(first: int | None) -> list[str]:
        workers = workers_for(["coordinator", "agents", "tools"], None, None, first)
        return [each.command[-1] for each in workers if "--metrics-port" in each.command]

    assert ports(9464) == ["9464", "9465", "9466"]
    assert ports(0) == ["0", "0", "0"]
    assert ports(None) == []


def test_a_stack_shows_its_gateway_at_the_port_and_its_workers_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def ports() -> dict[str, str]:
        with tempfile.TemporaryDirectory(prefix="cm", dir="/tmp") as folder:
            home = Home(Path(folder))
            bound = embedded_ports.bind(home, {"flower": 0, "gateway": 0})
            services = make_plan(home, agents=2, tools=1, ports=bound, config=None, command=worker_command).services
            embedded_ports.close(bound)
        return {each.name: each.command[-1] for each in services if "--metrics-port" in each.command}

    monkeypatch.setenv("CANTATA_METRICS_PORT", "9464")
    assert ports() == {"gateway": "9464", "coordinator": "9465", "agents": "9466", "agents-2": "9467", "tools": "9468"}
    monkeypatch.delenv("CANTATA_METRICS_PORT")
    assert ports() == {}


def test_a_port_that_is_taken_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BIND_TIMEOUT_S", 0.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(UnavailableError, match=f"port {port}: Address already in use; name another"):
            MetricsServer(ScrapeAddress("127.0.0.1", port), {})


def test_a_page_that_breaks_is_an_answer_and_the_next_one_works() -> None:
    def broken(_query: str, _accept: str) -> ScrapeResponse:
        raise ValueError("secret")

    shown = MetricsServer(
        HERE,
        {
            "/broken": broken,
            "/query": lambda query, accept: ScrapeResponse(200, "text/plain", f"{query} {accept}".encode()),
        },
    )
    try:
        failed = httpx.get(f"{shown.url}/broken")
        assert (failed.status_code, "secret" in failed.text) == (500, False)
        assert httpx.get(f"{shown.url}/query?a=b", headers={"Accept": "x/y"}).text == "a=b x/y"
        assert httpx.get(f"{shown.url}/nothing").status_code == 404
    finally:
        shown.close()


def test_metrics_of_a_worker_are_served_and_leave_nothing_behind(own_config_folder: Path) -> None:
    shown = WorkerMetrics(HERE, "9.9.9")
    metrics.record_step_ended("tool.call", "tools:add", "done", 0.1)

    plain = httpx.get(f"{shown.url}/metrics")
    modern = httpx.get(f"{shown.url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    shown.close()

    assert 'cantata_steps_total{kind="tool.call",status="done"} 1.0' in plain.text
    assert 'cantata_build_info{version="9.9.9"} 1.0' in plain.text
    assert modern.text.endswith("# EOF\n")
    assert list(own_config_folder.iterdir()) == []


def test_the_folder_of_a_killed_worker_is_removed_by_the_next_one_and_that_of_a_living_one_is_not(
    own_config_folder: Path,
) -> None:
    module = "cantata.operation.metrics.worker_metrics"
    code = f"import time; from {module} import CountsFolder; print(CountsFolder().path, flush=True); time.sleep(60)"
    own = {**os.environ, "TMPDIR": str(own_config_folder)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=own) as other:
        assert other.stdout
        path = Path(other.stdout.readline().strip())
        CountsFolder().remove()
        assert path.is_dir()
        assert path.stat().st_mode & 0o077 == 0

        other.send_signal(signal.SIGKILL)
        other.wait(20)

    mine = CountsFolder()
    assert [each.name for each in own_config_folder.iterdir()] == [mine.path.name]
    mine.remove()
    assert list(own_config_folder.iterdir()) == []
