"""What docs/gateway.md shows is run: on a gateway without tokens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cantata.surfaces.gateway.access import read_tokens
from tests.acceptance.pages import Block, blocks, lines
from tests.integration.gateway.conftest import Gateway

PAGE = [block for block in blocks() if block.page == "docs/gateway.md"]
ANSWER = re.compile(r"\s*# → (.*)$")


def shells() -> list[Block]:
    return [
        block
        for block in PAGE
        if block.language == "sh" and not any(line.startswith("submit") for line in lines(block))
    ]


@pytest.mark.parametrize("block", shells(), ids=str)
def test_command_lines_do_what_they_say(block: Block, gateway: Gateway, tmp_path: Path) -> None:
    for each in PAGE:
        if each.file:
            (tmp_path / each.file).write_text(each.text)
    environment = {**os.environ, "GATEWAY": gateway.url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = [line for line in lines(block) if not line.startswith("export ")]
    script = "\n".join(["set -e", *(f"{ANSWER.sub('', line)}; echo; echo ---" for line in commands)])

    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("---\n")[:-1]
    assert len(answers) == len(commands)
    for line, answer in zip(commands, answers, strict=True):
        assert not answer.startswith('{"error":'), answer
        if shown := ANSWER.search(line):
            assert json.loads(answer) == json.loads(shown[1])


def test_the_tokens_that_are_shown_are_tokens() -> None:
    (shown,) = [block.text for block in PAGE if block.file == "tokens.yaml"]

    assert len(read_tokens(shown, "tokens.yaml")) == 4
