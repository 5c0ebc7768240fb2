"""The tool for files reads and writes where the configuration allows it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.frontends.langswarm import filesystem
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

    definitions = load(tmp_path, f"tools: [{form}]\nagents: [{{id: ann, tools: [{name}]}}]\nworkflows: {{}}").definitions

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
    assert call("get_allowed_paths") == {"folder": [str(tmp_path)], "forbidden": [], "read_only": ["."], "read_write": ["out"]}
    call("delete_file", "out/deep/a.txt")
    call("delete_file", "out/deep")
    assert call("list_directory", "out") == ["b/"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
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
    grants = {".": "read_only", "private": "forbidden", "./private": "read_write"}
    content = ["text"] if method == "write_file" else []

    with pytest.raises(PermissionError, match="may not be"):
        getattr(filesystem, method)(path, *content, folder=str(folder), grants=grants)
