"""A Diskurs configuration while it is read: what it says, the files round it, and the faults found so far."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cantata.config.documents import Document
from cantata.config.faults import did_you_mean
from cantata.config.source_map import KeyPath, step
from cantata.errors import Fault
from cantata.frontends.diskurs.files import FileFault, FolderFiles

EntryModel = TypeVar("Part", bound=BaseModel)


@dataclass
class DiskursConfigReader:
    """What is wrong is noted, and the reading goes on: so all faults are told at once."""

    document: Document
    files: FolderFiles
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: KeyPath, message: str) -> None:
        """Note a fault."""
        self.faults.append(self.document.fault(path, message))

    @contextmanager
    def file_faults(self, path: KeyPath) -> Iterator[None]:
        """What is wrong with a file is a fault of the key that names it."""
        try:
            yield
        except FileFault as fault:
            self.fault(path, str(fault))

    def check_known(self, path: KeyPath, name: str, known: Collection[str], what: str) -> None:
        """Note a name that is none."""
        if name not in known:
            self.fault(path, f"there is no {what} {name!r}{did_you_mean(name, known)}")

    def names(self, section: str, key: str = "name") -> list[str]:
        """What the entries of a section have under a key, whether they have their form or not."""
        entries = step(self.document.data, section)
        return [str(step(entry, key)) for entry in entries] if isinstance(entries, list) else []

    def entries(self, section: str, model: type[EntryModel]) -> dict[int, EntryModel]:
        """The entries of a section that have their form. What is wrong with the others is told with the whole file."""
        entries = step(self.document.data, section)
        found: dict[int, EntryModel] = {}
        first: dict[str, int] = {}
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            name = str(step(entry, "name"))
            if first.setdefault(name, i) != i:
                self.fault((section, i, "name"), f"the name {name!r} is here twice; entry {first[name] + 1} has it too")
            try:
                found[i] = model.model_validate(entry)
            except ValidationError:
                continue
        return found
