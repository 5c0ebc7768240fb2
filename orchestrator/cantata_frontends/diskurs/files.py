"""The files of a Diskurs folder: templates and descriptions are read, code is parsed and never run; the reader collects the faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from cantata.config.documents import Document
from cantata.config.source_map import KeyPath, value_at
from cantata.config.user_code.function_source import fault_of
from cantata.errors import Fault
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue
from cantata_frontends.diskurs.conversation_config import CodeReference
from cantata_frontends.diskurs.schema import Section

SPELLINGS = {
    "system": ("system_template.jinja2", "system_prompt.jinja2"),
    "user": ("user_template.jinja2", "user_prompt.jinja2"),
}
"""Both names of each template."""


class FileFault(ValueError):
    """A file is missing or not usable; the message says why."""


class FolderFiles:
    """The files below a folder; a name that leads out of it is refused. Raises FileFault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.code_files: set[Path] = set()
        """The Python files that the configuration names."""

    def resolve(self, location: str) -> Path:
        """Return the path of a folder or file that the configuration names."""
        path = (self._folder / location).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise FileFault(f"{location!r} leads out of the configuration's folder")
        if not path.exists():
            near = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
            raise FileFault(f"there is no {location!r} in the folder{did_you_mean(path.name, near) if near else ''}")
        return path

    def text(self, path: Path) -> str:
        """Return the text of a file."""
        try:
            return path.read_text("utf-8-sig")
        except (OSError, ValueError) as error:
            raise FileFault(f"{self.name(path)} cannot be read: {error}") from error

    def template(self, path: Path, which: str) -> Path | None:
        """Return the `system` or `user` template of an agent, in either spelling; None if there is none."""
        found = [path / name for name in SPELLINGS[which] if (path / name).is_file()]
        if len(found) > 1:
            raise FileFault(f"{self.name(path)} has {found[0].name} and {found[1].name}; keep one of them")
        return found[0] if found else None

    def checked(self, path: Path) -> tuple[str, dict[str, str]]:
        """Return the text of a valid template, and the templates beside it that it includes, by name."""
        text, names = self._checked(path)
        parts: dict[str, str] = {}
        while names:
            if (name := names.pop()) not in parts:
                parts[name], more = self._checked(self._part(path, name))
                names += more
        return text, parts

    def _checked(self, path: Path) -> tuple[str, list[str]]:
        """Return the text of a template, and the names of those that it includes."""
        from cantata.flows.expressions import templates  # noqa: PLC0415  # only folders with templates need jinja2, which takes long to import

        text = self.text(path)
        try:
            return text, templates.check(text)
        except ValueError as error:
            raise FileFault(f"{self.name(path)}: {error}") from error

    def _part(self, path: Path, name: str) -> Path:
        part = path.parent / name
        if not part.resolve().is_relative_to(path.parent.resolve()) or not part.is_file():
            near = did_you_mean(name, sorted(other.name for other in path.parent.iterdir()))
            raise FileFault(f"{self.name(path)} includes {name!r}, which is not in its folder{near}")
        return part

    def code(self, path: Path, name: str) -> CodeReference:
        """Return the reference of a function or class in a Python file."""
        if not path.is_file():
            raise FileFault(f"there is no file {self.name(path)}, which should define {name!r}")
        self.code_files.add(path)
        if fault := fault_of(f"{path.stem}:{name}", folder=path.parent):
            raise FileFault(
                fault.replace("function", "function or class", 1) if fault.startswith("function") else fault
            )
        return CodeReference(file=self.name(path), name=name)

    def first_code(self, paths: Iterable[Path], name: str) -> CodeReference:
        """Return the reference in the first of these files that defines the name."""
        faults = []
        for path in paths:
            try:
                return self.code(path, name)
            except FileFault as fault:
                faults.append(str(fault))
        raise FileFault(faults[0] if faults else f"no file is named that could define {name!r}")

    def candidates(self, path: Path, names: Sequence[str]) -> list[Path]:
        """Return a file itself; for a folder, its files of these names, or the path that the first of them would have."""
        if path.is_file():
            return [path]
        return [path / name for name in names if (path / name).is_file()] or [path / names[0]]

    def name(self, path: Path) -> str:
        """Return a file's path relative to the folder."""
        return path.resolve().relative_to(self._folder.resolve()).as_posix()


EntryModel = TypeVar("EntryModel", bound=BaseModel)
SectionModel = TypeVar("SectionModel", bound=Section)


@dataclass
class DiskursConfigReader:
    """Collects faults instead of raising, so that all of them are reported at once."""

    document: Document
    files: FolderFiles
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: KeyPath, message: str) -> None:
        """Record a fault."""
        self.faults.append(self.document.fault(path, message))

    def warn(self, path: KeyPath, message: str) -> None:
        """Record that a key has no effect here, or another one than in Diskurs; `message` says why."""
        self.faults.append(replace(self.document.fault(path, message), is_warning=True))

    @contextmanager
    def file_faults(self, path: KeyPath) -> Iterator[None]:
        """Record a FileFault as a fault of the key that names the file."""
        try:
            yield
        except FileFault as fault:
            self.fault(path, str(fault))

    def check_known(self, path: KeyPath, name: str, known: Collection[str], what: str) -> None:
        """Record a fault if no `what` has this name."""
        if name not in known:
            self.fault(path, f"there is no {what} {name!r}{did_you_mean(name, known)}")

    def check_keys(self, path: KeyPath, entry: SectionModel, known: Collection[str], what: str) -> SectionModel:
        """Warn of keys that have no effect, and return the entry without them."""
        needless = sorted(entry.model_fields_set.difference(known))
        for key in needless:
            self.warn((*path, to_camel(key)), f"{to_camel(key)!r} has no effect on {what}")
        return (
            type(entry).model_validate(entry.model_dump(exclude={*needless}, exclude_unset=True)) if needless else entry
        )

    def named(self, section: str) -> dict[str, JsonValue]:
        """Return the entries of a section that have a name, by name, valid or not."""
        entries = value_at(self.document.data, section)
        names = [(value_at(entry, "name"), entry) for entry in entries] if isinstance(entries, list) else []
        return {name: entry for name, entry in names if isinstance(name, str)}

    def entries(self, section: str, model: type[EntryModel]) -> dict[int, EntryModel]:
        """Return the valid entries of a section by index. The validation of the whole file reports the faults of the others."""
        entries = value_at(self.document.data, section)
        found: dict[int, EntryModel] = {}
        first: dict[str, int] = {}
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            name = value_at(entry, "name")
            if isinstance(name, str) and first.setdefault(name, i) != i:
                self.fault((section, i, "name"), f"the name {name!r} occurs twice: entry {first[name] + 1} has it too")
            try:
                found[i] = model.model_validate(entry)
            except ValidationError:
                continue
        return found
