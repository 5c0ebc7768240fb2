"""The tool for files reads and writes where the configuration allows it, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import get_args, get_type_hints

import pytest

from cantata.errors import StepError
from cantata_frontends.langswarm import filesystem
from tests.unit.frontends.langswarm.stage import load

FORMS = [
    "{id: fs, type: mcpfilesystem, allowed_paths: [notes], local_mode: true}",
    "{id: fs, type: mcpfilesystem, settings: {allowed_paths: notes}}",
    "{id: fs, type: mcpfilesystem, root_path: '${NOTES:notes}'}",
    "{id: filesystem, permissions: {notes: read_write}}",
    "{id: fs, type: mcp, server_config: {command: python, args: [-m, langswarm.mcp.tools.filesystem]}, allowed_paths: [notes]}",
]


@pytest.mark.parametrize("form", FORMS)
def test_its_paths_come_from_the_file(tmp_path: Path, form: str) -> None:
    name = "filesystem" if "id: filesystem" in form else "fs"

    definitions = load(
        tmp_path, f"tools: [{form}]\nagents: [{{id: ann, tools: [{name}]}}]\nworkflows: {{}}"
    ).definitions

    assert definitions.agents["ann"].tools[2] == f"{name}.read_file"
    tool = definitions.tools[f"{name}.read_file"]
    assert tool.function == "cantata.frontends.langswarm.filesystem:read_file"
    assert tool.values == {"folder": str(tmp_path), "grants": {"notes": "read_write"}}


def test_without_paths_it_reads_the_folder_of_the_file(tmp_path: Path) -> None:
    tools = load(tmp_path, "tools: [{id: fs, type: mcpfilesystem}]\nworkflows: {}").definitions.tools

    assert tools["fs.write_file"].values["grants"] == {str(tmp_path): "read_only"}


def test_files_are_written_read_listed_and_deleted(tmp_path: Path) -> None:
    grants = {".": "read_only", "out": "read_write"}

    def call(method: str, *arguments: object) -> object:
        return getattr(filesystem, method)(*arguments, folder=str(tmp_path), grants=grants)

    call("write_file", "out/deep/a.txt", "one", True)
    call("update_file", "out/deep/a.txt", " two")
    call("create_directory", "out/b")

    assert call("read_file", "out/deep/a.txt") == "one two"
    assert call("list_directory", "out") == ["b/", "deep/"]
    assert call("get_file_info", "out/deep/a.txt") == {
        "path": str(tmp_path / "out/deep/a.txt"),
        "type": "file",
        "bytes": 7,
        "permission": "read_write",
    }
    assert call("get_allowed_paths") == {
        "folder": [str(tmp_path)],
        "forbidden": [],
        "read_only": ["."],
        "read_write": ["out"],
    }
    call("delete_file", "out/deep/a.txt")
    call("delete_file", "out/deep")
    assert call("list_directory", "out") == ["b/"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("read_file", ".env"),
        ("write_file", "out/.cantata/run"),
        ("write_file", "gs://bucket/a"),
        ("delete_file", "out/.."),
        ("read_file", "../secret.txt"),
        ("read_file", "/etc/passwd"),
        ("read_file", "link/secret.txt"),
        ("read_file", "private/key"),
        ("write_file", "read.txt"),
        ("delete_file", "read.txt"),
        ("create_directory", "read"),
    ],
)
def test_what_is_not_allowed_is_refused(tmp_path: Path, method: str, path: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link").symlink_to(tmp_path)
    grants = {".": "read_only", "out": "read_write", "private": "forbidden", "./private": "read_write"}
    content = ["text"] if method == "write_file" else []

    with pytest.raises(PermissionError, match="may not be"):
        getattr(filesystem, method)(path, *content, folder=str(folder), grants=grants)


@pytest.mark.parametrize(
    "paths", ["allowed_paths: []", "allowed_paths:", "permissions: {}", "settings: {root_path: 'gs://x'}"]
)
def test_paths_that_name_no_folder_grant_nothing(tmp_path: Path, paths: str) -> None:
    tools = load(tmp_path, f"tools:\n- id: fs\n  type: mcpfilesystem\n  {paths}\nworkflows: {{}}").definitions.tools

    assert tools["fs.read_file"].values["grants"] == {}


def test_its_methods_can_be_restricted(tmp_path: Path) -> None:
    text = "tools: [{id: fs, type: mcpfilesystem, methods: [read_file, {name: list_directory}, {get_file_info: size}]}]\nworkflows: {}"

    assert sorted(load(tmp_path, text).definitions.tools) == ["fs.get_file_info", "fs.list_directory", "fs.read_file"]


def test_concurrent_appends_are_all_kept_and_line_ends_stay(tmp_path: Path) -> None:
    def call(method: str, *arguments: str) -> object:
        return getattr(filesystem, method)(*arguments, folder=str(tmp_path), grants={".": "read_write"})

    call("write_file", "a.txt", "0\r\n")
    threads = [Thread(target=lambda: [call("update_file", "a.txt", "1\r\n") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert call("read_file", "a.txt") == "0\r\n" + 200 * "1\r\n"
    assert (tmp_path / "a.txt").read_bytes().count(b"\r\n") == 201
    assert get_args(get_type_hints(filesystem.update_file)["mode"]) == ("append", "overwrite")


def test_another_mode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("kept")

    with pytest.raises(StepError, match="the mode is 'append' or 'overwrite', not 'apend'") as caught:
        filesystem.update_file("a.txt", "x", "apend", folder=str(tmp_path), grants={".": "read_write"})  # type: ignore[arg-type]

    assert caught.value.code == "bad_arguments"
    assert (tmp_path / "a.txt").read_text() == "kept"


@pytest.mark.parametrize("target", ["kept.txt", "kept", "nowhere", "/etc/hostname"])
def test_a_link_is_deleted_and_not_what_it_leads_to(tmp_path: Path, target: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "link").symlink_to(target)

    filesystem.delete_file("link", folder=str(tmp_path), grants={".": "read_write"})

    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept", "kept.txt"]


def test_a_hidden_file_is_read_if_a_grant_names_it(tmp_path: Path) -> None:
    (tmp_path / ".notes").mkdir()
    (tmp_path / ".notes/a").write_text("text")

    assert (
        filesystem.read_file(".notes/a", folder=str(tmp_path), grants={".": "read_only", ".notes": "read_only"})
        == "text"
    )
