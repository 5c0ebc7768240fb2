"""LangSwarm's files: one file, or several of a folder, with the files that they include."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.faults import in_order
from cantata.config.texts import lies_in
from cantata.config.user_code.script_digest import name_of
from cantata.errors import ConfigError, Fault
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue
from cantata_frontends.langswarm.config_part import MISTYPED, ConfigPart, either
from cantata_frontends.langswarm.vocabulary import FILES, IGNORED_BLOCKS, SECTIONS, TOP

OWN_PROCESS = "it is about LangSwarm's own process, for whose purposes the fleet has settings"
ReadDocument = Callable[[Path], Document]


@dataclass
class ConfigSources:
    """The sections of a configuration's files."""

    folder: Path
    parts: dict[str, list[ConfigPart]] = field(
        default_factory=lambda: {section: [] for section in (*SECTIONS, "memory")}
    )
    faults: list[Fault] = field(default_factory=list)
    several: bool = False
    """Whether locations name their file."""
    main: str = ""
    """The file that was asked for, if it includes the others: reports name it already."""

    def faults_in_order(self) -> list[Fault]:
        """Return each fault once, by file and line."""
        faults = sorted(in_order(dict.fromkeys(self.faults)), key=lambda fault: fault.file)
        return [replace(fault, file="") if fault.file == self.main else fault for fault in faults]

    def named(self, section: str) -> Iterator[tuple[str, ConfigPart]]:
        """Yield the agents or tools of all files: of lists with ids, and of mappings."""
        taken: dict[str, ConfigPart] = {}
        for part in self.parts[section]:
            for name, each in _named(part):
                if name in taken:
                    each.fault(f"{name!r} is defined twice; it is {taken[name].location_from(each)} too")
                taken[name] = each
                yield name, each


def is_langswarm(data: JsonValue) -> bool:
    """Return whether a document is LangSwarm's: it has `workflows`, or lists of agents or tools, or a version that is a text."""
    if not isinstance(data, dict):
        return False
    lists = any(isinstance(data.get(section), list) for section in ("agents", "tools"))
    return (
        lists or _has_chains(data.get("workflows", ())) or (isinstance(data.get("version"), str) and "agents" in data)
    )


def _has_chains(found: object) -> bool:
    """Return whether `workflows` of a document are LangSwarm's; each of ours has a function."""
    if isinstance(found, dict):
        return not found or not all(isinstance(each, dict) and "function" in each for each in found.values())
    return found != ()


def files_in(folder: Path) -> list[Path]:
    """Return LangSwarm's files in a folder: the main one, and those of one section each."""
    return [folder / name for name in FILES if (folder / name).is_file()]


def gather(paths: Sequence[Path], folder: Path, read: ReadDocument, *, is_file: bool = True) -> ConfigSources:
    """Return the sections of files, and of those that they include; `is_file`: one of them was asked for, not their folder.

    Raises ConfigError if one cannot be read at all.
    """
    sources = ConfigSources(folder, several=len(paths) > 1 or not is_file)
    seen: set[Path] = set()
    todo = list(paths)
    while todo:
        path = todo.pop(0)
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        document = _document(path, read, sources)
        if document is not None:
            file = name_of(path, folder) if sources.several else ""
            included = _included(ConfigPart(document, document.data, sources.faults, file=file), path.parent, folder)
            sources.several = sources.several or bool(included)
            todo += included
            _take(document, name_of(path, folder) if sources.several else "", sources)
    if all(path.name in FILES for path in paths):
        sources.faults += _not_read(folder, seen)
    return sources


def _not_read(folder: Path, read: Collection[Path]) -> Iterator[Fault]:
    """Yield a warning for each file of the folder that was meant to be read, by its name."""
    for path in sorted(folder.glob("*.y*ml")):
        near = nearest(path.stem, ("langswarm", *SECTIONS), cutoff=MISTYPED)
        if path.resolve() in read or not (near or path.stem in IGNORED_BLOCKS):
            continue
        reason = hint(f"{near}{path.suffix}") if near else f": {OWN_PROCESS}"
        yield Fault(f"not read{reason}", file=path.name, is_warning=True)


def _document(path: Path, read: ReadDocument, sources: ConfigSources) -> Document | None:
    try:
        return read(path)
    except ConfigError as error:
        sources.faults += [replace(fault, file=path.name) for fault in error.faults]
        return None


def _included(part: ConfigPart, beside: Path, folder: Path) -> list[Path]:
    """Return the files that a file includes, by paths relative to it; none is outside the configuration's folder."""
    found: list[Path] = []
    for item, name in either(part, "include", "includes").texts():
        if Path(name).is_absolute() or not lies_in(folder, beside / name):
            item.fault(f"{name!r} leaves the configuration's folder; only files in it are read")
            continue
        files = sorted(beside.glob(name)) if any(sign in name for sign in "*?[") else [beside / name]
        files = [file for file in files if lies_in(folder, file)]
        if not files or not all(file.is_file() for file in files):
            item.fault(f"there is no file {name!r} beside this one")
        found += [file for file in files if file.is_file()]
    return found


def _take(document: Document, file: str, sources: ConfigSources) -> None:
    part = ConfigPart(document, document.data, sources.faults, file=file)
    if not isinstance(document.data, dict):
        part.fault("expected a mapping with 'agents', 'tools' and 'workflows'")
        return
    part.check_keys(TOP | IGNORED_BLOCKS)
    for key in IGNORED_BLOCKS.intersection(document.data):
        part.at(key).warn(f"no effect: {OWN_PROCESS}")
    for section, parts in sources.parts.items():
        if part.has(section):
            parts.append(part.at(section))


def _named(part: ConfigPart) -> Iterable[tuple[str, ConfigPart]]:
    if isinstance(part.value, dict):
        yield from part.entries()
        return
    for item in part.items():
        name = item.first("id", "name", "identifier") if isinstance(item.value, dict) else item
        if name is None:
            item.fault("'id' is missing")
        elif text := name.text():
            yield text, item
