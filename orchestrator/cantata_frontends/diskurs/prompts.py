"""An agent's prompt: the texts of its templates, and references to the code that workers run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic.alias_generators import to_camel

from cantata.config.source_map import KeyPath
from cantata.config.user_code.function_source import names_in
from cantata.text.suggestions import did_you_mean, hint, nearest
from cantata_frontends.diskurs import schema
from cantata_frontends.diskurs.code_text import fields_of
from cantata_frontends.diskurs.conversation_config import PromptSource
from cantata_frontends.diskurs.files import DiskursConfigReader

_FUNCTIONS = {
    "is_valid": "is_valid_name", "is_final": "is_final_name", "can_finalize": "can_finalize_name", "finalize": "finalize_name",
    "fail": "fail_name", "heuristic_sequence": "heuristic_sequence_name",
}  # fmt: skip
_REPLACED = {
    "is_valid_name": "every reply that can be read is valid", "is_final_name": "each valid reply ends the agent's turn",
    "fail_name": "the output is the long-term memory and an error",
}  # fmt: skip
"""Key of a function that Diskurs replaces if it is missing → what it then does."""
_WITH_DEFAULTS = ("conductor_prompt", "llm_compiler_prompt")

Template = tuple[str, dict[str, str]]
"""The text of a template, and those of the templates that it includes, by name."""


@dataclass(frozen=True)
class PromptReader:
    """Reads the prompt of one agent's entry."""

    reader: DiskursConfigReader
    path: KeyPath
    entry: schema.AgentEntry

    @property
    def prompt(self) -> schema.PromptEntry:
        """The prompt as the file declares it."""
        return self.entry.prompt

    def read(self) -> tuple[PromptSource, str]:
        """Return the prompt, and the agent's description."""
        wanted = schema.prompt_type(self.entry.type)
        if self.prompt.type != wanted:
            message = f"an agent of type {self.entry.type!r} has a prompt of type {wanted!r}, not {self.prompt.type!r}"
            self.reader.fault((*self.path, "type"), message)
        folder = self._location()
        templates = {"form": self._form(folder)}
        if folder is None:
            return _with_templates(PromptSource(), templates), ""
        templates |= {which: self._template(folder, which) for which in ("system", "user")}
        source = self._with_code(folder)
        self._check_names(folder / "prompt.py", source, templates)
        return _with_templates(source, templates), self._description(folder)

    def _location(self) -> Path | None:
        if self.prompt.location is None:
            if self.prompt.type not in _WITH_DEFAULTS:
                self.reader.fault(self.path, "'location' is missing: the folder of prompt.py and the templates")
            return None
        with self.reader.file_faults((*self.path, "location")):
            return self.reader.files.resolve(self.prompt.location)
        return None

    def _description(self, folder: Path) -> str:
        file = folder / "agent_description.txt"
        with self.reader.file_faults((*self.path, "location")):
            return self.reader.files.text(file).strip() if file.is_file() else ""
        return ""

    def _template(self, folder: Path, which: str) -> Template | None:
        with self.reader.file_faults((*self.path, "location")):
            found = self.reader.files.template(folder, which)
            if found is None and which in self._needed:
                names = f"{which}_prompt.jinja2 or {which}_template.jinja2"
                self.reader.fault((*self.path, "location"), f"there is no {names} in {self.prompt.location!r}")
            return self.reader.files.checked(found) if found else None
        return None

    @property
    def _needed(self) -> tuple[str, ...]:
        if self.prompt.type == "heuristic_prompt":
            return ("user",) if self.entry.render_prompt else ()
        return () if self.prompt.type in _WITH_DEFAULTS else ("system", "user")

    def _form(self, folder: Path | None) -> Template | None:
        name = self.prompt.json_formatting_template
        if name is None:
            return None
        with self.reader.file_faults((*self.path, "jsonFormattingTemplate")):
            beside = folder / name if folder else None
            return self.reader.files.checked(beside if beside and beside.is_file() else self.reader.files.resolve(name))
        return None

    def _with_code(self, folder: Path) -> PromptSource:
        given = {key: value for key in self.prompt.model_fields_set if (value := getattr(self.prompt, key)) is not None}
        file = folder / "prompt.py"
        for key in [key for key in given if key.endswith("_class") or key in _FUNCTIONS.values()]:
            with self.reader.file_faults((*self.path, to_camel(key))):
                if not self._is_replaced(file, key, given[key]):
                    self.reader.files.code(file, given[key])
                else:
                    given[key] = ""
        functions = {role: given[key] for role, key in _FUNCTIONS.items() if key in given}
        if {"prompt_argument_class", "user_prompt_argument_class"} <= given.keys():
            self.reader.fault(
                (*self.path, "userPromptArgumentClass"), "it is the older name of 'promptArgumentClass'; keep that"
            )
        argument = given.get("prompt_argument_class") or given.get("user_prompt_argument_class")
        if argument is None and self.prompt.type not in _WITH_DEFAULTS:
            self.reader.fault(
                self.path,
                "'promptArgumentClass' is missing: the class of the arguments that the prompt is rendered with",
            )
        return PromptSource(
            file=self.reader.files.name(file) if file.is_file() else None,
            argument=argument,
            memory=given.get("longterm_memory_class"),
            system_argument=given.get("system_prompt_argument_class"),
            names=functions,
        )

    def _is_replaced(self, file: Path, key: str, name: str) -> bool:
        """Return whether Diskurs's default takes the place of a function, with a warning: none of the file is called so, or nearly so."""
        if key not in _REPLACED or not file.is_file() or nearest(name, names_in(file)):
            return False
        self.reader.warn(
            (*self.path, to_camel(key)), f"{self.reader.files.name(file)} has no function {name!r}: {_REPLACED[key]}"
        )
        return True

    # --- names of fields --------------------------------------------------------------------------------------------

    def _check_names(self, file: Path, source: PromptSource, templates: Mapping[str, Template | None]) -> None:
        """Record names in the configuration that are no fields of the prompt's class, and warn of those in templates."""
        fields = self._fields(file, source)
        if fields is None:
            return
        own = (fields_of(file, source.system_argument) or set()) if source.system_argument else set()
        at, owner = self.path[:-1], f"class {source.argument}" if source.argument else "the prompt"
        named: list[tuple[KeyPath, str, set[str]]] = [
            *((("finalProperties", i), name, fields) for i, name in enumerate(self.entry.final_properties)),
            *((("lockedFields", name), name, fields | own) for name in self.entry.locked_fields),
        ]
        for path, name, known in named:
            if name not in known:
                self.reader.fault((*at, *path), f"{owner} has no field {name!r}{did_you_mean(name, known)}")
        shared = {"agent_descriptions"} if self.entry.type == "conductor" else set()
        for which, known in (("system", fields | own | shared), ("user", fields | shared), ("form", {"schema"})):
            if template := templates.get(which):
                self._warn_of_unknown_names(which, template, known)

    def _fields(self, file: Path, source: PromptSource) -> set[str] | None:
        """Return the fields of the class of the prompt's arguments; None if they are not known before the code runs."""
        if source.argument:
            return fields_of(file, source.argument)
        return {"agent_descriptions", "next_agent"} if self.entry.type == "conductor" else None

    def _warn_of_unknown_names(self, which: str, template: Template, known: Collection[str]) -> None:
        from cantata.flows.expressions import templates  # noqa: PLC0415  # only folders with templates need jinja2, which takes long to import

        texts = (template[0], tuple(template[1].values()))
        failing = templates.computed_with(*texts)
        for name in sorted(templates.undeclared(*texts) - set(known)):
            effect = ", so rendering it fails the run" if name in failing else " and renders as nothing"
            message = f"the {which} template uses {name!r}, which is not defined{effect}{hint(nearest(name, known))}"
            self.reader.warn((*self.path, "location"), message)


def _with_templates(prompt: PromptSource, found: Mapping[str, Template | None]) -> PromptSource:
    templates = {which: template for which, template in found.items() if template}
    parts = {name: text for _, included in templates.values() for name, text in included.items()}
    return prompt.model_copy(update={**{which: text for which, (text, _) in templates.items()}, "parts": parts})
