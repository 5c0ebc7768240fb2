"""One table of step kinds, which handlers and names of spans follow."""

from __future__ import annotations

import pytest

from cantata.flows import step_kinds
from cantata.flows.graph import Outcome, Spec
from cantata.flows.step_kinds import STEP_KINDS, StepKind, kind_named, registered_kinds
from cantata.operation.traces import conventions
from cantata_workers.process.step_context import handles
from cantata_workers.steps.handlers import HANDLERS


def test_every_kind_but_waits_has_a_handler_and_every_handler_a_kind() -> None:
    kinds = STEP_KINDS | registered_kinds()
    assert set(HANDLERS) == {name for name, kind in kinds.items() if kind.role != "wait"}


def test_a_frontend_registers_the_roles_of_its_kinds() -> None:
    assert (kind_named("diskurs.ask").role, kind_named("diskurs.tool").role) == ("turn", "function")


def test_a_new_kind_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(step_kinds.STEP_KINDS, "sql.query", StepKind("sql.query", "tool"))

    spec = Spec(kind="sql.query", work="tools:orders")

    assert (spec.role, spec.work_name) == ("tool", "orders")
    assert conventions.step_name(spec) == "execute_tool orders"


def test_a_kind_of_a_newer_version_is_a_decision() -> None:
    assert Spec(kind="of.tomorrow").role == "decision"


def test_a_kind_has_one_handler() -> None:
    with pytest.raises(ValueError, match=r"handles 'tool\.call' already"):
        handles("tool.call")(lambda context: Outcome())
