"""Folders of Diskurs, written and read."""

from __future__ import annotations

from pathlib import Path

from cantata.config import loading
from cantata.config.documents import parse
from cantata.config.formats import Configuration
from cantata_frontends.diskurs import format

ENVIRONMENT = {"OPENAI_API_KEY": "sk-secret"}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def read(folder: Path, files: dict[str, str], **environ: str) -> Configuration:
    write(folder, files)
    document = parse((folder / "config.yml").read_text(), source="config.yml")
    return format.load(folder, document, read=loading.read, environment={**ENVIRONMENT, **environ})


def changed(files: dict[str, str], *pairs: tuple[str, str]) -> dict[str, str]:
    text = files["config.yml"]
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return {**files, "config.yml": text}
