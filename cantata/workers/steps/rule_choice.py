"""Asks the rules of a team whom they choose, before any model is asked."""

from __future__ import annotations

import asyncio
import inspect
from functools import lru_cache
from typing import Any

import regex

from cantata.models.definitions import Team, TeamRule
from cantata.workers.code.config_folder import local_folder
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.tools import functions

PATIENCE_S = 1.0
"""How long one pattern may take. With some, a text makes `re` search for years, and nothing else runs in its process meanwhile."""


def matched(context: StepContext, team: Team, number: int, text: str, warnings: list[str]) -> str | None:
    """The agent that a rule chooses, if it chooses one. A rule that fails chooses nobody, and says so in `warnings`."""
    rule = team.rules[number]
    try:
        agent = (
            rule.agent if rule.match is not None and _search(rule.match, text) else _called(context, rule, text) if rule.function else None
        )
    except TimeoutError:
        warnings.append(f"rule {number + 1} chooses nobody: its pattern {rule.match!r} searched this text for more than {PATIENCE_S:g} s")
        return None
    except Exception as error:  # noqa: BLE001  # whatever a user's function raises
        warnings.append(f"rule {number + 1} ({rule.function}) chooses nobody: {type(error).__name__}: {error}")
        return None
    if not agent or agent in team.agents:
        return agent or None
    warnings.append(f"rule {number + 1} ({rule.function}) chooses {agent!r}, which is no agent of the team")
    return None


def _search(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text, timeout=PATIENCE_S, concurrent=True) is not None


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


def _called(context: StepContext, rule: TeamRule, text: str) -> Any:
    answer = functions.load(str(rule.function), local_folder(context.definitions.folder))(text)
    if inspect.iscoroutine(answer):
        answer = asyncio.run_coroutine_threadsafe(answer, context.process.loop()).result()
    return rule.agent if answer is True else answer
