"""What reads texts, without any process: formats and expressions give a value or one of their own errors, soon, and keep nothing."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from cantata.config import chain_requests, documents, native
from cantata.errors import ConfigError
from cantata.flows.chains import checks, expand
from cantata.flows.definitions import Definitions
from cantata.flows.expressions import expressions
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains import conditions, reference_expressions
from cantata_frontends.langswarm.chains.reference_expressions import Scope, UnreadableError
from tests.faults.fuzz.mutations import text_of
from tests.faults.past import Violation
from tests.unit.flows.expression_values import ROOT
from tests.unit.flows.expressions.test_expressions import NEARLY_PATHS, PATHS, ROOTS, SOUP

REPOSITORY = Path(__file__).parents[3]
SLOW_S = 10.0  # of processor time for one text; the bounds of an expression come to a few seconds on a slow machine
BLOCK = re.compile(r"```(?:yaml|json)\n(.*?)```", re.DOTALL)
CONDITIONS = (
    "${a} == 'high' && ${b.c[0]} > 3",
    "not ${a} exists or ${a} in ['x', \"y\"]",
    "(${a} contains 'x') || !(b >= 2.5)",
)
BOMB = " | ".join(["[@,@]"] * 30)
SCOPE = Scope(steps={"a": "$.a", "b": "$.b"}, variables={"c": 1})

Read = Callable[[str], object]


def _document(text: str) -> None:
    document = documents.parse(text, source="text")
    if chain_requests.is_request(document):
        request = chain_requests.load_request(document)
        if not checks.check(request, Definitions())[0]:
            expand.plan(request, Definitions())
    else:
        native.load_definitions(document)


def _expression(text: str) -> None:
    expressions.parse(text, frozenset(ROOT)).evaluate(ROOT)


def _condition(text: str) -> None:
    expressions.parse(conditions.condition(text, SCOPE)).is_true({"a": "high", "b": {"c": [4]}})


def _reference(text: str) -> None:
    expressions.parse(reference_expressions.render(text, SCOPE).text).evaluate({"a": [1], "b": {"c": "x"}})


def examples() -> Iterator[tuple[Read, str]]:
    """Texts as people write them, and what reads them."""
    for page in sorted((REPOSITORY / "docs").glob("*.md")):
        yield from ((_document, block) for block in BLOCK.findall(page.read_text()))
    for path in sorted((REPOSITORY / "configs").rglob("*.yaml")):
        yield _document, path.read_text()
    yield from ((_condition, text) for text in CONDITIONS)
    yield from ((_reference, text) for text in CONDITIONS)
    yield from (
        (_expression, text)
        for text in (BOMB, "items[?n > `3`].{a: n, b: @} | sort_by(@, &a)[0]", "join(', ', [a, b] || `[]`)")
    )


class Readers:
    """Reads, and remembers what was wrong."""

    def __init__(self) -> None:
        self.read = 0
        self.violations: list[Violation] = []

    def hold(self, read: Read, text: str) -> None:
        """Hold one reader to its promise."""
        self.read += 1
        since = time.process_time()
        try:
            read(text)
        except (ConfigError, UnreadableError, expressions.ExpressionError):
            pass
        except Exception as error:  # noqa: BLE001  # whatever else comes is what is looked for
            self._wrong(read, text, f"{type(error).__name__}: {str(error)[:200]}")
        if (took_s := time.process_time() - since) > SLOW_S:
            self._wrong(read, text, f"{took_s:.1f} s")

    def _wrong(self, read: Read, text: str, found: str) -> None:
        expected = f"a value or an error of its own within {SLOW_S:g} s from {read.__name__} of {text[:2000]!r}"
        self.violations.append(Violation("", "", expected, found))


def by_mutation(readers: Readers, chance: random.Random) -> None:
    """Read each example once, changed."""
    for read, text in examples():
        readers.hold(read, text_of(text, chance))


def by_hypothesis(readers: Readers, number: int, *, count: int = 200) -> None:
    """Read expressions that are made after their grammar, and nearly so."""
    common = settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))

    @seed(number)
    @common
    @given(PATHS | NEARLY_PATHS | SOUP, ROOTS)
    def hold(text: str, root: dict[str, JsonValue]) -> None:
        readers.hold(lambda text: expressions.parse(text, frozenset(root)).evaluate(root), text)
        readers.hold(_condition, text)
        readers.hold(
            _document, json.dumps({"nodes": [{"node_id": "a", "kind": "branch", "condition": text}], "entry_node": "a"})
        )

    hold()
