"""Bad folders of Diskurs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from cantata.errors import ConfigError
from tests.integration.fleet.diskurs_folders import JUDGED, PARALLEL, TOOLS
from tests.integration.fleet.diskurs_stage import CONCEPTS
from tests.unit.frontends.diskurs.folders import changed, read
from tests.unit.messages.entries import Entry, entries, text, without

HELPERS, CONDUCTORS = "    topics: [conductor]", "    topics: [helper]"
RULE = "    rules: [{name: r, location: agents/helper, conditionName: is_valid, targetAgent: cook}]"
CHANGES: dict[str, list[tuple[dict[str, str], list[tuple[str, str]]]]] = {
    "names and keys": [
        (CONCEPTS, [("longtermMemoryClass", "longtermMemryClass")]),
        (CONCEPTS, [("isValidName: is_valid", "isValidNam: is_valid")]),
        (CONCEPTS, [("isValidName: is_valid", "isValidName: is_vald")]),
        (CONCEPTS, [("firstContact: conductor", "firstContact: conducter")]),
        (CONCEPTS, [("topics: [helper]", "topics: [helpers]")]),
        (CONCEPTS, [("    llm: main\n    prompt:\n", "    llm: mian\n    prompt:\n")]),
        (CONCEPTS, [("type: multistep\n", "type: multistop\n")]),
        (CONCEPTS, [("location: agents/helper", "location: agents/helpr")]),
        (CONCEPTS, [("location: agents/helper", "location: ../..")]),
        (CONCEPTS, [(HELPERS, f"    lockedFields: {{nam: Jo}}\n{HELPERS}")]),
        (CONCEPTS, [("    topics: [conductor]", "    topics: [conductor, helper]")]),
        (CONCEPTS, [("    topics: [helper]", "    finalizerName: helper\n    topics: [helper]")]),
        (CONCEPTS, [("${OPENAI_API_KEY}", "sk-123")]),
        (CONCEPTS, [("type: multistep_prompt", "type: heuristic_prompt")]),
        (CONCEPTS, [(CONDUCTORS, f"{CONDUCTORS}\n{RULE}")]),
        (JUDGED, [("    supervisor: upper", "    supervisor: helper")]),
        (JUDGED, [("    canFinalizeName: judge", "    canFinalizeName: helper")]),
        (JUDGED, [("    finalProperties: [letter, topic]\n", "")]),
        (JUDGED, [("[letter, topic]", "[leter, topic]")]),
        (JUDGED, [("type: Known", "type: Knwn")]),
        (PARALLEL, [("join_conversations", "join_conversation")]),
        (TOOLS, [("dependencies: [shelf]", "dependencies: [shelv]")]),
        (TOOLS, [("function_name: whoami", "function_name: whoam")]),
        (TOOLS, [("tools: [price, whoami]", "tools: [prise]")]),
    ],
    "warnings": [
        (CONCEPTS, [("toolExecutorType", "toolExecutor")]),
        (CONCEPTS, [(HELPERS, f"    colour: red\n{HELPERS}")]),
        (CONCEPTS, [(HELPERS, f"    maxDispatches: 3\n{HELPERS}")]),
        (CONCEPTS, [("modelMaxTokens: 8192", "useEntraId: true")]),
        (CONCEPTS, [("isFinalName: is_final", "isFinalName: over")]),
        (CONCEPTS, [("isValidName: is_valid", "isValidName: good")]),
        (CONCEPTS, [("canFinalizeName: can_finalize", "failName: fail")]),
        (CONCEPTS, [("llms:", "toolDependencies: [{name: shelf, type: x, url: y}]\nllms:")]),
        (JUDGED, [("    finalProperties", "    topics: [upper]\n    finalProperties")]),
    ],
}

IMPORTS: dict[str, list[str]] = {
    "imports": [
        "from diskurs import NoSuch",
        "from diskurs.entities import PromptArgumnt",
        "from diskurs.azure_llm_client import AzureOpenAIClient",
        "from .shared import One, Two",
        "import diskurs.dispatcher",
    ],
}

INCLUDES: dict[str, list[str]] = {
    "includes": [
        "{% include 'wrods.jinja2' %}",
        "{% include '../conductor/prompt.py' %}",
        "{% include 'words.jinja2' %}",
        "{% include answer %}",
    ],
}


def found() -> Iterator[Entry]:
    """Check each of them; a change of a sound folder is shown as what stood there and what stands there now."""
    code = CONCEPTS["agents/helper/prompt.py"].lstrip()
    template = "agents/helper/user_prompt.jinja2"
    yield from entries(CHANGES, lambda given: _checked(changed(given[0], *given[1])), lambda given: _shown(given[1]))
    yield from entries(IMPORTS, lambda line: _checked({**CONCEPTS, "agents/helper/prompt.py": f"{line}\n{code}"}), text)
    yield from entries(
        INCLUDES,
        lambda given: _checked({**CONCEPTS, template: given, "agents/helper/words.jinja2": "a\n{% if x %}"}),
        text,
    )


def _shown(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"{old.strip()!r} -> {new.strip()!r}" for old, new in pairs)


def _checked(files: dict[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            found = read(folder, files).faults
        except ConfigError as error:
            found = error.faults
        return without(folder, [str(fault) for fault in found])
