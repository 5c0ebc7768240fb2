"""`submit plan` and `submit check`: the plan and the faults of a document. They need no service."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from cantata.config import loading as configuration
from cantata.config.chain_requests import is_request, load_request, with_lines
from cantata.config.documents import Document
from cantata.config.faults import in_order
from cantata.config.formats import Configuration
from cantata.config.source_map import KeyPath
from cantata.config.user_code import determinism
from cantata.config.user_code.function_source import definition_of
from cantata.config.user_code.import_trials import ImportTrial
from cantata.errors import ConfigError, Fault, without_warnings
from cantata.flows.chains import checks, expand
from cantata.flows.chains.declared_inputs import read_from_input
from cantata.flows.chains.loops import outline
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Graph, Step
from cantata.flows.provider_schemas import fit_tools, unfit_reason
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.operation.extras import has_celery
from cantata.surfaces.cli.import_check import foreign_faults, import_faults, task_faults, try_imports
from cantata.surfaces.cli.main import INVALID
from cantata.surfaces.cli.options import config_option, json_option
from cantata.surfaces.cli.requests import load_checked_chain, load_definitions, read_document
from cantata.surfaces.cli.views.plan_tree import TreeLine, draw_tree, graph_tree
from cantata.surfaces.cli.views.progress import show_progress
from cantata.text import text_format
from cantata.values import ToolSchema

_WORKFLOW = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@click.command()
@click.argument("file", required=False)
@click.option("--turn", "text", metavar="TEXT", help="Plan a turn instead of a chain.")
@click.option("--team", metavar="NAME", help="The team that would answer it.")
@click.option("--agent", metavar="NAME", help="The agent that would answer it.")
@config_option
@json_option
def plan(
    file: str | None, text: str | None, team: str | None, agent: str | None, config: str | None, as_json: bool
) -> int:
    """Show the graph and the canvases of a chain or a turn, without running it. FILE is as in `submit chain`."""
    if (file is None) == (text is None):
        raise click.UsageError("name the FILE of a chain request, or give a turn with --turn TEXT")
    definitions = load_definitions(config)
    graph = (
        expand.plan(load_checked_chain(file, definitions, is_draft=True).request, definitions)
        if file
        else turn_plan.plan_turn(TurnRequest(text=text or "", team=team, agent=agent), definitions)
    )
    messages, branches = _canvases(graph) if has_celery() else (None, None)
    if as_json:
        click.echo(json.dumps({"graph": graph.model_dump(mode="json", exclude_defaults=True), "canvas": messages}))
    else:
        click.echo("\n".join(["graph", *draw_tree(graph_tree(graph, definitions))]))
        click.echo(
            "canvas: pip install 'cantata[celery]' shows it"
            if branches is None
            else "\n".join(["canvas", *draw_tree(branches)])
        )
    return 0


def _canvases(graph: Graph) -> tuple[list[Any], list[TreeLine]]:
    """Return the messages with which a graph begins, and as branches of a tree."""
    from cantata.client.application import make_app
    from cantata.flows.canvas import MessageHead
    from cantata.surfaces.cli.views.canvas_tree import canvas_tree, canvases_of

    canvases = list(canvases_of(graph, MessageHead(make_app("redis://localhost"), "RUN")))
    return [each for each in canvases if not isinstance(each, Step)], canvas_tree(canvases)


@click.command()
@click.argument("file", required=False)
@click.option(
    "--strict", "is_strict", is_flag=True, help="Take warnings for faults: exit with status 2 if there are any."
)
@config_option
@json_option
def check(file: str | None, config: str | None, is_strict: bool, as_json: bool) -> int:
    """Report every fault and warning of a configuration or a chain request, or of a workflow in Python.

    FILE may be - for standard input, or MODULE:FUNCTION for a workflow in Python, of this folder or an installed package. Without it the
    configuration is checked.
    """
    file = file or str(configuration.find(config) or "")
    if not file:
        raise click.UsageError("there is no configuration here: name a FILE")
    with show_progress("checking"):
        found, description = check_file(file, config)
    faults = found if is_strict else without_warnings(found)
    if as_json:
        listed = [asdict(each) for each in found]
        click.echo(json.dumps({"source": file, "faults": listed}, ensure_ascii=False))
        return INVALID if faults else 0
    folder = Path(file) if Path(file).is_dir() else Path(file).parent
    for fault in found:
        click.echo(fault.in_file(str(folder / fault.file) if fault.file else file))
    if not faults:
        warnings = f", {text_format.counted(len(found), 'warning')}" if found else ""
        click.echo(f"{file}: no faults{warnings} ({description})")
    return INVALID if faults else 0


def _file_of(fault: Fault) -> str:
    return fault.file


def check_file(file: str, config: str | None) -> tuple[Sequence[Fault], str]:
    """Return the faults of a document and its description. Raises ConfigError for faults in the configuration behind a chain request."""
    if _WORKFLOW.fullmatch(file) and not Path(file).exists():
        definitions = load_definitions(config) if configuration.find(config) else None
        return _workflow_faults(file, Path.cwd(), definitions), "a workflow in Python"
    try:
        document = read_document(file) if file == "-" else configuration.opened(Path(file))
        if isinstance(document, Configuration):
            faults = sorted(
                in_order([*document.locate(checks.check_chains(document.definitions)), *document.faults]), key=_file_of
            )
            faults += foreign_faults(document.definitions)
            return faults, f"{_count_entries(document.definitions)}, {document.description}"
    except ConfigError as error:
        return error.faults, ""
    if is_request(document):
        return _check_request(document, load_definitions(config))
    return _check_configuration(document, Path(file))


def _workflow_faults(function: str, folder: Path, definitions: Definitions | None) -> Sequence[Fault]:
    """Return the faults of a workflow in Python, in its file as seen from the folder."""
    definition = definition_of(function, folder=folder)
    source = os.path.relpath(definition.file, folder) if definition else ""
    return [
        replace(each, file=source) for each in determinism.faults_of(function, folder=folder, definitions=definitions)
    ]


def _check_request(document: Document, definitions: Definitions) -> tuple[Sequence[Fault], str]:
    try:
        request = load_request(document)
    except ConfigError as error:
        return error.faults, ""
    faults = with_lines(checks.check(request, definitions, is_draft=True)[0], document)
    return faults, f"a chain request of {text_format.counted(len(request.nodes), 'node')}{_missing_input(request)}"


def _missing_input(request: ChainRequest) -> str:
    """Return the names that a request without an input reads from it, as a clause."""
    if request.inputs or request.initial_input:
        return ""
    names = read_from_input(outline(request.nodes, request.entry_node).nodes)
    return f", which expects an input with {', '.join(map(repr, names))}" if names else ""


def _check_configuration(document: Document, path: Path) -> tuple[Sequence[Fault], str]:
    try:
        found = configuration.native(document, path)
    except ConfigError as error:
        return error.faults, ""
    folder = Path(found.definitions.folder or ".")
    planned = [*checks.check_chains(found.definitions), *checks.check_schedules(found.definitions)]
    code = [
        each
        for name in found.definitions.workflows.values()
        for each in _workflow_faults(name.function, folder, found.definitions)
    ]
    commands = _command_warnings(document, found.definitions)
    trial = try_imports(document, folder, found.definitions)
    faults = [*found.locate(planned), *import_faults(document, trial), *task_faults(document, trial), *commands, *code]
    faults += _provider_warnings(document, found.definitions, trial)
    return faults, _count_entries(found.definitions)


def _command_warnings(document: Document, definitions: Definitions) -> Iterator[Fault]:
    """Yield a warning for each command whose program may read an argument of a run as an option, such as `--output=FILE`."""
    for name, command in definitions.commands.items():
        if command.args is None and command.command[-1] != "--":
            message = "a run's 'args' that begin with '-' are options of this program: set 'args' to 'operands', before which '--' is put"
            fault = document.fault(
                ("commands", name, "command"), f"{message}, to 'none', or to 'any' if options are meant"
            )
            yield replace(fault, is_warning=True)


def _provider_warnings(document: Document, definitions: Definitions, trial: ImportTrial) -> Iterator[Fault]:
    """Yield a warning for each schema that the provider of an agent's model does not take as it is written."""
    found = dict[tuple[KeyPath, str], None]()  # agents of one provider may share a tool
    for name, agent in definitions.agents.items():
        model = definitions.model_of(agent.model)
        provider, _, rest = model.model.partition("/")
        if rest and "api_base" not in model.params:  # else a server of your own, of which nothing is known
            found |= dict.fromkeys(_provider_faults(name, definitions, provider, trial))
    for path, message in found:
        yield replace(document.fault(path, message), is_warning=True)


def _provider_faults(
    name: str, definitions: Definitions, provider: str, trial: ImportTrial
) -> Iterator[tuple[KeyPath, str]]:
    agent = definitions.agents[name]
    schema = agent.output.json_schema if agent.output else None
    if schema is not None and (reason := unfit_reason(schema, provider)):
        yield (
            ("agents", name, "output", "schema"),
            f"{provider} takes this schema as a hint, without 'strict': {reason}",
        )
    if agent.dialect != "native":  # its prompt describes the tools
        return
    fitted = fit_tools([tool for each in agent.tools if (tool := _declared(each, definitions, trial))], provider)
    for each, reason in fitted.left_out.items():
        yield _place(each, definitions), f"agent {name!r} is not offered this tool: {reason}"
    for each, change in fitted.changed.items():
        yield _place(each, definitions), f"{provider} gets another form of this tool: {change}"
    for each, reason in trial.undescribed.items():
        if each in agent.tools:
            yield _place(each, definitions), f"agent {name!r} cannot be offered this tool, and fails: {reason}"


def _declared(name: str, definitions: Definitions, trial: ImportTrial) -> ToolSchema | None:
    """Return the schema of a tool; None if it is known to workers only, as of an MCP server."""
    tool = definitions.tools.get(name)
    if name in trial.schemas or tool is None or tool.parameters is None:
        return trial.schemas.get(name)
    return ToolSchema(name=name, description=tool.description, parameters=tool.parameters)


def _place(name: str, definitions: Definitions) -> KeyPath:
    return ("tools", name, "function" if definitions.tools[name].parameters is None else "parameters")


def _count_entries(definitions: Definitions) -> str:
    """Return the number of entries in each section of a configuration."""
    if definitions.extension:
        return f"{len(definitions.extension.agents)} agents"
    sections = {
        name: len(getattr(definitions, name))
        for name in ("models", "tools", "skills", "agents", "teams", "chains", "workflows")
    }
    return (
        ", ".join(f"{count} {name if count > 1 else name[:-1]}" for name, count in sections.items() if count) or "empty"
    )
