"""The files of a Diskurs folder: templates and descriptions are read, code is looked into and never run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from cantata.config.faults import did_you_mean
from cantata.config.user_code.function_source import fault_of
from cantata.models.conversation_config import CodeReference

SPELLINGS = {"system": ("system_template.jinja2", "system_prompt.jinja2"), "user": ("user_template.jinja2", "user_prompt.jinja2")}
"""Both names of each template."""


class FileFault(ValueError):
    """What is wrong with a file, or that it is not there."""


class FolderFiles:
    """The files below a folder; names lead nowhere else. Raises FileFault.

    `check_template` gives the names of the templates that a template includes, and raises ValueError with what is wrong with it.
    """

    def __init__(self, folder: Path, check_template: Callable[[str], list[str]]) -> None:
        self._folder = folder
        self._check_template = check_template

    def path(self, location: str) -> Path:
        """A folder, or a file, that the configuration names."""
        path = (self._folder / location).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise FileFault(f"{location!r} leads out of the configuration's folder")
        if not path.exists():
            near = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            raise FileFault(f"there is no {location!r} in the folder{did_you_mean(path.name, near) if near else ''}")
        return path

    def text(self, path: Path) -> str:
        """A text file."""
        try:
            return path.read_text("utf-8-sig")
        except (OSError, ValueError) as error:
            raise FileFault(f"{self.name(path)} cannot be read: {error}") from error

    def template(self, path: Path, which: str) -> Path | None:
        """The `system` or `user` template of an agent, in either spelling; None if there is none."""
        found = [path / name for name in SPELLINGS[which] if (path / name).is_file()]
        if len(found) > 1:
            raise FileFault(f"{self.name(path)} has {found[0].name} and {found[1].name}; keep one of them")
        return found[0] if found else None

    def checked(self, path: Path) -> tuple[str, dict[str, str]]:
        """A template without faults, and those beside it that it includes, by name."""
        text, names = self._checked(path)
        parts: dict[str, str] = {}
        while names:
            if (name := names.pop()) not in parts:
                parts[name], more = self._checked(self._part(path, name))
                names += more
        return text, parts

    def _checked(self, path: Path) -> tuple[str, list[str]]:
        text = self.text(path)
        try:
            return text, self._check_template(text)
        except ValueError as error:
            raise FileFault(f"{self.name(path)}: {error}") from error

    def _part(self, path: Path, name: str) -> Path:
        part = path.parent / name
        if not part.resolve().is_relative_to(path.parent.resolve()) or not part.is_file():
            near = did_you_mean(name, [other.name for other in path.parent.iterdir()])
            raise FileFault(f"{self.name(path)} includes {name!r}, which is not in its folder{near}")
        return part

    def code(self, path: Path, name: str) -> CodeReference:
        """A function or class of a file of Python."""
        if not path.is_file():
            raise FileFault(f"there is no {self.name(path)}, in which {name!r} would be")
        if fault := fault_of(f"{path.stem}:{name}", folder=path.parent):
            raise FileFault(fault.replace("function", "function or class", 1) if fault.startswith("function") else fault)
        return CodeReference(file=self.name(path), name=name)

    def first_code(self, paths: Iterable[Path], name: str) -> CodeReference:
        """The same, of the first of these files that has it."""
        faults = []
        for path in paths:
            try:
                return self.code(path, name)
            except FileFault as fault:
                faults.append(str(fault))
        raise FileFault(faults[0] if faults else f"no file is named in which {name!r} would be")

    def candidates(self, path: Path, names: Sequence[str]) -> list[Path]:
        """A file itself; of a folder, those of its files that have these names, or where the first of them would be."""
        if path.is_file():
            return [path]
        return [path / name for name in names if (path / name).is_file()] or [path / names[0]]

    def name(self, path: Path) -> str:
        """A file's name, from the folder."""
        return path.resolve().relative_to(self._folder.resolve()).as_posix()
