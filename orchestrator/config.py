"""Finds, loads and checks configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import ConfigError, Fault
from orchestrator.formats import langswarm
from orchestrator.formats.a2e import is_request, kind_faults, load_request, with_lines
from orchestrator.formats.diskurs import folder as diskurs
from orchestrator.formats.documents import Document, parse
from orchestrator.formats.faults import did_you_mean
from orchestrator.formats.native import load_definitions
from orchestrator.models.definitions import Agent, Defaults, Definitions
from orchestrator.models.wire import ChainRequest
from orchestrator.settings import settings

DEFAULT_FILE = Path("configs/default.yaml")
FOLDERS_FILES = ("config.yml", "config.yaml")
BUILT_IN = Definitions(
    agents={"assistant": Agent(description="Answers any text with the default model.")}, defaults=Defaults(agent="assistant")
)


def find(explicit: str | None = None) -> Path | None:
    """The configuration file: the one named, else that of CANTATA_CONFIG, else configs/default.yaml here; None for the built-in one."""
    if explicit:
        return Path(explicit)
    named = settings().config
    if named and not named.exists():
        raise ConfigError("CANTATA_CONFIG names this file, but it does not exist; correct the variable or unset it", source=str(named))
    return named or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)


def load(path: Path | None) -> Definitions:
    """Return the definitions in this file, or the built-in ones; a ConfigError lists every fault."""
    return _load(path)[0]


def load_sound(path: Path | None) -> Definitions:
    """Return the same, sound in all that their chains name too."""
    from orchestrator.planning.chains import checks  # noqa: PLC0415  # who only loads, such as a supervisor, needs no jmespath

    definitions, in_files = _load(path)
    faults = checks.check_chains(definitions)
    if faults:
        raise ConfigError(in_files(faults), source=str(path))
    return definitions


def _load(path: Path | None) -> tuple[Definitions, Callable[[Sequence[Fault]], list[Fault]]]:
    """Return the definitions in a file, and what tells where in it planning found faults."""
    if path is None:
        return BUILT_IN, list
    found = opened(path)
    if isinstance(found, langswarm.Loaded):
        return found.definitions, found.in_files
    if is_request(found):
        raise ConfigError("this is a chain request, not a configuration; `submit chain` runs it", source=found.source)
    return definitions_in(found, path), lambda faults: with_lines(faults, found)


def opened(path: Path) -> langswarm.Loaded | Document:
    """Return what LangSwarm's files say, if this is one of them or their folder, else the document; a ConfigError lists every fault."""
    if path.is_dir() and not any((path / name).is_file() for name in FOLDERS_FILES):
        folder, paths = path, langswarm.files_in(path)
    else:
        document = read(path)
        if path.is_dir() or diskurs.is_folder(document) or not langswarm.is_langswarm(document.data):
            return document
        folder, beside = path.parent, langswarm.files_in(path.parent)
        paths = beside if path in beside else [path]
    return langswarm.load(paths, folder=folder.absolute(), read=read, environment=os.environ) if paths else read(path)


def read(path: Path) -> Document:
    """The document in this file, or in the config.yml of this folder; a ConfigError if it cannot be read, or is no YAML or JSON."""
    if path.is_dir():
        path = next((file for name in FOLDERS_FILES if (file := path / name).is_file()), path)
        if path.is_dir():
            names = ", ".join((*FOLDERS_FILES, *langswarm.FILES))
            raise ConfigError(f"this folder has none of the files that are looked for: {names}", source=str(path))
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError("this file does not exist", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"this file is no text in UTF-8: byte {error.start} is wrong", source=str(path)) from error
    except OSError as error:
        raise ConfigError(f"this file cannot be read: {error.strerror}", source=str(path)) from error
    return parse(text, source=str(path))


def request_named(name: str, definitions: Definitions) -> tuple[ChainRequest, Document]:
    """The chain request in the file of this name, or the chain of the configuration that is called so, and the document it stands in.

    Raises ConfigError.
    """
    if _is_file(name):
        document = read(Path(name))
        return load_request(document), document
    chain = definitions.chains.get(name)
    if chain is None:
        known = did_you_mean(name, definitions.chains)
        raise ConfigError(f"there is no such file, and no chain of that name in the configuration{known}", source=name)
    return ChainRequest(chain_id=name, nodes=chain.nodes, entry_node=chain.entry_node, inputs=chain.inputs), Document(None, name)


def _is_file(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long, or what no path can hold: a text that is no name of a file
        return False


def check_file(path: Path) -> list[Fault]:
    """All that is wrong with a configuration, or with the form of a chain request, whichever the file is."""
    try:
        document = opened(path)
        if isinstance(document, langswarm.Loaded):
            return []
        if is_request(document):
            load_request(document)
            return list(kind_faults(document, "nodes.*.kind"))
        definitions_in(document, path)
    except ConfigError as error:
        return list(error.faults)
    return []


def definitions_in(document: Document, path: Path) -> Definitions:
    """The definitions that a document from this path holds, in whichever format; a ConfigError lists every fault."""
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    if diskurs.is_folder(document):
        return diskurs.load_folder(document, folder=folder, environ=os.environ, check_template=_check_template)
    return load_definitions(document, folder=folder)


def _check_template(text: str) -> list[str]:
    """The templates that a Jinja template includes; raises ValueError with what is wrong with it."""
    from orchestrator.planning import templates  # noqa: PLC0415  # only folders with templates need jinja2, which takes long to import

    return templates.check(text)
