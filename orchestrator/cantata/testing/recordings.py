"""Replays of recorded runs: today's code, prompts and configuration, with the recorded answers of models and results of tools.

The replay runs in this process, on a ledger of its own, by the handlers of workers. Steps that call tools or commands are not executed, but
end as recorded. Model calls are answered as recorded, or by the model if it is live. All else is executed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import eq
from pathlib import Path
from typing import Any

from cantata.client.run_export import FORMAT, VERSION, positional, redacted, tool_of
from cantata.client.runs import ChainRun, TurnRun
from cantata.config import loading as configuration
from cantata.errors import ConfigError, ModelError, StepError
from cantata.flows.definitions import Chain, Definitions, Model
from cantata.flows.graph import START, STEP_OVER, Graph, Outcome
from cantata.flows.step_kinds import kind_named
from cantata.flows.wire import ChainRequest, ChainResponse, HistoryEntry, TurnRequest
from cantata.flows.workflows import expansion
from cantata.flows.workflows.history import Activation
from cantata.ledger.records import Begun
from cantata.ledger.runs.results import is_over
from cantata.operation.logs.secrets import secrets_in
from cantata.testing.comparisons import Comparison, Difference, Evaluation, RunEnd
from cantata.testing.inline import Runner
from cantata.values import JsonValue, ToolCallRequest, Usage, as_text, stored
from cantata_workers.models.dialects.conversation import Message
from cantata_workers.models.llm import Reply
from cantata_workers.models.llm.caching import Options
from cantata_workers.models.model_calls import call_models, digests_of, recorded_prompt
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps.execute import execute
from cantata_workers.steps.handlers import HANDLERS
from cantata_workers.steps.workflow_steps import workflow_advance

Compare = Callable[[JsonValue, JsonValue], bool]
JsonObject = dict[str, Any]

ADVANCE = "workflow.advance"
MODEL = "model"
MASK = "***"


def replay(
    recording: str | Path | Mapping[str, Any],
    *,
    definitions: Definitions | None = None,
    config: str | Path | None = None,
    request: ChainRequest | Mapping[str, Any] | str | Path | None = None,
    live: Collection[str] = (),
    compare: Compare | None = None,
) -> Comparison:
    """Replay a recorded run with today's code, prompts and configuration, and return how it differs. No tool is called, and no model.

    A chain of the configuration runs as it is there now. After a difference the replay goes on with what is recorded, as far as it can.

    Args:
        recording: A file that `submit runs export` wrote, or its content.
        definitions: The configuration; or
        config: its file; if neither is given, it is searched for as the command line does.
        request: The chain request as it is now, as data or by the name of its file or chain; the input is the recorded one.
        live: {"model"} asks the models again. Then only the end is compared: a tool that is called with other arguments than any that are
            recorded ends the replay.
        compare: Whether two outputs of the run, the recorded one and that of the replay, count as the same; by default if they are equal.

    Raises:
        ConfigError: The recording or the configuration has faults, or `live` has another word.
    """
    if unknown := sorted(set(live) - {MODEL}):
        raise ConfigError(f"live is {{'model'}} or empty, not {unknown[0]!r}: tools are never called in a replay")
    return _Replay(_read(recording), definitions or _load(config), is_live=bool(live), compare=compare or eq).run(
        request
    )


def evaluate(
    folder: str | Path,
    *,
    definitions: Definitions | None = None,
    config: str | Path | None = None,
    live: Collection[str] = (),
    compare: Compare | None = None,
) -> Evaluation:
    """Replay each recording of a folder (`*.json`), and return the comparisons: printed, a table of changed answers, tokens and costs.

    The arguments are those of `replay`. Raises ConfigError also if the folder has no recordings.
    """
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        raise ConfigError(
            f"there are no recordings (*.json) in {str(folder)!r}: `submit runs export RUN > run.json` writes one"
        )
    definitions = definitions or _load(config)
    return Evaluation({file.name: replay(file, definitions=definitions, live=live, compare=compare) for file in files})


def _load(config: str | Path | None) -> Definitions:
    return configuration.load_sound(configuration.find(None if config is None else str(config))).definitions


def _read(recording: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    source = "" if isinstance(recording, Mapping) else str(recording)
    try:
        document = recording if isinstance(recording, Mapping) else json.loads(Path(recording).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"this recording cannot be read: {error}", source=source) from error
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ConfigError("this is no recording: `submit runs export RUN > run.json` writes one", source=source)
    if document["version"] != VERSION:
        raise ConfigError(
            f"this recording has version {document['version']}; this Cantata reads version {VERSION}", source=source
        )
    return document


@cache
def _runner() -> Runner:
    """Return the server of the replays of this process, which they empty; runs of `run_inline` have another."""
    return Runner()


class _Replay:
    """A replay of one recording."""

    def __init__(
        self, document: Mapping[str, Any], definitions: Definitions, *, is_live: bool, compare: Compare
    ) -> None:
        self._document, self._head = document, document["run"]
        self._steps: dict[str, JsonObject] = {step["step"]: step for step in document["steps"]}
        inner = {START, *(added for step in self._steps.values() for added in step.get("expanded", ()))}
        self._planned = [name for name in self._steps if name not in inner]
        self._definitions, self._is_live, self._compare = definitions, is_live, compare
        self._secrets = secrets_in(os.environ)
        self._differences: list[Difference] = []
        self._answered: set[str] = set()
        self._is_whole = self._head["status"] in ("succeeded", "failed")
        self._stopped = ""
        self._runner = _runner()
        self._handlers = HANDLERS | {
            kind: self._recorded_outcome for kind in HANDLERS if kind_named(kind).is_call or kind == "agent.memory"
        }
        self._handlers[ADVANCE] = self._advance
        self._ready: list[str] = []
        self._commands: dict[str, list[str]] = {}
        """The next advance of each workflow in Python → the recorded commands before it."""
        self._follows = True

    def run(self, request: ChainRequest | Mapping[str, Any] | str | Path | None) -> Comparison:
        """Run to the end, or as far as recorded results lead."""
        with self._runner.lock:
            self._runner.client.redis.flushdb()
            try:
                run = self._submit(request)
            except ConfigError as error:  # the request does not fit the configuration any more
                self._differ("", "request", self._head["request"], str(error))
                return self._comparison(RunEnd("rejected", None, Usage()))
            self._execute_ready(run)
            while not self._stopped and not is_over(run.status()):
                if not self._signal(run) and not self._runner.skip_to_timer(run.run_id):
                    self._follows = (
                        False  # nothing more is over, so what an advance received in the recording never will be
                    )
                    self._stopped = "" if self._ready else "a step waits, and its end is not recorded"
                self._execute_ready(run)
            return self._compare_end(run)

    def _submit(self, changed: ChainRequest | Mapping[str, Any] | str | Path | None) -> TurnRun | ChainRun:
        client, labels = self._runner.client.with_definitions(self._definitions), self._head["labels"]
        if self._head["kind"] == "turn":
            turn = stored(TurnRequest, self._head["request"])
            if turn.session is not None:
                entries = [HistoryEntry.model_validate(entry) for entry in self._document["conversation"]]
                client.sessions.of(labels.get("tenant", "")).restore(turn.session, entries)
            return client.submit_turn(**{name: getattr(turn, name) for name in turn.model_fields_set}, labels=labels)
        recorded = stored(ChainRequest, self._head["request"])
        return client.submit_chain(
            changed or self._chain_now(recorded), initial_input=recorded.initial_input, labels=labels
        )

    def _chain_now(self, recorded: ChainRequest) -> ChainRequest:
        """Return the request; if it was made by the name of a chain, with the chain of that name as it is now."""
        before, now = (
            (self._document["definitions"] or {}).get("chains", {}),
            self._definitions.chains.get(recorded.chain_id),
        )
        then = Chain.model_validate(before[recorded.chain_id]) if recorded.chain_id in before else None
        if now is None or then is None or (then.nodes, then.entry_node) != (recorded.nodes, recorded.entry_node):
            return recorded
        return recorded.model_copy(update={"nodes": now.nodes, "entry_node": now.entry_node, "inputs": now.inputs})

    # --- execution --------------------------------------------------------------------------------------------------

    def _execute_ready(self, run: TurnRun | ChainRun) -> None:
        """Execute steps until none is ready. Of several, the one that ended first in the recording goes first: joins may depend on it.

        A step that was stopped in the recording is left for what stops it, and an advance of a workflow in Python for later while something
        that it received in the recording is not over.
        """
        messages, ready = self._runner.app.messages, self._ready
        while not self._stopped:
            while messages:
                ready += messages.popleft().steps
            ready.sort(key=self._ended)
            number = next(
                (number for number, step_id in enumerate(ready) if not self._is_early(run.run_id, step_id)), None
            )
            if number is None:
                return
            step_id = ready.pop(number)
            begun = self._runner.process.ledger.steps.begin(run.run_id, step_id, self._runner.process.owner)
            if isinstance(begun, Begun):
                ready += self._execute(begun)

    def _execute(self, begun: Begun) -> list[str]:
        """Execute a step and commit its outcome; return the steps that became ready."""
        process = self._runner.process
        with process.leased(begun):
            record = execute(process, begun, self._handlers, self._answer)
            if record is None or self._stopped:
                return []
            self._compare_outcome(begun, record.outcome)
            committed = process.ledger.steps.commit(begun, record.outcome, output=record.output, info=record.info)
        return [each.step_id for each in committed.sends]

    def _signal(self, run: TurnRun | ChainRun) -> bool:
        """Give the waiting step that ended first in the recording its value; return whether it was signalled, and not ended by a timer."""
        steps = {step_id: step for step_id, step in run.record(()).steps.items() if step.state == "waiting_signal"}
        ended = {step_id: self._ended(step_id) for step_id in steps}
        first = min(ended, key=lambda step_id: ended[step_id], default="")
        is_signalled = (
            ended.get(first, math.inf) < math.inf
            and self._steps[first]["state"] == "done"
            and steps[first].awaits_signal
        )
        if is_signalled:
            run.signal(first, self._steps[first]["output"])
        return is_signalled

    def _ended(self, step_id: str) -> float:
        """Return the place of a step's end in the recording; one that was stopped comes last, as its end came before what stopped it."""
        step = self._steps.get(step_id, {})
        return math.inf if step.get("state") == "skipped" else step.get("ended") or math.inf

    def _activation(self, step_id: str) -> Activation | None:
        """Return the recorded activation of an advance; None if it has none, such as one that failed."""
        step = self._steps.get(step_id, {}) if self._follows else {}
        found = step.get("detail", {}).get(expansion.LAST_ACTIVATION) or (step.get("expanded") and step["output"])
        return Activation.model_validate(found) if found else None

    def _is_early(self, run_id: str, step_id: str) -> bool:
        """Return whether a step is not executed yet: it was stopped in the recording, or is an advance that received what is not over."""
        if self._follows and self._steps.get(step_id, {}).get("state") == "skipped":
            return True
        activation = self._activation(step_id) if step_id in self._commands else None
        received = [self._commands[step_id][index] for index in activation.received] if activation else []
        found = self._runner.process.ledger.reader.outcomes(run_id, received) if received else ()
        return any(state not in STEP_OVER for state, *_ in found)

    def _advance(self, context: StepContext) -> Outcome:
        """Repeat the recorded activation of a workflow in Python, as far as its code asks for the same."""
        step_id, root, number = (
            context.begun.step_id,
            context.text_param("root") or context.begun.step_id,
            context.int_param("advance"),
        )
        activation, commands = self._activation(step_id), self._commands.pop(step_id, [])
        if activation is not None:
            commands += (expansion.step_id(root, command) for command in activation.commands)
            self._commands[expansion.advance_id(root, number + 1)] = commands
        return workflow_advance(context, activation)

    def _recorded_outcome(self, context: StepContext) -> Outcome:
        """Return the recorded outcome of a step that calls a tool, after a look at its arguments."""
        begun, step, now = context.begun, self._steps.get(context.begun.step_id), JsonObject()
        if kind_named(begun.spec.kind).is_call:
            now = redacted(
                {"tool": tool_of(begun.spec), "arguments": context.node_input | positional(begun.spec)}, self._secrets
            )
            if self._is_live:  # this step made the call, or any other
                step = next(
                    (each for each in (step, *self._steps.values()) if each and each.get("tool_call") == now), None
                )
            elif step is not None and "tool_call" in step:
                for part, value in now.items():
                    self._check(begun.step_id, part, step["tool_call"][part], value)
        if step is None or not (step["state"] == "done" or step["error"]):
            raise self._missing(begun, step, " ".join(map(as_text, now.values())))
        if error := step["error"]:
            raise StepError(
                error["message"].removeprefix(str(begun.spec.params.get("failure", ""))), code=error["code"]
            )
        return Outcome(output=step["output"], usage=Usage.model_validate(step["usage"] or {}))

    async def _answer(
        self, context: StepContext, models: Sequence[Model], messages: Sequence[Message], options: Options
    ) -> Reply:
        """Answer a model call as recorded, after a look at what is asked; a live one by the model."""
        step_id, step = context.begun.step_id, self._steps.get(context.begun.step_id)
        call = step.get("model_call") if step and step_id not in self._answered else None
        self._answered.add(step_id)
        if call is not None:
            self._compare_request(step_id, call, models[0], messages, options)
        if self._is_live:
            return await call_models(replace(context, answer_model=None), models, messages, **options)
        if step is not None and call is not None:
            return _reply_of(call, step["usage"])
        if step is not None and (
            step["error"] or "unmerged" in step.get("detail", {})
        ):  # a synthesizer bears that its model fails
            error = step["error"] or {"message": step["detail"]["unmerged"], "code": "model_error"}
            raise ModelError(error["message"], code=error["code"])
        raise self._missing(context.begun, step, f"a call of {models[0].model}")

    def _missing(self, begun: Begun, step: JsonObject | None, call: str) -> StepError:
        """Stop the replay: the result of a call is not recorded."""
        state = f"{step['state']} in the recording, without this call" if step else "not in the recording"
        if self._is_whole:
            self._differ(begun.step_id, "graph", step and step["state"], call)
        self._stopped = f"step {begun.step_id!r} is {state}, so there is no result for it: {call}"
        return StepError(self._stopped, code="not_recorded")

    # --- comparisons ------------------------------------------------------------------------------------------------

    def _compare_request(
        self, step_id: str, call: JsonObject, model: Model, messages: Sequence[Message], options: Options
    ) -> None:
        before, now = call["messages"], redacted(recorded_prompt(messages), self._secrets)
        digests, found = call["request"] or {}, digests_of(model, messages, options)
        for part in ("model", "params", "tools", "schema") if digests else ():
            self._check(step_id, part, digests.get(part), found.get(part))
        if before is not None and before != now:
            pairs = zip([*before, *[None] * len(now)], [*now, *[None] * len(before)], strict=False)
            first, other = next((one, two) for one, two in pairs if one != two)
            self._differ(step_id, "prompt", first and first["text"], other and other["text"])
        elif digests.get("messages") != found.get("messages") and digests and MASK not in as_text(before):
            self._differ(
                step_id,
                "prompt",
                "messages of which the beginning, or only a digest, is recorded",
                as_text(messages[-1]["content"]),
            )

    def _compare_outcome(self, begun: Begun, outcome: Outcome) -> None:
        """Compare what a step added to the graph, or its end."""
        step = self._steps.get(begun.step_id)
        if self._is_live and begun.step_id != START:
            return
        if begun.spec.kind == ADVANCE:
            if step is not None and step["state"] == "done" and outcome.status == "done":
                self._compare_graph(begun.step_id, outcome.fragment or Graph())
        elif step is None:
            self._differ(begun.step_id, "graph", None, _title(begun.spec.kind, begun.spec.work_name))
        elif outcome.fragment is not None:
            self._compare_graph(begun.step_id, outcome.fragment)
        elif outcome.status in STEP_OVER:
            end = redacted({"error": outcome.error and outcome.error.message, "output": outcome.output}, self._secrets)
            self._check(begun.step_id, "error", step["error"] and step["error"]["message"], end["error"])
            self._check(begun.step_id, "output", step["output"] if outcome.status == "done" else None, end["output"])

    def _compare_graph(self, step_id: str, fragment: Graph) -> None:
        items = fragment.items
        now = {
            step.id: _title(step.kind, step.work_name)
            for step in fragment.steps
            if items is None or step.id != items.like
        }
        ids = self._planned if step_id == START else self._steps[step_id].get("expanded", [])
        before = {
            name: _title(self._steps[name]["kind"], self._steps[name]["name"]) for name in ids if name in self._steps
        }
        if items is not None:
            now |= {
                name: before.get(name, "") for name in (f"{items.prefix}/{index}" for index in range(len(items.given)))
            }
        for name in before | now:
            if before.get(name) != now.get(name):
                self._differ(name, "graph", before.get(name), now.get(name))

    def _compare_end(self, run: TurnRun | ChainRun) -> Comparison:
        record = run.record()
        result = run.so_far()
        output = result.final_output if isinstance(result, ChainResponse) else result.output
        if not self._stopped and self._is_whole:
            end = redacted(
                {"status": record.status, "error": record.error and record.error.model_dump()}, self._secrets
            )
            for part, value in end.items():
                self._check("", part, self._head[part], value)
            if not self._compare(self._head["output"], redacted(output, self._secrets)):
                self._differ("", "output", self._head["output"], output)
        return self._comparison(RunEnd("stopped" if self._stopped else record.status, output, record.usage))

    def _comparison(self, now: RunEnd) -> Comparison:
        ends = [each for each in self._differences if not each.step or not self._is_live]
        head = self._head
        recorded = RunEnd(head["status"], head["output"], Usage.model_validate(head["usage"]))
        is_same = not ends and not (self._stopped and self._is_live)
        return Comparison(head["id"], is_same, tuple(self._differences), recorded, now, self._stopped)

    def _check(self, step_id: str, part: str, recorded: JsonValue, now: JsonValue) -> None:
        if recorded != now:
            self._differ(step_id, part, recorded, now)

    def _differ(self, step_id: str, part: str, recorded: JsonValue, now: JsonValue) -> None:
        self._differences.append(Difference(step_id, part, recorded, now))


def _title(kind: str, name: str) -> str:
    return f"{kind} {name}".strip()


def _reply_of(call: JsonObject, usage: JsonObject | None) -> Reply:
    native = [each for each in call["tool_calls"] if each.get("dialect", "native") == "native"]
    requests = [
        ToolCallRequest(id=each["id"], name=each["name"], arguments=json.dumps(each.get("arguments") or {}))
        for each in native
    ]
    return Reply(
        text=as_text(call["reply"]),
        usage=Usage.model_validate(usage or {}),
        model=call["model"],
        finish_reason=call["finish"] or "stop",
        tool_calls=tuple(requests),
        cached=call["cached"],
        request=call["request"] or {},
    )
