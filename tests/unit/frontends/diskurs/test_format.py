"""What a Diskurs folder becomes, and what is wrong with one: every fault at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.config import loading
from cantata.config.documents import parse
from cantata.config.native import load_definitions
from cantata.errors import ConfigError
from cantata.flows.expressions import templates
from cantata.surfaces.cli.main import submit
from cantata_frontends.diskurs import format
from cantata_frontends.diskurs.conversation_config import CodeReference, ConversationConfig
from tests.integration.fleet.diskurs_folders import JUDGED, LLMS, PARALLEL, PLANNED, TOOLS
from tests.integration.fleet.diskurs_stage import CONCEPTS
from tests.unit.frontends.diskurs.folders import changed, read, write

HELPERS = "    topics: [conductor]"


def load(folder: Path, files: dict[str, str], **environ: str) -> ConversationConfig:
    definitions = read(folder, files, **environ).definitions
    assert definitions.folder == str(folder)
    assert definitions.extension is not None
    return ConversationConfig.model_validate(definitions.extension.settings)


def faults(folder: Path, files: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, files)
    return [str(fault) for fault in caught.value.faults]


def warnings(folder: Path, files: dict[str, str]) -> list[str]:
    return [str(fault) for fault in read(folder, files).faults]


@pytest.mark.parametrize("files", [CONCEPTS, TOOLS, JUDGED, PARALLEL, PLANNED])
def test_folders_load(tmp_path: Path, files: dict[str, str]) -> None:
    assert load(tmp_path, files).agents


def test_the_concepts_page_as_a_forum(tmp_path: Path) -> None:
    conversation = load(tmp_path, CONCEPTS)
    helper, conductor = conversation.agents["helper"], conversation.agents["conductor"]
    assert conversation.first_contact == "conductor"
    assert conversation.llms["main"].model == "openai/gpt-4o-mini"
    assert conversation.llms["main"].api_key_variable == "OPENAI_API_KEY"
    assert "sk-secret" not in conversation.model_dump_json()
    assert helper.description == "Answers questions about networks."
    assert (helper.prompt.file, helper.prompt.argument) == ("agents/helper/prompt.py", "FirstUserPromptArgument")
    assert helper.prompt.system_argument == "MySystemPromptArgument"
    assert helper.prompt.names == {"is_valid": "is_valid", "is_final": "is_final"}
    assert conversation.memory_of("conductor") == CodeReference(
        file="agents/conductor/prompt.py", name="MyLongtermMemory"
    )
    assert (helper.max_trials, helper.max_reasoning_steps, conductor.max_dispatches) == (5, 5, 50)


def test_both_spellings_of_keys_and_files_load(tmp_path: Path) -> None:
    snake = changed(
        CONCEPTS, ("firstContact", "first_contact"), ("isValidName", "is_valid_name"), ("modelName", "model_name")
    )
    del snake["agents/helper/system_prompt.jinja2"]
    snake["agents/helper/system_template.jinja2"] = "You help."
    assert load(tmp_path, snake).agents["helper"].prompt.system == "You help."


def test_variables_have_defaults(tmp_path: Path) -> None:
    files = changed(CONCEPTS, ("gpt-4o-mini", "'${MODEL:gpt-4o}'"))
    assert load(tmp_path, files).llms["main"].model == "openai/gpt-4o"
    assert load(tmp_path, files, MODEL="gpt-5").llms["main"].model == "openai/gpt-5"
    assert faults(tmp_path, changed(CONCEPTS, ("gpt-4o-mini", "'${MODEL}'"))) == [
        "line 6: llms[0].modelName: the environment variable 'MODEL' is not set; set it, or write ${MODEL:default}"
    ]


def test_what_the_original_drops_silently_is_kept(tmp_path: Path) -> None:
    files = changed(
        CONCEPTS,
        ("    topics: [helper]", "    maxDispatches: 3\n    maxTrials: 2\n    topics: [helper]"),
        (HELPERS, f"    lockedFields: {{name: Jo}}\n    initPromptArgumentsWithLongtermMemory: false\n{HELPERS}"),
    )
    conversation = load(tmp_path, files)
    assert (conversation.agents["conductor"].max_dispatches, conversation.agents["conductor"].max_trials) == (3, 2)
    assert conversation.agents["helper"].locked_fields == {"name": "Jo"}
    assert not conversation.agents["helper"].takes_memory


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    files = changed(
        CONCEPTS,
        ("toolExecutorType: default", "toolExecutorType: other"),
        ("topics: [helper]", "topics: [cook]"),
        ("isFinalName: is_final", "isFinalName: is_over"),
    )
    assert [fault.partition(":")[0] for fault in faults(tmp_path, files)] == ["line 3", "line 12", "line 22"]


def test_a_key_that_has_no_effect_is_dropped(tmp_path: Path) -> None:
    conductor = load(tmp_path / "tools", changed(TOOLS, ("    topics: [", "    tools: [price]\n    topics: ["))).agents[
        "conductor"
    ]
    planned = changed(
        PLANNED,
        ("{type: llm_compiler_prompt}", "{type: llm_compiler_prompt, location: plan, promptArgumentClass: Mine}"),
    )
    template = "{% for tool in tools %}{{ tool.name }}{% endfor %}"
    code = CONCEPTS["agents/helper/prompt.py"].replace("FirstUserPromptArgument", "Mine")
    planner = load(
        tmp_path / "plan", {**planned, "plan/prompt.py": code, "plan/system_prompt.jinja2": template}
    ).agents["planner"]
    assert (conductor.kind, conductor.tools) == ("conductor", [])
    assert (planner.prompt.argument, planner.prompt.system) == (None, template)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HELPERS, f"    finalProperties: [nme]\n{HELPERS}"),
        (
            HELPERS,
            f"    finalizerName: nobody\n    rules: [{{name: r, conditionName: c, targetAgent: cook}}]\n{HELPERS}",
        ),
        ("isFinalName: is_final", "isFinalName: is_final\n      finalizeName: nope"),
    ],
)
def test_a_key_that_has_no_effect_is_no_fault(tmp_path: Path, old: str, new: str) -> None:
    found = warnings(tmp_path, changed(CONCEPTS, (old, new)))
    assert found
    assert all("has no effect on" in warning for warning in found)


@pytest.mark.parametrize("kind", ["openai", "azure"])
def test_only_azure_takes_the_key_of_azure(tmp_path: Path, kind: str) -> None:
    files = changed(
        CONCEPTS,
        ("modelMaxTokens: 8192", "useEntraId: true, endpoint: https://x.example"),
        ("type: openai", f"type: {kind}"),
    )
    (found,) = (warning for warning in warnings(tmp_path, files) if "Entra" in warning)
    assert ("AZURE_API_KEY" in found) is (kind == "azure")


def test_a_dependency_that_a_tool_uses_needs_its_class(tmp_path: Path) -> None:
    found = faults(tmp_path, changed(TOOLS, (", class_name: Shelf", "")))
    assert any("'moduleName' and 'className' of 'shelf' are missing" in fault for fault in found)


def test_a_function_that_diskurs_replaces_is_none(tmp_path: Path) -> None:
    helper = load(tmp_path, changed(CONCEPTS, ("isFinalName: is_final", "isFinalName: over"))).agents["helper"]
    assert helper.prompt.names == {"is_valid": "is_valid", "is_final": ""}


def test_warnings_are_told_beside_faults(tmp_path: Path) -> None:
    files = changed(CONCEPTS, ("topics: [helper]", "topics: [cook]"), (HELPERS, f"    colour: red\n{HELPERS}"))
    assert [" warning: " in fault for fault in faults(tmp_path, files)] == [False, True]


def test_entries_without_a_name_are_told_once_each(tmp_path: Path) -> None:
    nameless = "tools: [{function: a, modulePath: a.py}, {function: b, modulePath: a.py}]\nllms:"
    found = [fault for fault in faults(tmp_path, changed(CONCEPTS, ("llms:", nameless))) if "warning" not in fault]
    assert [fault.partition(": ")[2] for fault in found] == [
        "tools[0]: 'name' is missing",
        "tools[0].function: unknown key 'function'; did you mean 'functionName'?",
        "tools[1]: 'name' is missing",
        "tools[1].function: unknown key 'function'; did you mean 'functionName'?",
    ]


def test_a_name_that_a_template_does_not_get_is_a_warning(tmp_path: Path) -> None:
    template = "{{ naem }} {% if merging %}x{% endif %} {{ mode | default('') }} {% set a = 1 %}{{ a }} {{ topic }}"
    found = warnings(tmp_path, {**CONCEPTS, "agents/helper/user_prompt.jinja2": template})
    assert [warning.partition("warning: ")[2] for warning in found] == [
        "the user template uses 'merging', which is not defined and renders as nothing",
        "the user template uses 'naem', which is not defined and renders as nothing; did you mean 'name'?",
    ]


def test_a_missing_name_that_a_template_computes_with_is_told_to_fail_the_run(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, {**CONCEPTS, "agents/helper/user_prompt.jinja2": "{{ naem.first }}"})
    assert "uses 'naem', which is not defined, so rendering it fails the run; did you mean 'name'?" in found


def test_fields_of_base_classes_are_known_and_those_of_computed_classes_are_not_guessed(tmp_path: Path) -> None:
    code = CONCEPTS["agents/helper/prompt.py"]
    mixed = code.replace(
        "class FirstUserPromptArgument(PromptArgument)", "class FirstUserPromptArgument(MySystemPromptArgument)"
    )
    files = {
        **CONCEPTS,
        "agents/helper/user_prompt.jinja2": "{{ mode }}{{ unknown }}",
        "agents/helper/prompt.py": mixed,
    }
    assert len(warnings(tmp_path / "base", files)) == 1
    computed = code.replace("(PromptArgument)", "(make_base())")
    assert warnings(tmp_path / "computed", {**files, "agents/helper/prompt.py": computed}) == []


def test_imports_that_are_there_or_may_fail_are_not_told(tmp_path: Path) -> None:
    lines = "import diskurs\nfrom diskurs import entities, tool\ntry:\n    from diskurs import NoSuch\nexcept ImportError:\n    pass\n"
    assert (
        warnings(tmp_path, {**CONCEPTS, "agents/helper/prompt.py": lines + CONCEPTS["agents/helper/prompt.py"]}) == []
    )


def test_a_template_with_a_fault_is_told_with_file_and_line(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, {**CONCEPTS, "agents/helper/user_prompt.jinja2": "a\n{% if x %}"})
    assert "agents/helper/user_prompt.jinja2: line 2" in found


def test_templates_that_a_template_includes_are_read_too(tmp_path: Path) -> None:
    files = {
        **CONCEPTS, "agents/helper/user_prompt.jinja2": "{% include 'rules/kind.jinja2' %} {{ answer }}",
        "agents/helper/rules/kind.jinja2": "{% from 'words.jinja2' import be %}{{ be('kind') }}",
        "agents/helper/words.jinja2": "{% macro be(what) %}Be {{ what }}.{% endmacro %}",
    }  # fmt: skip

    prompt = load(tmp_path, files).agents["helper"].prompt

    assert prompt.parts.keys() == {"rules/kind.jinja2", "words.jinja2"}
    assert templates.render(str(prompt.user), {"answer": "Yes"}, prompt.parts) == "Be kind. Yes"


def test_agents_that_would_hand_over_for_ever_are_told(tmp_path: Path) -> None:
    prompt = "{type: multistep_prompt, location: agents/helper, promptArgumentClass: MySystemPromptArgument}"
    both = f"type: multistep, llm: main, prompt: {prompt}"
    config_yml = (
        f"firstContact: a\n{LLMS}agents:\n  - {{name: a, topics: [b], {both}}}\n  - {{name: b, topics: [a], {both}}}\n"
    )
    found, *_ = faults(tmp_path / "agents", {**CONCEPTS, "config.yml": config_yml})
    assert (
        found
        == "line 4: agents[0].topics: the agents 'a' → 'b' → 'a' form a cycle; one of them must hand over to a conductor"
    )

    found, *_ = faults(tmp_path / "conductors", changed(JUDGED, ("    finalizerName: writer", "    supervisor: lower")))
    assert "supervisor: the supervisors 'upper' → 'lower' → 'upper' form a cycle" in found


def test_a_predicate_without_topics_is_not_handed_the_conversation(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, changed(JUDGED, ("topics: [helper]", "topics: [helper, judge]")))
    assert "topics[1]: 'judge' hands over to no agent: a predicate that is a topic needs 'topics' itself" in found


def test_a_template_in_both_spellings_is_refused(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, {**CONCEPTS, "agents/helper/user_template.jinja2": "x"})
    assert "agents/helper has user_template.jinja2 and user_prompt.jinja2; keep one of them" in found


def test_a_missing_template_is_told(tmp_path: Path) -> None:
    files = {name: text for name, text in CONCEPTS.items() if "system_prompt" not in name}
    (found,) = faults(tmp_path, files)
    assert "there is no system_prompt.jinja2 or system_template.jinja2 in 'agents/helper'" in found


def test_two_ways_to_finish_are_refused(tmp_path: Path) -> None:
    files = changed(JUDGED, ("    finalizerName: writer", "    finalizerName: writer\n    supervisor: lower"))
    assert any("'finalizerName' and 'supervisor' exclude each other" in fault for fault in faults(tmp_path, files))


def test_a_key_in_both_spellings_is_refused(tmp_path: Path) -> None:
    files = changed(CONCEPTS, ("firstContact: conductor", "firstContact: conductor\nfirst_contact: helper"))
    assert "the key 'firstContact' occurs twice, in two spellings" in faults(tmp_path, files)[0]


def test_a_folder_is_known_by_who_is_spoken_to_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert format.detects(tmp_path, parse(CONCEPTS["config.yml"]))
    assert not format.detects(tmp_path, parse("version: 1\nagents: {}\n"))
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    write(tmp_path, CONCEPTS)
    for path in (tmp_path, tmp_path / "config.yml"):
        assert loading.load(path).extension is not None
        loading.load_sound(path)
        checked = CliRunner().invoke(submit, ["check", str(path)])
        assert (checked.exit_code, checked.stdout) == (0, f"{path}: no faults (2 agents, of a Diskurs folder)\n")


def test_our_own_files_cannot_have_a_forum() -> None:
    with pytest.raises(ConfigError, match="unknown key 'extension'; only files of a further format set it"):
        load_definitions(parse("version: 1\nextension: {}\nagents: {a: {}}\n"))
