"""Evaluation of a team's rules, before any model is called."""

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

PATTERN_TIMEOUT_S = 1.0
"""The time-out of one pattern. With some patterns and texts, `re` would search for years and block its process."""


def agent_by_rule(context: StepContext, team: Team, number: int, text: str, warnings: list[str]) -> str | None:
    """Return the agent that a rule chooses; None if it chooses none. A rule that fails chooses none, and adds to `warnings`."""
    rule = team.rules[number]
    try:
        agent: Any = None
        if rule.match is not None and _search(rule.match, text):
            agent = rule.agent
        elif rule.function:
            agent = _call_function(context, rule, text)
    except TimeoutError:
        fault = f"its pattern {rule.match!r} searched this text for more than {PATTERN_TIMEOUT_S:g} s"
        warnings.append(f"rule {number + 1} chooses no agent: {fault}")
        return None
    except Exception as error:  # noqa: BLE001  # whatever a user's function raises
        warnings.append(f"rule {number + 1} ({rule.function}) chooses no agent: {type(error).__name__}: {error}")
        return None
    if not agent or agent in team.agents:
        return agent or None
    warnings.append(f"rule {number + 1} ({rule.function}) chooses {agent!r}, which is not an agent of the team")
    return None


def _search(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text, timeout=PATTERN_TIMEOUT_S, concurrent=True) is not None


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


def _call_function(context: StepContext, rule: TeamRule, text: str) -> Any:
    answer = functions.load(str(rule.function), local_folder(context.definitions.folder))(text)
    if inspect.iscoroutine(answer):
        answer = asyncio.run_coroutine_threadsafe(answer, context.process.loop()).result()
    return rule.agent if answer is True else answer
