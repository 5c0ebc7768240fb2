"""The folder of a stack, with its socket."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cantata.errors import UnavailableError
from cantata.operation.embedded.home import LOG_LIMIT, SOCKET_PATH_LIMIT, Home


def test_the_folder_is_the_one_given_else_of_the_environment_else_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CANTATA_HOME", raising=False)

    assert Home().path == tmp_path / ".cantata"

    monkeypatch.setenv("CANTATA_HOME", str(tmp_path / "named"))

    assert Home().path == tmp_path / "named"
    assert Home(tmp_path / "given").path == tmp_path / "given"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("I am a file")

    with pytest.raises(UnavailableError, match=r"runs cannot be kept in '.*/home': File exists; make it writable"):
        Home(tmp_path / "home").prepare()


def test_a_full_disk_is_told(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_nothing)

    with pytest.raises(UnavailableError, match=r"No space left on device; .*free some space"):
        home.prepare()


def test_only_its_user_can_look_into_the_folder(home: Home) -> None:
    home.prepare()

    assert home.path.stat().st_mode & 0o777 == 0o700
    assert list(home.data.iterdir()) == []


def test_a_log_that_grew_too_long_is_put_aside(home: Home) -> None:
    home.prepare()
    home.log("tools").write_bytes(bytes(LOG_LIMIT + 1))

    assert not home.log("tools").exists()
    assert (home.logs / "tools.log.1").stat().st_size == LOG_LIMIT + 1


def test_one_at_a_time_has_the_lock(home: Home) -> None:
    home.prepare()
    lock = home.try_lock()
    assert lock is not None

    assert home.try_lock() is None

    os.close(lock)
    again = home.try_lock()
    assert again is not None
    os.close(again)


def test_the_socket_of_a_deep_folder_has_a_short_path(tmp_path: Path) -> None:
    deep, other = Home(tmp_path.joinpath(*["deep" * 10] * 5)), Home(tmp_path)

    paths = [deep.make_socket(), other.make_socket()]

    assert all(len(os.fsencode(path)) <= SOCKET_PATH_LIMIT for path in paths)
    assert paths[0] != paths[1]
    assert paths[0] == deep.make_socket()
    for path in paths:
        path.parent.rmdir()


def test_a_long_directory_for_temporary_files_is_passed_over(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    path = home.make_socket()

    assert path.parent.parent == Path("/tmp")
    path.parent.rmdir()


def test_a_socket_directory_that_others_may_enter_is_refused(home: Home) -> None:
    home.make_socket().parent.chmod(0o755)

    with pytest.raises(UnavailableError, match="should be a directory of yours with mode 0700"):
        home.make_socket()


def test_a_socket_directory_that_is_a_link_is_refused(home: Home, tmp_path: Path) -> None:
    directory = home.make_socket().parent
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnavailableError, match="should be a directory of yours"):
        home.make_socket()


def test_a_socket_directory_of_another_user_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    home.make_socket()  # made by us, who are not 4711

    with pytest.raises(UnavailableError, match="should be a directory of yours"):
        home.make_socket()
