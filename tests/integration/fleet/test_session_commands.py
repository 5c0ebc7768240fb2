"""`submit turn --session` and `submit sessions`: conversations from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantata.client.client import EmbeddedClient
from cantata.flows.wire import HistoryEntry, SessionInfo
from cantata.testing import ScriptedModels
from tests.integration.fleet.chat_terminal import settled, submit

pytestmark = pytest.mark.timeout(180)  # a stack starts in 4 s, on a busy machine in 20


@pytest.fixture
def url(client: EmbeddedClient, models: ScriptedModels) -> str:
    models.script([])
    return client.redis_url


def test_turns_of_a_session_are_kept_listed_shown_and_cleared(tmp_path: Path, url: str) -> None:
    folder, name = settled(tmp_path), tmp_path.name
    tenant = ("--tenant", name)
    assert submit(folder, url, "hello", "--session", name, "--label", f"tenant={name}").returncode == 0

    listed = submit(folder, url, "sessions", "list", *tenant, "--json")
    shown = submit(folder, url, "sessions", "show", name, *tenant, "--json")
    told = submit(folder, url, "sessions", "show", name, *tenant)
    cleared = submit(folder, url, "sessions", "clear", name, *tenant, "--json")

    info = SessionInfo.model_validate(json.loads(listed.stdout)[0])
    assert (info.session, info.entries, info.waiting) == (name, 2, 0)
    entries = [HistoryEntry.model_validate_json(line) for line in shown.stdout.splitlines()]
    assert [(entry.role, entry.content, entry.agent) for entry in entries] == [
        ("user", "hello", None),
        ("assistant", "echo: hello", "poet"),
    ]
    assert [line.partition(" ")[2] for line in told.stdout.splitlines()] == ["you: hello", "poet: echo: hello"]
    assert json.loads(cleared.stdout) == {"session": name, "cleared": 2}
    assert submit(folder, url, "sessions", "show", name, *tenant).returncode == 2


def test_history_is_put_before_a_turn_that_asks_for_it(tmp_path: Path, url: str, models: ScriptedModels) -> None:
    folder, name = settled(tmp_path), tmp_path.name
    submit(folder, url, "my name is Ada", "--session", name)

    done = submit(folder, url, "who am I?", "--session", name, "--history", "--agent", "seller")

    assert done.returncode == 0, done.stderr
    asked = str(models.journal()[-1]["text"])
    assert "my name is Ada" in asked
    assert asked.endswith("who am I?")


def test_a_conversation_that_is_not_kept_is_told(tmp_path: Path, url: str) -> None:
    done = submit(settled(tmp_path), url, "sessions", "show", "nobody")

    assert done.returncode == 2
    assert "no conversation 'nobody' is kept here" in done.stderr


def test_a_name_that_none_can_have_is_refused(tmp_path: Path, url: str) -> None:
    done = submit(settled(tmp_path), url, "sessions", "clear", "a\nb")

    assert done.returncode == 2
    assert "characters that cannot be printed" in done.stderr
