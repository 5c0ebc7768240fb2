"""A configuration is read once, and again when something changes that it was read from."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import time_ns

import pytest

from cantata.config import file_versions, loading
from cantata.config.file_versions import COARSE_TICK_NS, TICK_NS, ByFileVersion, note
from cantata.config.loading import load_sound
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions

AN_HOUR_NS = 3600 * 1_000_000_000
CONFIG = "tools: {add: {function: 'shop_of_versions:add'}}\nagents: {clerk: {system: clerk.md}}\n"
TIMES_NS = itertools.count(1_700_000_000_123_456_789, 1_000_001)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "_by_version", ByFileVersion(loading._sound, keeps=lambda found: found.is_native))
    monkeypatch.setattr(file_versions, "time_ns", lambda: time_ns() + AN_HOUR_NS)
    write(tmp_path / "config.yml", CONFIG)
    write(tmp_path / "shop_of_versions.py", "def add(text: str) -> str:\n    return text\n")
    write(tmp_path / "clerk.md", "Be brief.")
    return tmp_path


def write(file: Path, text: str) -> None:
    """Write a file, with a time of its own, and give its folder another one."""
    file.write_text(text)
    for each in (file, file.parent):
        at = next(TIMES_NS)
        os.utime(each, ns=(at, at))


def read(folder: Path) -> Definitions:
    return load_sound(folder / "config.yml").definitions


def test_an_unchanged_configuration_is_read_once(folder: Path) -> None:
    assert read(folder) is read(folder)


def test_another_text_of_the_file_is_read(folder: Path) -> None:
    before = read(folder)
    write(folder / "config.yml", CONFIG + "defaults: {agent: clerk}\n")
    assert before.defaults.agent is None
    assert read(folder).defaults.agent == "clerk"


def test_a_text_of_the_same_size_and_time_is_read(folder: Path) -> None:
    file = folder / "clerk.md"
    assert read(folder).agents["clerk"].system == "Be brief."
    before = os.stat(file)
    while os.stat(file).st_ctime_ns == before.st_ctime_ns:  # a tick of the file system
        file.write_text("Be kind!!")
        os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert read(folder).agents["clerk"].system == "Be kind!!"


def test_a_prompt_that_goes_and_one_that_comes_are_seen(folder: Path) -> None:
    read(folder)
    (folder / "clerk.md").unlink()
    assert read(folder).agents["clerk"].system == "clerk.md"
    write(folder / "clerk.md", "Be back.")
    assert read(folder).agents["clerk"].system == "Be back."


def test_a_changed_module_is_checked_again(folder: Path) -> None:
    read(folder)
    write(folder / "shop_of_versions.py", "def sub(text: str) -> str:\n    return text\n")
    with pytest.raises(ConfigError, match="function 'add' is not in shop_of_versions"):
        read(folder)


def test_a_module_that_comes_to_the_folder_is_checked(folder: Path) -> None:
    read(folder)
    write(folder / "shop_of_versions.py", "import cantata_workers\n\n\ndef add(text: str) -> str:\n    return text\n")
    write(folder / "cantata_workers.py", "")
    with pytest.raises(ConfigError, match="hidden by Cantata's package"):
        read(folder)


@pytest.mark.parametrize("where", ["folder", "module search path"])
def test_a_module_that_comes_to_a_package_is_read(
    where: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = folder if where == "folder" else tmp_path / "library"
    (base / "shop_of_parts").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(base))
    write(base / "shop_of_parts/__init__.py", "")
    write(folder / "shop_of_versions.py", "from shop_of_parts.sums import add\n")
    assert read(folder).tools["add"].timeout_s is None

    text = "from cantata import tool\n\n\n@tool(timeout_s=7)\ndef add(text: str) -> str:\n    return text\n"
    write(base / "shop_of_parts/sums.py", text)

    assert read(folder).tools["add"].timeout_s == 7


def test_a_package_that_hides_a_module_is_read(folder: Path) -> None:
    (folder / "shop_of_hiding").mkdir()
    for name, text in (("__init__", ""), ("sums", "def add(text): ...\n")):
        write(folder / f"shop_of_hiding/{name}.py", text)
    write(folder / "config.yml", "tools: {add: {function: 'shop_of_hiding.sums:add'}}\n")
    read(folder)

    (folder / "shop_of_hiding/sums").mkdir()
    write(folder / "shop_of_hiding/sums/__init__.py", "")

    with pytest.raises(ConfigError, match="function 'add' is not in"):
        read(folder)


def test_a_setting_of_the_environment_reads_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(folder)
    monkeypatch.setenv("SHOP", "open")
    assert read(folder) is not before


def test_a_file_that_has_just_changed_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_versions, "time_ns", lambda: os.stat(folder / "config.yml").st_ctime_ns + TICK_NS // 2)
    assert read(folder) is not read(folder)


def test_other_formats_are_read_once_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "langswarm.yaml", 'version: "2.0"\nagents: [{id: a, model: gpt-4o}]\nworkflows: {w: "a -> user"}\n')
    opened, calls = loading.opened, list[Path]()

    def count(path: Path) -> object:
        calls.append(path)
        return opened(path)

    monkeypatch.setattr(loading, "opened", count)
    for number in (1, 2):
        assert "w" in load_sound(folder / "langswarm.yaml").definitions.chains
        assert len(calls) == number


@pytest.mark.parametrize("text", ["a\0.md", "file: a\0b"])
def test_a_text_that_is_no_path_is_a_text_or_a_fault(text: str, folder: Path) -> None:
    write(folder / "config.yml", f'agents: {{clerk: {{system: "{text}"}}}}\n'.replace("\0", "\\0"))
    if text.startswith("file:"):
        with pytest.raises(ConfigError, match="null byte"):
            read(folder)
    else:
        assert read(folder).agents["clerk"].system == text


def test_a_removed_working_folder_matters_to_none_with_a_whole_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    shutil.rmtree(gone)
    assert read(folder) is read(folder)


@pytest.mark.parametrize("ns", [0, 1])
def test_a_clock_of_whole_seconds_counts_as_coarse(tmp_path: Path, ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    file = tmp_path / "file"
    file.write_text("")
    at = os.stat(file).st_ctime_ns // 1_000_000_000 * 1_000_000_000 + ns
    os.utime(file, ns=(at, at))
    monkeypatch.setattr(file_versions, "time_ns", lambda: at + COARSE_TICK_NS - 1)

    def noted(path: Path) -> Path:
        calls.append(note(path))
        return path

    cached = ByFileVersion(noted)
    assert [cached(file), cached(file)] == [file, file]
    assert len(calls) == (2 if ns == 0 else 1)


def test_faults_are_not_kept_and_no_more_results_than_asked_for(tmp_path: Path) -> None:
    calls = list[str]()

    def fail(path: Path) -> Path:
        calls.append(path.name)
        if path.name == "bad":
            raise ConfigError("bad", source="bad")
        return path

    cached: Callable[[Path], Path] = ByFileVersion(fail, most=2)
    for _ in range(2):
        with pytest.raises(ConfigError):
            cached(tmp_path / "bad")
    for name in ("a", "b", "a", "c", "a", "b"):
        assert cached(tmp_path / name) == tmp_path / name
    assert calls == ["bad", "bad", "a", "b", "c", "b"]
