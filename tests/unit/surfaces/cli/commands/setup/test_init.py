"""`submit init`: the project that it makes. tests/acceptance/test_testing.py runs that project's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config.loading import load_sound
from tests.unit.surfaces.cli.invocation import run


def test_a_project_is_made_with_the_commands_to_type_next(folder: Path) -> None:
    result = run("init", "shop", env={"OPENAI_API_KEY": "sk-mine"})

    assert result.exit_code == 0
    assert [line.split("#")[0].strip() for line in result.stdout.splitlines()] == [
        "Next:",
        "cd shop",
        "python -m pytest",
        'submit "Where is my order A-1042?"',
    ]
    definitions = load_sound(folder / "shop" / "configs" / "default.yaml").definitions
    assert (definitions.defaults.agent, definitions.defaults.model) == ("clerk", "openai/gpt-4o-mini")
    assert "$schema=config.schema.json" in (folder / "shop" / "configs" / "default.yaml").read_text().splitlines()[0]
    assert (folder / "shop" / "configs" / "config.schema.json").exists()
    assert "OPENAI_API_KEY" in (folder / "shop" / ".env.example").read_text()
    assert "sk-mine" not in "".join(path.read_text() for path in (folder / "shop").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("has_embedded", "model", "second"),
    [(True, "local/smollm2", "submit"), (False, "openai/gpt-4o-mini", "submit chain status")],
)
def test_without_a_key_a_command_works_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, has_embedded: bool, model: str, second: str
) -> None:
    monkeypatch.setattr("cantata.surfaces.cli.commands.setup.init.find_spec", lambda _: has_embedded or None)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    result = run("init")

    assert load_sound(folder / "configs" / "default.yaml").definitions.defaults.model == model
    assert result.stdout.splitlines()[2].strip().startswith(second)


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / ".gitignore").write_text("mine")
    (folder / "test_orders.py").write_text("mine")

    refused = run("init")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "test_orders.py exists" in refused.stderr
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "test_orders.py"]

    (folder / "test_orders.py").unlink()
    assert run("init").exit_code == 0
    assert (folder / ".gitignore").read_text() == "mine"
