"""Search, loading and check of configurations."""

from __future__ import annotations

import os
from pathlib import Path

from cantata.config.chain_requests import is_request, load_request, with_lines
from cantata.config.documents import Document, parse
from cantata.config.file_versions import ByFileVersion, note
from cantata.config.formats import Configuration, formats
from cantata.config.native import load_definitions
from cantata.errors import ConfigError, Fault
from cantata.flows.definitions import Agent, Defaults, Definitions
from cantata.flows.wire import ChainRequest
from cantata.operation.project_folder import CONFIG_FILE, project_folder, stack_configuration
from cantata.settings import settings
from cantata.text.suggestions import did_you_mean

FOLDERS_FILES = ("config.yml", "config.yaml")
BUILT_IN = Definitions(
    agents={"assistant": Agent(description="Answers any text with the default model.")},
    defaults=Defaults(agent="assistant"),
)


def find(explicit: str | None = None) -> Path | None:
    """Return the configuration file: the named one, else CANTATA_CONFIG, configs/default.yaml, that of the stack here; None: built in.

    Raises ConfigError if CANTATA_CONFIG names a file that does not exist.
    """
    if explicit:
        return Path(explicit)
    named = settings().config
    if named and not named.exists():
        raise ConfigError(
            "CANTATA_CONFIG names this file, but it does not exist; correct the variable or unset it", source=str(named)
        )
    if named:
        return named
    folder = project_folder()
    default = CONFIG_FILE if folder == Path.cwd() else folder / CONFIG_FILE
    return default if default.is_file() else stack_configuration()


def load(path: Path | None) -> Definitions:
    """Return the definitions in this file, or the built-in ones. Raises ConfigError with every fault."""
    return configuration_in(path).definitions


def load_sound(path: Path | None) -> Configuration:
    """Return the configuration in this file after a check of its chains too. Raises ConfigError with every fault.

    A file in the native format is read once, and again when it, or a file that it names, changes. So all who read it share the
    definitions, which nobody may change.
    """
    return _by_version(path) if path else _sound(None)


def _sound(path: Path | None) -> Configuration:
    from cantata.flows.chains import checks  # noqa: PLC0415  # loads jmespath

    found = configuration_in(path)
    faults = checks.check_chains(found.definitions)
    if faults:
        raise ConfigError([*found.locate(faults)], source=str(path))
    return found


_by_version = ByFileVersion(
    _sound, keeps=lambda found: found.is_native
)  # other formats do not note all files that they read


def configuration_in(path: Path | None) -> Configuration:
    """Return the configuration in a file or folder, or the built-in one. Raises ConfigError with every fault, and for a chain request."""
    if path is None:
        return Configuration(BUILT_IN)
    found = opened(path)
    if isinstance(found, Configuration):
        return found
    if is_request(found):
        raise ConfigError("this is a chain request, not a configuration; `submit chain` runs it", source=found.source)
    return native(found, path)


def native(document: Document, path: Path) -> Configuration:
    """Return the configuration in a document of the native format. Raises ConfigError with every fault."""
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    return Configuration(
        load_definitions(document, folder=folder), lambda faults: with_lines(faults, document), is_native=True
    )


def opened(path: Path) -> Configuration | Document:
    """Return the configuration if a further format detects it, else the document. Raises ConfigError with every fault."""
    document = None if path.is_dir() and not any((path / name).is_file() for name in FOLDERS_FILES) else read(path)
    for each in formats():
        if each.detects(path, document):
            return each.load(path, document, read=read, environment=os.environ)
    return document or read(path)


def read(path: Path) -> Document:
    """Return the document in this file, or in the config.yml of this folder. Raises ConfigError if it cannot be read or parsed."""
    if path.is_dir():
        note(path)
        path = next((file for name in FOLDERS_FILES if (file := path / name).is_file()), path)
        if path.is_dir():
            names = ", ".join([*FOLDERS_FILES, *(name for each in formats() for name in each.files)])
            raise ConfigError(f"this folder has no configuration file; expected one of {names}", source=str(path))
    note(path)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError("this file does not exist", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"this file is not UTF-8 text: byte {error.start} is invalid", source=str(path)) from error
    except OSError as error:
        raise ConfigError(f"this file cannot be read: {error.strerror}", source=str(path)) from error
    return parse(text, source=str(path))


def request_named(name: str, definitions: Definitions) -> tuple[ChainRequest, Document]:
    """Return the chain request in the file of this name, or else the chain of the configuration with this name, and its document.

    A request without a `chain_id` gets the name of its file, under which its runs are listed. Raises ConfigError.
    """
    if os.path.exists(name):
        document = read(path := Path(name))
        request = load_request(document)
        return request if request.chain_id else request.model_copy(update={"chain_id": path.name}), document
    return chain_named(name, definitions, "such file, and no "), Document(None, name)


def chain_named(name: str, definitions: Definitions, what: str = "") -> ChainRequest:
    """Return the request of the chain of the configuration with this name. Raises ConfigError."""
    if name in definitions.refused:
        raise ConfigError([Fault(message) for message in definitions.refused[name]], source=name)
    chain = definitions.chains.get(name)
    if chain is None:
        known = did_you_mean(name, definitions.chains)
        raise ConfigError(f"there is no {what}chain of that name in the configuration{known}", source=name)
    return ChainRequest(chain_id=name, nodes=chain.nodes, entry_node=chain.entry_node, inputs=chain.inputs)
