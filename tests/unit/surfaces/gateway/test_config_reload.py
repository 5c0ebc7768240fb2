from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cantata.surfaces.gateway import config_reload
from cantata.surfaces.gateway.config_reload import stat_files


def client_of(path: Path | None) -> Any:
    return SimpleNamespace(find_config=lambda: path)


def names(folder: Path) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in stat_files(client_of(folder / "cantata.yaml")))


def test_all_files_beside_a_configuration_count_but_not_what_is_hidden_or_installed(tmp_path: Path) -> None:
    for name in ("cantata.yaml", "steps.py", "prompts/a.md", ".venv/lib/x.py", "node_modules/y.json", ".git/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    assert names(tmp_path) == ["cantata.yaml", "prompts/a.md", "steps.py"]
    assert stat_files(client_of(None)) == {}


def test_of_a_large_folder_the_nearest_files_count(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(config_reload, "MAX_FILES", 3)
    for name in ("a/deep.txt", "cantata.yaml", "x.txt", "y.txt", "z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    assert len(names(tmp_path)) == 3
    assert "cantata.yaml" in names(tmp_path)
    assert "a/deep.txt" not in names(tmp_path)


def test_a_saved_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "cantata.yaml"
    file.write_text("a")
    before = stat_files(client_of(file))

    (tmp_path / "new").write_text("b")
    os.utime(tmp_path / "new", ns=(1, 1))
    (tmp_path / "new").replace(file)

    assert stat_files(client_of(file)) != before
