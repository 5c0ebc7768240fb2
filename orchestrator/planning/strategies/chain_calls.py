"""Holds what a node gives to a named chain against the inputs that the chain declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.errors import StepError
from orchestrator.models.definitions import Chain, Definitions
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import ChainNode
from orchestrator.planning.strategies import chain_inputs
from orchestrator.planning.strategies.chain_specs import section_of

TURN_INPUTS = ("user_input", "user_query", "input")
"""What a chain that answers a turn is given: the text, under each of the names that workflows use for it."""


def call_faults(node: ChainNode, definitions: Definitions) -> Iterator[tuple[str, str]]:
    """Field and message of what is wrong with the input of a node that runs a named chain, as far as it shows before the run."""
    if section_of(node.kind, node.name, definitions) != "chains":
        return
    declared = chain_inputs.sound(definitions.chains[node.name].inputs)
    if declared is None:
        return
    named = f"of chain {node.name!r}"
    given = {**node.input, **node.input_map}
    for name, message in declared.missing(given):
        yield "input", f"input {name!r} {named} {message}"
    for name, message in declared.unknown(given):
        yield f"{'input_map' if name in node.input_map else 'input'}.{name}", message.replace("of the chain", named)
    fixed = {name: value for name, value in node.input.items() if name not in node.input_map}
    for name, message in declared.misfits(fixed):
        yield f"input.{name}", message


def turn_faults(name: str, chain: Chain) -> Iterator[str]:
    """What a chain needs that a turn cannot give."""
    declared = chain_inputs.sound(chain.inputs)
    for each, _ in declared.missing(TURN_INPUTS) if declared else ():
        yield f"workflow {name!r} needs the input {each!r}, which a turn does not give: it gives {', '.join(map(repr, TURN_INPUTS))}"


def given_to(name: str, chain: Chain, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What a named chain is given, with its defaults. Raises StepError for what does not fit its inputs."""
    declared = chain_inputs.read(chain.inputs)
    if declared is None:
        return dict(given)
    filled = declared.filled(given)
    faults = [f"{each}: {message}" for each, message in (*declared.missing(filled), *declared.misfits(filled))]
    if faults:
        raise StepError(f"chain {name!r} cannot take its input: {'; '.join(faults)}", code="bad_input")
    return filled
