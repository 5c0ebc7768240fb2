"""A configuration is read once, and again when something changes that it was read from."""

import os
from pathlib import Path

import pytest

from cantata.config import loading
from cantata.config.file_versions import TICK_NS, ByFileVersion, note
from cantata.config.loading import load_sound
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions

AN_HOUR_AGO = 1_000_000_000 * 3600
CONFIG = "tools: {add: {function: 'shop_of_versions:add'}}\nagents: {clerk: {system: clerk.md}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "_native_by_version", ByFileVersion(loading._native))
    write(tmp_path / "config.yml", CONFIG)
    write(tmp_path / "shop_of_versions.py", "def add(text: str) -> str:\n    return text\n")
    write(tmp_path / "clerk.md", "Be brief.")
    os.utime(tmp_path, ns=(0, 1_700_000_000_123_456_789))
    return tmp_path


def write(file: Path, text: str, *, age_ns: int = AN_HOUR_AGO) -> None:
    """Write a file as it would look after a while: one that has just changed is read again in any case."""
    file.write_text(text)
    before = os.stat(file).st_mtime_ns - age_ns
    os.utime(file, ns=(before, before))


def read(folder: Path) -> Definitions:
    return load_sound(folder / "config.yml").definitions


def test_an_unchanged_configuration_is_read_once(folder: Path) -> None:
    assert read(folder) is read(folder)


def test_another_text_of_the_file_is_read(folder: Path) -> None:
    before = read(folder)
    write(folder / "config.yml", CONFIG + "defaults: {agent: clerk}\n", age_ns=AN_HOUR_AGO // 2)
    assert before.defaults.agent is None
    assert read(folder).defaults.agent == "clerk"


def test_another_text_of_a_prompt_is_read(folder: Path) -> None:
    assert read(folder).agents["clerk"].system == "Be brief."
    write(folder / "clerk.md", "Be kind!!", age_ns=AN_HOUR_AGO // 2)  # as long as before
    assert read(folder).agents["clerk"].system == "Be kind!!"


def test_a_prompt_that_goes_and_one_that_comes_are_seen(folder: Path) -> None:
    read(folder)
    (folder / "clerk.md").unlink()
    assert read(folder).agents["clerk"].system == "clerk.md"
    write(folder / "clerk.md", "Be back.")
    assert read(folder).agents["clerk"].system == "Be back."


def test_a_changed_module_is_checked_again(folder: Path) -> None:
    read(folder)
    write(folder / "shop_of_versions.py", "def sub(text: str) -> str:\n    return text\n", age_ns=AN_HOUR_AGO // 2)
    with pytest.raises(ConfigError, match="function 'add' is not in shop_of_versions"):
        read(folder)


def test_a_module_that_comes_to_the_folder_is_checked(folder: Path) -> None:
    read(folder)
    (folder / "shop_of_versions.py").write_text("import cantata_workers\n\n\ndef add(text: str) -> str:\n    return text\n")
    (folder / "cantata_workers.py").write_text("")
    with pytest.raises(ConfigError, match="hidden by Cantata's package"):
        read(folder)


def test_a_setting_of_the_environment_reads_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(folder)
    monkeypatch.setenv("SHOP", "open")
    assert read(folder) is not before


def test_a_file_that_has_just_changed_is_read_again(folder: Path) -> None:
    write(folder / "config.yml", CONFIG, age_ns=0)
    assert read(folder) is not read(folder)


@pytest.mark.parametrize("ns", [0, 1])
def test_a_clock_of_whole_seconds_counts_as_coarse(tmp_path: Path, ns: int) -> None:
    calls = []
    file = tmp_path / "file"
    file.write_text("")
    at = (os.stat(file).st_mtime_ns - 2 * TICK_NS) // 1_000_000_000 * 1_000_000_000 + ns  # 0.2 to 1.2 s ago
    os.utime(file, ns=(at, at))

    def noted(path: Path) -> Path:
        calls.append(note(path))
        return path

    cached = ByFileVersion(noted)
    assert [cached(file), cached(file)] == [file, file]
    assert len(calls) == (2 if ns == 0 else 1)


def test_faults_are_not_kept_and_no_more_results_than_asked_for(tmp_path: Path) -> None:
    calls: list[str] = []

    def fail(path: Path) -> Path:
        calls.append(path.name)
        if path.name == "bad":
            raise ConfigError("bad", source="bad")
        return path

    cached = ByFileVersion(fail, most=2)
    for _ in range(2):
        with pytest.raises(ConfigError):
            cached(tmp_path / "bad")
    for name in ("a", "b", "a", "c", "a", "b"):
        assert cached(tmp_path / name) == tmp_path / name
    assert calls == ["bad", "bad", "a", "b", "c", "b"]
