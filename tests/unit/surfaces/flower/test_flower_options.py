"""Where Flower's options come from, and which are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import flower
import pytest
from flower.options import options
from flower.urls import settings as flower_settings

from cantata.errors import ConfigError
from cantata.surfaces.flower import flower_options


@pytest.fixture(autouse=True)
def unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder without a flowerconfig.py, no variables, and options as they are before and after."""
    for name in [name for name in os.environ if name.startswith("FLOWER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    before, own = options.as_dict(), dict(flower_settings)
    yield
    for name, value in before.items():
        setattr(options, name, value)
    flower_settings.clear()
    flower_settings.update(own)


def test_it_listens_on_this_machine_only_and_leaves_the_log_alone() -> None:
    flower_options.set_options([])

    assert (options.address, options.port, options.logging) == ("127.0.0.1", 5555, "none")
    assert "args" in options.tasks_columns.split(",")
    assert flower_options.is_local()
    assert not flower_options.is_read_only()
    assert flower_options.prefix() == ""


def test_the_command_line_goes_before_the_file_and_that_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWER_PORT", "1")
    monkeypatch.setenv("FLOWER_MAX_TASKS", "10")
    monkeypatch.setenv("FLOWER_READ_ONLY", "true")
    (tmp_path / "flowerconfig.py").write_text("port = 2\nmax_tasks = 20\n")

    flower_options.set_options(["--port=3", "--url_prefix=/tasks/"])

    assert (options.port, options.max_tasks) == (3, 20)
    assert flower_options.is_read_only()
    assert flower_options.prefix() == "/tasks"


def test_what_kubernetes_sets_for_a_service_called_flower_is_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWER_PORT", "tcp://10.0.0.1:5555")
    monkeypatch.setenv("FLOWER_PORT_5555_TCP_ADDR", "10.0.0.1")

    flower_options.set_options([])

    assert options.port == 5555


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--max-task=5", "did you mean --max_tasks=...?"),
        ("something", "--name=value"),
        ("--port=many", "cannot be read"),
        ("--conf=nowhere.py", "does not exist"),
        ("--certfile=/some.pem", "Flower refuses its options"),
    ],
)
def test_what_is_no_option_or_no_value_is_told(argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flower_options.set_options([argument])

    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["0.0.0.0", "", "10.1.2.3", "flower.example.org"])
def test_an_address_that_others_reach_needs_passwords(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--basic-auth-file"):
        flower_options.set_options([f"--address={address}"])

    (tmp_path / "who.txt").write_text("# operators\nanna:secret\n\notto:word\n")
    flower_options.set_options([f"--address={address}"], basic_auth_file="who.txt")

    assert options.basic_auth == ["anna:secret", "otto:word"]
    assert not flower_options.is_local()


def test_an_address_that_is_published_on_loopback_needs_none_and_is_asked_by_local_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CANTATA_PUBLISHED_ON_LOOPBACK", "1")

    flower_options.set_options(["--address=0.0.0.0"])

    assert flower_options.is_local()


@pytest.mark.parametrize("entry", ["", "anna", "anna:", ":secret", "anna:secret,"])
def test_an_empty_password_is_none(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWER_BASIC_AUTH", entry)

    with pytest.raises(ConfigError, match="name:password"):
        flower_options.set_options(["--address=0.0.0.0"])


def test_a_file_without_passwords_is_refused_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "who.txt").write_text("# nobody\n")
    with pytest.raises(ConfigError, match="at least one"):
        flower_options.set_options([], basic_auth_file="who.txt")

    (tmp_path / "who.txt").write_text("my-only-secret")
    with pytest.raises(ConfigError) as caught:
        flower_options.set_options([], basic_auth_file="who.txt")
    assert "my-only-secret" not in str(caught.value)

    with pytest.raises(ConfigError, match="cannot be read"):
        flower_options.set_options([], basic_auth_file="nowhere.txt")


def test_the_password_of_the_example_is_refused(tmp_path: Path) -> None:
    (tmp_path / "who.txt").write_text("operator:CHANGE-ME\n")

    with pytest.raises(ConfigError, match="'operator' in basic_auth is that of the example"):
        flower_options.set_options([], basic_auth_file="who.txt")


def test_a_flower_that_was_not_tested_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flower_options.version_warning() is None

    monkeypatch.setattr(flower, "__version__", "2.9.1")

    assert "2.9.1" in str(flower_options.version_warning())
