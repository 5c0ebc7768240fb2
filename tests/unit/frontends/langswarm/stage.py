"""Texts of LangSwarm's files, loaded and played in memory, with agents that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cantata.config.documents import Document, parse
from cantata.config.formats import Configuration
from cantata.errors import ConfigError
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue
from cantata_frontends.langswarm import format
from cantata_frontends.langswarm.chains import inputs
from tests.unit.flows.interpreter import Run, Tool, ToolFailure

AGENTS = "agents: [" + ", ".join(f"{{id: {name}, model: m}}" for name in ("ann", "bob", "cleo", "dan", "eve")) + "]\n"

Say = Callable[[str], JsonValue]


def load(folder: Path, /, *texts: str, environment: Mapping[str, str] | None = None, **files: str) -> Configuration:
    """What files say: one text, or files by name; raises ConfigError."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    for text in texts:
        (folder / "flow.yaml").write_text(text)
    path, document = (folder, None) if files else (folder / "flow.yaml", Document(None))
    return format.load(path, document, read=_read, environment=environment or {})


def faults(folder: Path, *texts: str, **files: str) -> list[str]:
    """Return all that is wrong with files, warnings too."""
    try:
        return [str(fault) for fault in load(folder, *texts, environment={}, **files).faults]
    except ConfigError as error:
        return [str(fault) for fault in error.faults]


def play(loaded: Configuration, workflow: str, text: str = "hello", **replies: Tool | JsonValue) -> Run:
    """Run a workflow to its end. An agent says what it is told to, a text in which `{}` is its input, else its name and its input."""
    assert workflow in loaded.definitions.chains, loaded.faults
    definitions = loaded.definitions
    tools: dict[str, Tool] = {
        name: _agent(name, replies.get(name.partition("@")[0], f"{name}<{{}}>")) for name in definitions.agents
    }
    tools |= {name: say for name, say in replies.items() if callable(say) and name not in tools}
    tools["langswarm.value"] = lambda given: given["value"]
    tools["langswarm.check"] = _check
    node = ChainNode(
        node_id="it", kind="chain", name=workflow, input=dict.fromkeys(("user_input", "user_query", "input"), text)
    )
    return Run(ChainRequest(nodes=[node], entry_node="it"), definitions, tools).play()


def answer(loaded: Configuration, workflow: str, text: str = "hello", **replies: Tool | JsonValue) -> JsonValue:
    """What a workflow answers."""
    run = play(loaded, workflow, text, **replies)
    assert run.status == "succeeded", run.story
    return run.output("it")


def asked(run: Run) -> list[str]:
    """The steps of the workflow that called somebody, in order."""
    return [
        step.removeprefix("it/")
        for step in run.story
        if step.startswith("it/") and "@" not in step and _calls(run, step)
    ]


def _check(given: dict[str, JsonValue]) -> JsonValue:
    try:
        inputs.check(**given)  # type: ignore[arg-type]  # as JSON
    except ValueError as error:
        raise ToolFailure(str(error)) from error
    return None


def _calls(run: Run, step: str) -> bool:
    return run.states[step] == "done" and not isinstance(run.outputs.get(step), bool)


def _agent(name: str, replies: Tool | JsonValue) -> Tool:
    def say(given: dict[str, JsonValue]) -> JsonValue:
        if callable(replies):
            return replies(given)
        return (
            replies.replace("{}", str(given["input"] if len(given) == 1 and "input" in given else given))
            if isinstance(replies, str)
            else replies
        )

    return say


def _read(path: Path) -> Document:
    return parse(path.read_text(), source=str(path))
