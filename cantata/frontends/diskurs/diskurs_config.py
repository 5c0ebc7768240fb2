"""The reader of a Diskurs configuration: its document, its files, and the faults found so far."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from cantata.config.documents import Document
from cantata.config.source_map import KeyPath, value_at
from cantata.errors import Fault
from cantata.frontends.diskurs.files import FileFault, FolderFiles
from cantata.frontends.diskurs.schema import Section
from cantata.suggestions import did_you_mean

EntryModel = TypeVar("EntryModel", bound=BaseModel)


@dataclass
class DiskursConfigReader:
    """Collects faults instead of raising, so that all of them are reported at once."""

    document: Document
    files: FolderFiles
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: KeyPath, message: str) -> None:
        """Record a fault."""
        self.faults.append(self.document.fault(path, message))

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

    def check_keys(self, path: KeyPath, entry: Section, known: Collection[str], what: str) -> None:
        """Record keys that would have no effect."""
        for key in sorted(entry.model_fields_set.difference(known)):
            own = ", ".join(map(to_camel, sorted(known)))
            self.fault((*path, to_camel(key)), f"{to_camel(key)!r} has no effect on {what}, whose keys are {own}")

    def names(self, section: str, key: str = "name") -> list[str]:
        """Return the values under a key of all entries of a section, valid or not."""
        entries = value_at(self.document.data, section)
        return [str(value_at(entry, key)) for entry in entries] if isinstance(entries, list) else []

    def entries(self, section: str, model: type[EntryModel]) -> dict[int, EntryModel]:
        """Return the valid entries of a section by index. The validation of the whole file reports the faults of the others."""
        entries = value_at(self.document.data, section)
        found: dict[int, EntryModel] = {}
        first: dict[str, int] = {}
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            name = str(value_at(entry, "name"))
            if first.setdefault(name, i) != i:
                self.fault((section, i, "name"), f"the name {name!r} occurs twice: entry {first[name] + 1} has it too")
            try:
                found[i] = model.model_validate(entry)
            except ValidationError:
                continue
        return found
