"""What the ledger should do, in plain Python: the rules of the design, applied until nothing changes, without its counters and lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from cantata.flows.graph import START, STEP_OVER, Graph, Outcome, Spec, StepState
from cantata.flows.wire import RUN_OVER, RunStatus

DONE = frozenset({"done"})


@dataclass
class Cell:
    """A step."""

    spec: Spec
    word: StepState = "waiting"
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    owner: str = "-"
    takes: frozenset[str] = frozenset()
    woken: bool = False
    """No edge wakes it: its parent did."""
    may_start: bool = False
    """Whatever its in-edges say: its timer rang, its window has room, or its join waits no longer."""

    @property
    def is_over(self) -> bool:
        return self.word in STEP_OVER

    @property
    def is_open(self) -> bool:
        """It has never been ready, so its in-edges count."""
        return self.word == "waiting" and self.attempt == 0 and not self.may_start


@dataclass
class Way:
    """An edge. Its source changes when that grows an exit; the step it was drawn from does not."""

    source: str
    target: str
    label: str
    wakes: bool
    drawn_from: str


@dataclass
class Window:
    """A map's."""

    size: int
    inflight: int
    backlog: deque[str]


@dataclass
class Reference:
    """A run as it should be."""

    max_attempts: int
    max_steps: int
    status: RunStatus = "accepted"
    cells: dict[str, Cell] = field(default_factory=lambda: {START: Cell(Spec(kind="run.start", decides=True), "sent")})
    ways: list[Way] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    signals: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return self.status in RUN_OVER

    @property
    def stands_still(self) -> bool:
        """Whether no time of it passes: no step is under way."""
        return not any(
            cell.word in ("sent", "running") or (cell.word == "waiting" and cell.attempt > 0)
            for cell in self.cells.values()
        )

    def answering(self, name: str) -> str:
        """The step that answers to a name."""
        while name in self.names:
            name = self.names[name]
        return name

    # --- what is told to a ledger -----------------------------------------------------------------------------------

    def begin(self, step_id: str, owner: str) -> str:
        """Lease a step: 'begun', or the reason not to."""
        if self.is_over:
            return "closed"
        self.status = "running"
        cell = self.cells.get(step_id)
        if cell is None:
            return "gone"
        if cell.is_over:
            return "over"
        if cell.word != "sent":
            return "leased" if cell.word == "running" else "early"
        self.start(step_id, owner)
        return "begun"

    def start(self, step_id: str, owner: str) -> None:
        """A step that may begin has begun."""
        cell = self.cells[step_id]
        cell.word, cell.owner, cell.attempt = "running", owner, cell.attempt + 1

    def commit(self, step_id: str, attempt: int, owner: str, outcome: Outcome) -> tuple[str, set[str]]:
        """Take an outcome: the word for it, and what became ready."""
        cell = self.cells[step_id]
        if self.is_over:
            return "closed", set()
        if cell.word == outcome.status and cell.attempt == attempt:
            return "again", set()
        if (cell.word, cell.attempt, cell.owner) != ("running", attempt, owner):
            return "stale", set()
        if outcome.status == "retry":
            cell.word, cell.owner, cell.failures = "waiting", "-", cell.failures + 1
        elif outcome.status == "failed":
            self._fail(step_id)
        elif outcome.fragment is not None:
            self._grow(step_id, frozenset(outcome.takes), outcome.fragment)
        else:
            self._end(step_id, "done", frozenset(outcome.takes))
        return "ok", self._settle()

    def lose(self, step_id: str) -> set[str]:
        """A lease ran out."""
        cell = self.cells[step_id]
        cell.crashes += 1
        if cell.crashes >= self.max_attempts:
            self._fail(step_id)
            return self._settle()
        cell.word, cell.owner = "sent", "-"
        return {step_id}

    def release(self, step_id: str, attempt: int, owner: str) -> set[str]:
        """A worker hands a step back."""
        cell = self.cells[step_id]
        if self.is_over or (cell.word, cell.attempt, cell.owner) != ("running", attempt, owner):
            return set()
        cell.word, cell.owner = "sent", "-"
        return {step_id}

    def ring(self, what: str, step_id: str) -> set[str]:
        """A timer rings."""
        if what == "deadline":
            self._close("timed_out")
        elif what == "retry":
            self.cells[step_id].may_start = True
        elif what == "join":
            self._force(step_id)
        else:
            self._end(step_id, "done", DONE)
        return self._settle()

    def signal(self, name: str) -> tuple[str, set[str]]:
        """A signal comes."""
        if self.is_over:
            return "closed", set()
        step_id = self.answering(name)
        cell = self.cells.get(step_id)
        if cell is None and any(each.word == "waiting_signal" for each in self.cells.values()):
            return "unknown", set()
        if cell is not None and cell.is_over:
            has_value = cell.word != "skipped" and (cell.spec.kind == "wait" or cell.spec.at_most_once)
            return "over" if has_value else "unknown", set()
        if cell is not None and cell.word == "waiting_signal":
            self._end(step_id, "done", DONE)
            return "taken", self._settle()
        if cell is not None and cell.spec.kind != "wait":
            return "unknown", set()
        if step_id in self.signals:
            return "over", set()
        self.signals.add(step_id)
        return "kept", set()

    def cancel(self) -> None:
        """Somebody ends the run."""
        if not self.is_over:
            self._close("cancelled")

    # --- the rules --------------------------------------------------------------------------------------------------

    def _end(self, step_id: str, word: StepState, takes: frozenset[str]) -> None:
        cell = self.cells[step_id]
        on_the_way = cell.word != "ready"
        self._leave(step_id)
        cell.word, cell.takes, cell.owner = word, takes, "-"
        window = self.windows.get(cell.spec.window or "")
        if window is not None and on_the_way:
            self._refill(window)

    def _leave(self, step_id: str) -> None:
        """An item that waits for the window does so no more."""
        cell = self.cells[step_id]
        if cell.word == "ready" and not cell.may_start and cell.spec.window:
            self.windows[cell.spec.window].backlog.remove(step_id)

    def _refill(self, window: Window) -> None:
        window.inflight -= 1
        if window.inflight > (window.size - 1 if window.size < 32 else window.size * 3 // 4):
            return
        while window.backlog and window.inflight < window.size:
            self.cells[window.backlog.popleft()].may_start = True
            window.inflight += 1

    def _fail(self, step_id: str, *, late: bool = False) -> None:
        cell = self.cells[step_id]
        if late or cell.spec.on_error == "skip":
            return self._end(step_id, "failed", DONE)
        if cell.spec.on_error == "jump":
            return self._end(step_id, "failed", frozenset({"failed"}))
        cell.word, cell.owner = "failed", "-"
        scope = cell.spec.scope
        given_up: set[str] = set()
        while scope is not None and scope not in given_up:
            given_up.add(scope)
            exit = self._stop(scope)
            if not self.cells[exit].is_over:
                return self._fail(exit)
            scope = self.cells[exit].spec.scope
        return self._close("failed")

    def _stop(self, name: str) -> str:
        """Stop all that works under a name, but for the step that answers to it."""
        exit = self.answering(name)
        while name != exit:
            for step_id in self._grown(name):
                if step_id != exit and not self.cells[step_id].is_over:
                    self._skip(step_id)
            name = self.names[name]
        return exit

    def _grown(self, parent: str) -> Iterator[str]:
        for step_id in self.members.get(parent, ()):
            yield step_id
            yield from self._grown(step_id)

    def _skip(self, step_id: str) -> None:
        cell = self.cells[step_id]
        self._leave(step_id)
        cell.word, cell.owner, cell.takes = "skipped", "-", frozenset()

    def _close(self, status: RunStatus) -> None:
        self.status = status
        for step_id, cell in self.cells.items():
            if not cell.is_over:
                self._skip(step_id)

    def _grow(self, parent: str, takes: frozenset[str], graph: Graph) -> None:
        items = graph.items
        steps = [step for step in graph.steps if items is None or step.id != items.like]
        item_ids = _item_ids(graph)
        if len(self.cells) + len(steps) + len(item_ids) > self.max_steps:
            return self._fail(parent)

        new = {step.id for step in steps}
        woken = set(new)
        for edge in graph.edges:
            if items is not None and edge.source == items.like:
                sources = item_ids
            elif edge.source in new or edge.source == parent:
                sources = [edge.source]
            else:
                sources = [self.answering(edge.source)]
            if edge.target in new or self.cells[edge.target].is_open:
                self.ways += [Way(source, edge.target, edge.label, edge.wakes, source) for source in sources]
                if edge.wakes and sources:
                    woken.discard(edge.target)
        for step in steps:
            self.cells[step.id] = Cell(step, woken=step.id in woken)
        if items is not None:
            like = next(step for step in graph.steps if step.id == items.like)
            for n, step_id in enumerate(item_ids):
                self.cells[step_id] = Cell(like, "waiting" if n < items.window else "ready", may_start=n < items.window)
            self.windows[parent] = Window(
                items.window, min(items.window, len(item_ids)), deque(item_ids[items.window :])
            )

        scope = self.cells[parent].spec.scope
        inside = parent if graph.scoped else scope
        self._note(inside, [*(step.id for step in steps if step.id != graph.exit), *item_ids])
        if graph.exit is None:
            self.names |= graph.names
            return self._end(parent, "done", takes)
        self._note(scope, [graph.exit])
        for way in self.ways:
            if way.source == parent:
                way.source = graph.exit
        self.names |= {parent: graph.exit, **graph.names}
        cell = self.cells[parent]
        cell.word, cell.owner = "done", "-"
        return None

    def _note(self, scope: str | None, step_ids: list[str]) -> None:
        if scope is not None:
            self.members.setdefault(scope, []).extend(step_ids)

    # --- until nothing changes --------------------------------------------------------------------------------------

    def _settle(self) -> set[str]:
        """Apply the rules until nothing changes; what is then ready is sent."""
        while not self.is_over and (self._reach_a_quorum() or self._answer_a_wait() or self._skip_one()):
            pass
        if self.is_over:
            return set()
        ready = {step_id for step_id, cell in self.cells.items() if self._is_ready(step_id, cell)}
        for step_id in ready:
            self.cells[step_id].word, self.cells[step_id].may_start = "sent", False
        if all(cell.is_over for cell in self.cells.values()):
            self.status = "succeeded"
        return ready

    def into(self, step_id: str) -> list[Way]:
        """A step's in-edges."""
        return [way for way in self.ways if way.target == step_id]

    def _is_resolved(self, step_id: str) -> bool:
        return all(self.cells[way.source].is_over for way in self.into(step_id))

    def _is_asked(self, step_id: str) -> bool:
        taken = any(way.wakes and way.label in self.cells[way.source].takes for way in self.into(step_id))
        return taken or self.cells[step_id].woken

    def _is_ready(self, step_id: str, cell: Cell) -> bool:
        if cell.may_start and cell.word in ("waiting", "ready"):
            return True
        return cell.is_open and self._is_resolved(step_id) and self._is_asked(step_id)

    def _reach_a_quorum(self) -> bool:
        for step_id, cell in self.cells.items():
            if cell.is_open and cell.spec.quorum and not self._is_resolved(step_id):
                done = sum(self.cells[way.source].word == "done" for way in self.into(step_id))
                if done >= cell.spec.quorum:
                    self._force(step_id)
                    return True
        return False

    def _force(self, step_id: str) -> None:
        self.cells[step_id].may_start = True
        for way in self.into(step_id):
            late = self.answering(way.drawn_from)
            if not self.cells[late].is_over:
                self._stop(way.drawn_from)
                self._fail(late, late=True)

    def _answer_a_wait(self) -> bool:
        for step_id, cell in self.cells.items():
            if cell.spec.kind == "wait" and self._is_ready(step_id, cell):
                cell.word, cell.may_start = "waiting_signal", False
                if step_id in self.signals:
                    self._end(step_id, "done", DONE)
                return True
        return False

    def _skip_one(self) -> bool:
        for step_id, cell in self.cells.items():
            if cell.is_open and self._is_resolved(step_id) and not self._is_asked(step_id):
                self._end(step_id, "skipped", frozenset())
                return True
        return False


def _item_ids(graph: Graph) -> list[str]:
    return [f"{graph.items.prefix}/{n}" for n in range(len(graph.items.given))] if graph.items else []
