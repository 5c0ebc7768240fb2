"""The sources that user code is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata_workers.process import sources


def write(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a, b as c\nfrom d.e import f\n", {"a", "b", "d"}),
        ("def f():\n    import a.b\n    from . import c\n", {"a"}),
        ("if x: import a; import b\n", {"a", "b"}),
        ("importlib.import_module('a.b')\n__import__(\"c\")\n", {"a", "c"}),
        ("def broken(:\nimport a\n", {"a"}),
        ("import cantata\nfrom cantata.x import y\nimportant = 1\n", set()),
    ],
)
def test_what_a_text_imports_is_found_by_its_lines(text: str, names: set[str]) -> None:
    assert sources.imported_by(text.encode()) == names


def test_a_package_counts_with_all_its_files_and_an_environment_in_it_does_not(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(["pack/__init__", "pack/a", "pack/deep/b", "pack/env/lib/c", "pack"], ""))
    (tmp_path / "pack/env/pyvenv.cfg").touch()

    files = [str(path.relative_to(tmp_path)) for path in sources.files_of(str(tmp_path), "pack")]

    assert files == ["pack/__init__.py", "pack/a.py", "pack/deep/b.py"]
