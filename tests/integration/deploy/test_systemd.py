"""The units for machines without containers: understood by systemd, agreeing with the code, and as strict as promised."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cantata.settings import VARIABLES
from tests.acceptance.pages import parse

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
SERVICES = sorted(FOLDER.glob("*.service"))
COMMON = FOLDER / "cantata-.service.d" / "10-common.conf"
PROGRAM = "/opt/cantata/bin/submit"
WORST = 20  # of 100, the exposure that `systemd-analyze security` may find
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def settings(file: Path) -> dict[str, list[str]]:
    """What a unit file says: each setting with its values, in order."""
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def example() -> dict[str, str]:
    """The variables of the example of an environment file."""
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", (FOLDER / "cantata.env.example").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies with a program that is here, each instance by its name."""
    folder = tmp_path_factory.mktemp("units")
    shutil.copytree(COMMON.parent, folder / COMMON.parent.name)
    for file in (*SERVICES, FOLDER / "cantata.target"):
        copy = folder / file.name.replace("@.", "@1.")
        copy.write_text(file.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("submit"))))
    return [*sorted(folder.glob("*.service")), folder / "cantata.target"]


@needs_systemd
def test_systemd_finds_no_fault(units: list[Path]) -> None:
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=50, check=False
    )

    said = [
        line for line in checked.stderr.splitlines() if "cantata" in line
    ]  # a machine may have faulty units of its own
    assert said == []


@needs_systemd
def test_no_service_is_more_exposed_than_promised(units: list[Path]) -> None:
    command = ["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={WORST}"]
    for unit in units[:-1]:
        checked = subprocess.run([*command, unit], capture_output=True, text=True, timeout=50, check=False)
        if "unrecognized option" in checked.stderr:
            pytest.skip("this systemd cannot judge units that are not loaded")

        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("service", SERVICES, ids=lambda file: file.name)
def test_a_service_starts_what_submit_understands(service: Path) -> None:
    found = settings(service)

    (command,) = found["ExecStart"]
    program, *arguments = command.replace("%i", "1").split()
    assert program == PROGRAM
    parse(arguments)
    assert "MemoryMax" in found
    assert found["WantedBy"] == ["cantata.target"]
    if "@" in service.name:
        assert "%i" in command  # several of one name on a machine would be taken for one


def test_they_are_all_of_the_stack() -> None:
    assert [file.name for file in SERVICES] == [
        "cantata-agents@.service",
        "cantata-coordinator@.service",
        "cantata-flower.service",
        "cantata-gateway.service",
        "cantata-tools@.service",
    ]


def test_the_page_installs_all_units_and_starts_two_coordinators() -> None:
    page = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    copied = set(re.findall(r"deploy/systemd/(cantata[\w@.-]*\.(?:service|target)) ", page))
    (enabled,) = re.findall(r"^systemctl enable (.*)$", page, re.MULTILINE)
    kinds = [re.sub(r"@\d+", "@", name) for name in enabled.split()]

    assert copied == {file.name for file in (*SERVICES, FOLDER / "cantata.target")}
    assert {f"{name}.service" for name in kinds if name != "cantata.target"} == {file.name for file in SERVICES}
    assert kinds.count("cantata-coordinator@") == 2
    assert len(set(enabled.split())) == len(kinds), "each instance has a name of its own"


def test_workers_have_time_for_what_they_drain_and_are_told_alone() -> None:
    common = settings(COMMON)

    assert float(common["TimeoutStopSec"][0]) >= float(example()["CANTATA_DRAIN_S"]) + 10
    assert common["KillMode"] == [
        "mixed"
    ]  # else SIGTERM would end the processes of a worker in the midst of their steps


def test_variables_are_those_of_the_code() -> None:
    named = {
        name
        for file in (COMMON, *SERVICES)
        for line in settings(file).get("Environment", [])
        for name in re.findall(r"(\w+)=", line)
    }

    assert {name for name in named if name.startswith("CANTATA_")} <= set(VARIABLES)
    assert set(example()) <= set(VARIABLES)
