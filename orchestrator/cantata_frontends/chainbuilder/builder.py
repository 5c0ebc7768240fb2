"""The class ChainBuilder, with the documented names and parameters."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from cantata.bounds import duration_of
from cantata.client.runs import ChainRun, check_timeout
from cantata.engine.engine import run_id_of
from cantata.errors import ConfigError, RunError
from cantata.values import JsonValue
from cantata_frontends.chainbuilder import plan, run_request
from cantata_frontends.chainbuilder.builder_arguments import read_base, read_parts, tasks_in
from cantata_frontends.chainbuilder.builder_state import BuilderState, ChainProgress, Status
from cantata_frontends.chainbuilder.plan import BuilderBase, BuilderPlan, Mode
from cantata_frontends.chainbuilder.run_request import Executor
from cantata_frontends.promptchain.instruction_lists import script_folder
from cantata_frontends.promptchain.memory_methods import MemoryMethods, memory_function
from cantata_frontends.promptchain.run_calls import MAX_CONCURRENT_RUNS, shared_client

DEFAULT_STEP_TIMEOUT_S = 60.0  # as of any agent
MEMORY_CHAINS = "memory_chains"
"""The group of the chains that `create_memory_chain` makes."""

log = logging.getLogger("cantata.frontends.chainbuilder")
_executor = ThreadPoolExecutor(MAX_CONCURRENT_RUNS, thread_name_prefix="chainbuilder")


class ChainBuilder(MemoryMethods):
    """Chains that are created, combined, and executed alone or in groups. Any process can continue with them by `open`.

    `base_model` is a name or `{"name", "params"}`. `base_instruction` is a template around each text: `{instruction}` is the text,
    `{input}` the input of the step. `technique` is "normal", or "head-tail" if a chain may be one text that lists tasks. `timeout_s`
    bounds each execution (300 if None), `step_timeout_s` one model call or function. `labels` are those of its runs; the label `tenant`
    names their tenant. With `exist_ok` it continues with a builder of this `name` that exists and has the same settings.

    The workers of a PromptChain execute it. Raises ValueError for arguments that are not valid.
    """

    def __init__(
        self,
        base_model: str | Mapping[str, Any],
        base_instruction: str = "{instruction}",
        technique: str = "normal",
        *,
        name: str | None = None,
        exist_ok: bool = False,
        timeout_s: float | None = None,
        step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        base = read_base(base_model, base_instruction, technique, step_timeout_s)
        self._initialise(name or f"builder-{uuid.uuid4().hex[:12]}", timeout_s, labels)
        self._state.create(BuilderPlan(base=base), exist_ok=exist_ok)

    @classmethod
    def open(cls, name: str, *, timeout_s: float | None = None, labels: Mapping[str, str] | None = None) -> Self:
        """Return the builder that another process created, with its chains and their progress. Raises ValueError if there is none."""
        builder = cls.__new__(cls)
        builder._initialise(name, timeout_s, labels)
        builder._state.plan()
        return builder

    def _initialise(self, name: str, timeout_s: float | None, labels: Mapping[str, str] | None) -> None:
        if timeout_s is not None and timeout_s <= 0:
            raise ValueError(f"timeout_s is more than 0 seconds, not {timeout_s}")
        if timeout_s is not None:
            duration_of(timeout_s, "timeout_s")
        self.name = name
        """The name that `open` takes."""
        self._timeout_s = timeout_s
        self._labels = dict(labels or {})
        self._state = BuilderState(shared_client("ChainBuilder"), name, self._labels.get("tenant", ""))

    # --- chains -----------------------------------------------------------------------------------------------------

    def create_chain(
        self,
        chain_id: str,
        instructions: Sequence[Any] | str,
        execution_mode: Mode = "serial",
        group: str = "default",
        dependencies: Sequence[str] | None = None,
        *,
        chainbreakers: Sequence[Callable[..., Any]] | None = None,
    ) -> None:
        """Create a chain of instructions as a PromptChain takes them. It starts when the chains it depends on are completed.

        A chain of the same id is replaced, with a warning. In each text, `{input}` is the input that all chains of an execution share,
        and `{x}` the output of dependency x.
        """
        parts = read_parts(instructions, self.base.technique, chainbreakers)

        def change(old: BuilderPlan) -> BuilderPlan:
            made = plan.replace(old, chain_id, parts, mode=execution_mode, group=group, dependencies=dependencies or ())
            if chain_id in old.chains:
                log.warning("builder %s: a new chain replaces %r, whose output is deleted", self.name, chain_id)
            return made

        self._state.change(change, restarted=chain_id)

    def insert_chain(self, target_chain_id: str, new_instructions: Sequence[Any], position: int = -1) -> None:
        """Insert instructions into a chain, before the one at `position` (from 0), or at the end if it is negative."""
        parts = read_parts(new_instructions, self.base.technique)
        self._state.change(lambda old: plan.insert(old, target_chain_id, parts, position))

    def inject_chain(self, target_chain_id: str, source_chain_id: str, position: int = -1) -> None:
        """Insert a copy of one chain's instructions into another, which then also depends on what the source depends on."""
        self._state.change(lambda old: plan.inject(old, target_chain_id, source_chain_id, position))

    def validate_injection(self, target_chain_id: str, source_chain_id: str, position: int = -1) -> bool:
        """Return whether `inject_chain` would succeed: False if the source depends on the target, or there is no such position."""
        return plan.can_inject(self._state.plan(), target_chain_id, source_chain_id, position)

    def merge_chains(
        self, chain_ids: Sequence[str], new_chain_id: str, execution_mode: Mode = "serial", group: str | None = None
    ) -> None:
        """Create a chain of the instructions of others, by default in the group "merged". The sources of a serial one must have run."""
        self._state.change(lambda old: plan.merge(old, chain_ids, new_chain_id, mode=execution_mode, group=group))

    def reorder_steps(self, chain_id: str, new_order: Sequence[int] | None = None) -> None:
        """Reorder a chain's steps by their indexes, from 0; by default those that refer to other chains' outputs go last."""
        self._state.change(lambda old: plan.reorder(old, chain_id, new_order))

    def create_tasks(
        self, head_chain_id: str, execution_mode: Mode = "parallel", group: str | None = None
    ) -> list[str]:
        """Create a chain for each task that a completed head chain listed: `head_1`, `head_2`, ...; return their ids.

        They depend on the head and are in its group by default. Raises ValueError if the head is not completed or listed no tasks.
        """
        head = self._state.plan().member(head_chain_id)
        (done,) = self._state.progress([head_chain_id]).values()
        if done.status != "completed":
            raise ValueError(f"chain {head_chain_id!r} is {done.status}; it lists its tasks when it is executed")
        tasks = tasks_in(done.output if isinstance(done.output, str) else str(done.output))
        if not tasks:
            raise ValueError(f"chain {head_chain_id!r} listed no tasks")
        made = {f"{head_chain_id}_{number}": task for number, task in enumerate(tasks, start=1)}

        def change(old: BuilderPlan) -> BuilderPlan:
            for chain_id, task in made.items():
                old = plan.create_task(
                    old, chain_id, task, head_chain_id, mode=execution_mode, group=group or head.group
                )
            return old

        self._state.change(change)
        return list(made)

    def _create_memory_chain(self, chain_id: str, namespace: str, instructions: Sequence[Any]) -> None:
        self.create_chain(chain_id, [memory_function(namespace), *instructions], "independent", MEMORY_CHAINS)

    # --- executing --------------------------------------------------------------------------------------------------

    def execute_chain(self, chain_id: str, input_data: str) -> JsonValue:
        """Run a chain and return its output. Raises ValueError if a dependency has not run, RunError if the chain fails."""
        return self._result(self._start([chain_id], input_data), [chain_id])[chain_id]

    async def execute_chain_async(self, chain_id: str, input_data: str) -> JsonValue:
        """Like `execute_chain`, for coroutines. Cancelling it cancels the run."""
        return (await self._result_async([chain_id], input_data))[chain_id]

    def execute_group(
        self, group: str, input_data: str, parallel_executor: Executor | None = None
    ) -> dict[str, JsonValue]:
        """Run the chains of a group and return their outputs, by chain.

        Serial chains run one after the other, parallel and independent ones as soon as their dependencies are completed. Chains that depend
        on a failed one, and serial ones after a failed serial one, do not run; all others do. Afterwards raises RunError if a chain failed
        that is not independent; the failure of an independent one is in its status only.

        The group is one run, which completes even if this process dies. With a `parallel_executor` this process starts several runs: the
        function receives the parallel chains that can start, as [(chain, input)], and returns their outputs, by chain.
        """
        chains = self._state.plan()
        members = chains.group(group)
        if parallel_executor is None:
            return self._result(self._start(members, input_data), members)
        outputs: dict[str, JsonValue] = {}
        failures: list[RunError] = []
        sources = run_request.sources_of(chains, chains.ordered(members))
        for wave in run_request.waves(chains, members):
            others, parallel = ([each for each in part if outputs.keys() >= set(sources[each])] for part in wave)
            if others:
                outputs |= self._outputs_of(others, input_data, failures)
            if parallel:
                given = run_request.call(parallel_executor, parallel, input_data)
                self._state.record_outputs(given)
                outputs |= given
        if failures:
            raise failures[0]
        return {chain_id: outputs[chain_id] for chain_id in members if chain_id in outputs}

    def _outputs_of(self, chain_ids: Sequence[str], text: str, failures: list[RunError]) -> dict[str, JsonValue]:
        """Run chains and return the outputs of those that do not fail. Raises RunError if the run itself was ended."""
        try:
            return self._result(self._start(chain_ids, text), chain_ids)
        except RunError as error:
            if error.status != "failed":
                raise
            failures.append(error)
            return self._outputs(self._state.progress(chain_ids))

    async def execute_group_async(self, group: str, input_data: str) -> dict[str, JsonValue]:
        """Like `execute_group`, for coroutines. Cancelling it cancels the run."""
        return await self._result_async(self._state.plan().group(group), input_data)

    def wait_group(self, group: str, timeout_s: float | None = None) -> dict[str, JsonValue]:
        """Wait for a group's open runs, whoever started them; return the outputs of completed chains. Raises TimeoutError; runs go on."""
        members = self._state.plan().group(group)
        check_timeout(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for run_id in dict.fromkeys(each.run_id for each in self._state.progress(members).values() if each.is_open):
            shared_client().run(run_id).wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self._outputs(self._state.progress(members))

    def _start(self, chain_ids: Sequence[str], text: object) -> ChainRun:
        if not isinstance(text, str):
            raise ValueError(f"the input of a chain is a text, not {text!r}")
        chains = self._state.plan()
        done = self._done(chains, chain_ids)
        request = run_request.request_of(chains, chain_ids, text, done, timeout_s=self._timeout_s)
        client = shared_client().with_definitions(run_request.definitions_of(chains, chain_ids, str(script_folder())))
        key = uuid.uuid4().hex
        before = self._state.record_started(chain_ids, run_id_of(key))
        try:
            return client.submit_chain(request, idempotency_key=key, labels={**self._labels, "builder": self.name})
        except (
            ConfigError
        ):  # it was refused; after a lost connection it may have been accepted, which `progress` finds out
            self._state.write(before)
            raise

    def _done(self, chains: BuilderPlan, chain_ids: Sequence[str]) -> dict[str, JsonValue]:
        """Return the outputs of dependencies that are not among the chains; wait for those that run."""
        needed = {
            each: chain_id
            for chain_id in chain_ids
            for each in chains.member(chain_id).dependencies
            if each not in chain_ids
        }
        for run_id in dict.fromkeys(
            each.run_id for each in self._state.progress(list(needed)).values() if each.status == "running"
        ):
            shared_client().run(run_id).wait()
        found = self._state.progress(list(needed))
        for each, chain_id in needed.items():
            if found[each].status != "completed":
                raise ValueError(
                    f"Dependency {each!r} must be executed before {chain_id!r}: it is {found[each].status}"
                )
        return {each: progress.output for each, progress in found.items()}

    def _result(self, run: ChainRun, chain_ids: Sequence[str]) -> dict[str, JsonValue]:
        try:
            record = run.wait()
        except (KeyboardInterrupt, SystemExit):
            run.cancel()
            raise
        found = self._state.record_finished(record, chain_ids)
        failed = {chain_id: progress for chain_id, progress in found.items() if progress.status == "failed"}
        chains = self._state.plan()
        for chain_id, progress in failed.items():
            message = progress.error.message if progress.error else record.status
            log.warning("run %s: chain %s failed: %s", run.run_id, chain_id, message)
            if (
                record.status != "succeeded"
                or chains.member(chain_id).execution_mode != "independent"
                or len(chain_ids) == 1
            ):
                code = progress.error.code if progress.error else record.status
                status = record.status if record.status != "succeeded" else "failed"
                raise RunError(f"chain {chain_id!r} failed: {message}", run_id=run.run_id, status=status, code=code)
        return self._outputs(found)

    async def _result_async(self, chain_ids: Sequence[str], text: str) -> dict[str, JsonValue]:
        starting = _executor.submit(self._start, chain_ids, text)
        try:
            run = await asyncio.wrap_future(starting)
            return await asyncio.get_running_loop().run_in_executor(_executor, self._result, run, chain_ids)
        except asyncio.CancelledError:
            starting.add_done_callback(_cancel_when_started)  # it may still be waiting for dependencies
            raise

    @staticmethod
    def _outputs(found: Mapping[str, ChainProgress]) -> dict[str, JsonValue]:
        return {chain_id: progress.output for chain_id, progress in found.items() if progress.status == "completed"}

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def base(self) -> BuilderBase:
        """The settings that all its chains share."""
        return self._state.plan().base

    def get_chain_output(self, chain_id: str) -> JsonValue:
        """Return the output of a chain's last execution; None if it is not completed, or there is no such chain."""
        return self._known([chain_id]).get(chain_id, ChainProgress()).output

    def get_chain_status(self, chain_id: str) -> Status | None:
        """Return created, running, completed or failed; None if there is no such chain."""
        found = self._known([chain_id]).get(chain_id)
        return found.status if found else None

    def get_group_status(self, group: str) -> dict[str, Status]:
        """Return the status of each chain of a group. Raises ValueError for a group without chains."""
        return {
            each: progress.status for each, progress in self._state.progress(self._state.plan().group(group)).items()
        }

    def get_chain_error(self, chain_id: str) -> str | None:
        """Return the message of a chain's failure, if it failed."""
        found = self._known([chain_id]).get(chain_id)
        return found.error.message if found and found.error else None

    def get_step_dependencies(self, chain_id: str) -> dict[int, list[str]]:
        """Return for each step of a chain, from 0, the chains whose outputs its text refers to."""
        return plan.needs_of_steps(self._state.plan(), chain_id)

    def _known(self, chain_ids: Iterable[str]) -> dict[str, ChainProgress]:
        chains = self._state.plan().chains
        return self._state.progress([each for each in chain_ids if each in chains])


class DynamicChainBuilder(ChainBuilder):
    """`ChainBuilder` by the name that it has in PromptChain."""


def _cancel_when_started(starting: Future[ChainRun]) -> None:
    """Cancel the run that was started, in a thread of its own."""
    if not starting.cancelled() and starting.exception() is None:
        _executor.submit(starting.result().cancel)
