"""The order of a workflow's steps apart from routes: list order, `depends_on`, fans.

A step comes after the one above it, unless that one has an `output.to`, the step has dependencies, or an earlier step leads to it: the
target of a condition or of an error is not entered from above. A condition that names one step only skips it otherwise. The steps of a fan
start together, and their gatherer waits for all. The step under an `async` one starts together with it. If `execution_mode` is `parallel`,
list order has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from cantata_frontends.langswarm.chains.output_routes import ChoiceRoute, Route, ToStep
from cantata_frontends.langswarm.chains.steps import ChainStep
from cantata_frontends.langswarm.config_part import ConfigPart


@dataclass(frozen=True)
class Order:
    """The successors and dependencies of steps, and the first steps."""

    after: Mapping[str, Sequence[str]]
    """Step → its next steps apart from those of its routes."""
    waits_for: Mapping[str, Sequence[str]]
    """Step → its dependencies."""
    gathered: Mapping[str, Sequence[str]]
    """Gatherer of a fan → the steps of the fan."""
    passed: Mapping[str, Sequence[str]]
    """Condition that names one step only → the next steps on the other side: those below the named one, or below itself."""
    first: Sequence[str]
    """The steps that the chain begins with."""


def targets_of(routes: Sequence[Route]) -> Iterator[str]:
    """Yield the steps that routes may lead to."""
    for route in routes:
        if isinstance(route, ToStep):
            yield route.step
        elif isinstance(route, ChoiceRoute):
            for _, inner in route.ways:
                yield from targets_of(inner)


def order(
    steps: Sequence[ChainStep],
    routes: Mapping[str, Sequence[Route]],
    jumps: Mapping[str, str],
    reading: Set[str],
    *,
    parallel: bool,
) -> Order:
    """Return the order of steps.

    Args:
        jumps: Step → the step that its failure leads to.
        reading: Steps that read outputs of others, and so start after those.
    """
    return _Ordering(steps, routes, jumps, parallel=parallel).order(reading)


class _Ordering:
    def __init__(
        self,
        steps: Sequence[ChainStep],
        routes: Mapping[str, Sequence[Route]],
        jumps: Mapping[str, str],
        *,
        parallel: bool,
    ) -> None:
        self._steps = steps
        self._routes = routes
        self._jumps = jumps
        self._parallel = parallel
        self._place = {step.id: location for location, step in enumerate(steps)}
        self._fans = {
            step.id: step.at("fan_key").text()
            for step in steps
            if step.has("fan_key") and not step.is_true("is_fan_in")
        }
        self._needs = {step.id: self._named(step.names("depends_on"), step.id) for step in steps}
        self._gatherers = {step.id: named for step in steps for named in self._named(step.names("fan_in_id"), step.id)}
        gathering = [step for step in steps if step.is_true("is_fan_in") or step.id in self._gatherers.values()]
        self._gathered = {step.id: self._gathers(step) for step in gathering}
        self._entered = {
            target for step in steps for target in self._leads(step) if self._place[target] > self._place[step.id]
        }

    def order(self, reading: Set[str]) -> Order:
        after: dict[str, list[str]] = {step.id: [] for step in self._steps}
        for gatherer, members in self._gathered.items():
            for member in members:
                after[member].append(gatherer)
        for step in self._steps:
            for before in self._before(step) if self._follows_the_list(step) else ():
                after[before].append(step.id)
        follow = {target for step in self._steps for target in (*after[step.id], *self._leads(step))}
        follow |= {step_id for step_id, needs in self._needs.items() if needs}
        passed = {step.id: self._past(step) for step in self._steps if step.kind == "condition"}
        follow.update(*passed.values())
        return Order(after, self._needs, self._gathered, passed, self._first(follow, reading))

    def _past(self, step: ChainStep) -> list[str]:
        """Return the next steps of a condition on the side that names none."""
        named = [
            self._steps[self._place[target]]
            for target in self._leads(step)
            if self._place[target] > self._place[step.id]
        ]
        below = (
            [each.id for each in self._steps if self._follows_the_list(each) and self._above(each) == one]
            for one in (step, *named)
        )
        return next(filter(None, below), [])

    def _leads(self, step: ChainStep) -> Iterator[str]:
        """Return the steps that a step's routes and errors lead to."""
        targets = [*targets_of(self._routes.get(step.id, ())), *filter(None, [self._jumps.get(step.id)])]
        return (target for target in targets if target in self._place)

    def _named(self, names: Sequence[tuple[ConfigPart, str]], own: str) -> list[str]:
        """Return the steps of these names; record a fault for names without a step."""
        for part, name in names:
            if name == own:
                part.fault("the step would wait for itself")
            else:
                part.is_known(name, self._place, "step")
        return list(dict.fromkeys(name for _, name in names if name in self._place and name != own))

    def _gathers(self, step: ChainStep) -> list[str]:
        """Return the steps that a fan-in waits for: those of its key, those that name it, and those in its `args.steps`."""
        key = step.at("fan_key").text() if step.has("fan_key") else None
        found = [member for member, name in self._fans.items() if name == key]
        found += [member for member, gatherer in self._gatherers.items() if gatherer == step.id]
        found += self._named(step.at("args").at("steps").texts(), step.id)
        if not found:
            step.at("is_fan_in").fault("no step has its 'fan_key', so it has nothing to gather")
        return list(dict.fromkeys(found))

    # --- list order ---------------------------------------------------------------------------------------------------

    def _follows_the_list(self, step: ChainStep) -> bool:
        return not (self._parallel or step.has("depends_on") or step.id in self._entered or step.id in self._gathered)

    def _before(self, step: ChainStep) -> list[str]:
        """Return the steps before a step by list order: the one above, or all of its fan, without those that have routes."""
        above = self._above(step)
        if above is None:
            return []
        fan = self._fans.get(above.id)
        members = (
            [self._steps[self._place[each]] for each, name in self._fans.items() if name == fan]
            if fan is not None
            else [above]
        )
        return [member.id for member in members if not self._routes.get(member.id)]

    def _above(self, step: ChainStep) -> ChainStep | None:
        """Return the step above, apart from those that a step starts together with."""
        fan = self._fans.get(step.id)
        for above in reversed(self._steps[: self._place[step.id]]):
            starts_next_at_once = above.kind != "loop" and above.is_true("async")
            if not (starts_next_at_once or (fan is not None and self._fans.get(above.id) == fan)):
                return above
        return None

    def _first(self, follow: Set[str], reading: Set[str]) -> list[str]:
        """Return the steps without a predecessor; in list order only the topmost ones and those with `depends_on`."""
        free = [step for step in self._steps if step.id not in follow]
        if self._parallel:
            first = [step.id for step in free if step.id not in reading]
        else:
            first = [step.id for step in free if step.has("depends_on") or self._above(step) is None]
        return first or [step.id for step in self._steps[:1]]
