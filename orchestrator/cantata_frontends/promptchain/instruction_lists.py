"""The lists of a PromptChain: models, texts and the files of texts, agentic steps."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cantata.config.texts import file_of
from cantata.flows.definitions import Model
from cantata.flows.instructions import AgenticStep, PromptStep
from cantata.values import JsonValue
from cantata_frontends.promptchain.argument_values import check_keys, check_parameters, validated

log = logging.getLogger("cantata.frontends.promptchain")

_PROMPT_ID = re.compile(r"([\w.-]+)(:\w+)?")


def AgenticStepProcessor(  # the documented name
    objective: str,
    max_internal_steps: int = 5,
    model_name: str | None = None,
    model_params: Mapping[str, JsonValue] | None = None,
    history_mode: str = "minimal",
    max_tool_rounds: int = 40,
    tools: Sequence[str] | None = None,
    **unknown: object,
) -> AgenticStep:
    """Return an instruction: an objective that a model pursues with the chain's tools, or with `tools` only.

    Without `model_name` it uses the first of the chain's models. `max_tool_rounds` is at least 1. Raises ValueError for an argument that is
    not valid, such as an empty objective.
    """
    for warning in check_parameters(
        unknown, inspect.signature(AgenticStepProcessor).parameters, "AgenticStepProcessor"
    ):
        log.warning("%s", warning)
    if not isinstance(objective, str) or not objective.strip():
        raise ValueError("an agentic step needs an objective, which is a text")
    rounds = max(1, max_tool_rounds) if isinstance(max_tool_rounds, int) else max_tool_rounds
    fields = {
        "objective": objective, "max_internal_steps": max_internal_steps, "max_tool_rounds": rounds,
        "model_name": model_name,
        "model_params": dict(model_params or {}), "history_mode": history_mode, "tools": None if tools is None else list(tools),
    }  # fmt: skip
    return validated(AgenticStep, f"the agentic step {objective[:40]!r}", fields)


def models_for(models: Iterable[str | Mapping[str, object]], instructions: Sequence[object]) -> list[str | Model]:
    """Return the models of the texts among the instructions: one for all, or one for each. Raises ValueError if their number differs.

    Several equal models are one.
    """
    given = [models] if isinstance(models, str | Mapping) else list(models)
    given = given[:1] if all(each == given[0] for each in given) else given
    texts = sum(isinstance(each, str | PromptStep) for each in instructions)
    if len(given) != texts and (len(given) != 1):
        raise ValueError(
            f"there {'is' if len(given) == 1 else 'are'} {_count(len(given), 'model')} for {_count(texts, 'text')} among the instructions; "
            "give one for all, or one for each (functions, agentic steps and chains have none)"
        )
    for each in instructions:
        if isinstance(each, AgenticStep) and each.model_name is None and not given:
            raise ValueError(
                f"the agentic step {each.objective[:40]!r} has no model: name one as its model_name, or give the chain models"
            )
    return [_model(each) for each in given]


def text_of(text: str, folders: Iterable[Path]) -> str:
    """Return the text, or the content of the file that it names, from the first of the folders that has it.

    A text names a file only if it has the form `file: path`, or ends in .md, .txt or .jinja2 and the file exists, or is the id of a prompt,
    one word: all folders but the last one, that of the script, are searched for a .md or .txt file of this name. Raises ValueError.
    """
    searched = list(folders)
    files = [file for folder in searched if (file := file_of(text, folder))] or [*_prompts_of_id(text, searched[:-1])]
    found = next((file for file in files if file.is_file()), None)
    if files and found is None:
        raise ValueError(f"the prompt {text!r} is not in {' nor in '.join(str(folder) for folder in searched)}")
    return text if found is None else found.read_text("utf-8-sig")


def _prompts_of_id(text: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of the prompt that a text is the id of. Raises ValueError for `id:strategy`."""
    found = _PROMPT_ID.fullmatch(text)
    for file in (
        [folder / f"{found.group(1)}{ending}" for folder in folders for ending in (".md", ".txt")] if found else ()
    ):
        if file.is_file():
            if found and found.group(2):
                raise ValueError(
                    f"the prompt {text!r}: strategies are not available; give the whole text a file of its own"
                )
            yield file


def script_folder() -> Path:
    """Return the folder of the running script; the working directory in an interactive session."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file and Path(file).is_file() else Path.cwd()


def _model(given: str | Mapping[str, object]) -> str | Model:
    if isinstance(given, str):
        if not given.strip():
            raise ValueError("a model's name is empty; write one, such as 'openai/gpt-4o-mini'")
        return given
    if not isinstance(given, Mapping) or not given.get("name"):
        raise ValueError(f"a model is a name or {{'name': ..., 'params': {{...}}}}, not {given!r}")
    check_keys(given, ("name", "params"), f"model {given['name']!r}")
    return validated(Model, f"model {given['name']!r}", {"model": given["name"], "params": given.get("params") or {}})


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
