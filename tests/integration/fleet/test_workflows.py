"""LangSwarm's files run on real workers, as they are written, and go on when a worker is killed in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import TurnRun
from cantata.errors import ConfigError, UnknownRunError
from cantata.flows.events import SignalAwaited, StepRefused
from cantata.flows.wire import RunResult
from cantata.operation import health
from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import Journal
from tests.waiting import until

HERE = Path(__file__).parent
PATIENCE_S = 40.0


class Stage:
    """A folder with LangSwarm's files, whose workflows are run on a stack that stands."""

    def __init__(self, url: str, models: ScriptedModels, folder: Path) -> None:
        self._url = url
        self._models = models
        self._before = len(models.journal())
        self._clients = ExitStack()
        self.folder = folder
        shutil.copy(HERE / "workflow_tools.py", folder / "workflow_tools.py")
        models.script([])

    def start(self, text: str, workflow: str, said: str = "hello", *, session: str | None = None) -> TurnRun:
        """Begin a workflow of this text."""
        (self.folder / "flow.yaml").write_text(text)
        client = self._clients.enter_context(Client(self._url, config=self.folder / "flow.yaml"))
        return client.submit_workflow(workflow, said, session=session)

    def run(self, text: str, workflow: str, said: str = "hello") -> RunResult:
        """Run a workflow of this text to its end."""
        result = self.start(text, workflow, said).result(PATIENCE_S)
        assert result.status == "succeeded", result.error
        return result

    def script(self, *rules: Mapping[str, Any]) -> None:
        """What the models say from now on."""
        self._models.script(rules)

    def asked(self) -> list[str]:
        """The last user message of each request since the test began."""
        return [str(line["text"]) for line in self._models.journal()[self._before :]]

    def close(self) -> None:
        """Let go of connections."""
        self._clients.close()


@pytest.fixture
def stage(client: EmbeddedClient, models: ScriptedModels, tmp_path: Path) -> Iterator[Stage]:
    """On the stack of all tests."""
    stage = Stage(client.redis_url, models, tmp_path)
    yield stage
    stage.close()


def agents(*names: str, **keys: str) -> str:
    """Agents that differ in their names."""
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    return "agents:\n" + "".join(
        f"  - {{id: {name}, agent_type: openai, model: gpt-4o-mini, system_prompt: I am {name}.{more}}}\n"
        for name in names
    )


def test_an_agent_with_memory_sees_the_conversation_of_the_session(stage: Stage, models: ScriptedModels) -> None:
    text = f"memory: true\n{agents('ann')}workflows: {{w: ann -> user}}\n"

    for said in ("I am Ada.", "Who am I?"):
        stage.start(text, "w", said, session=f"memory-{stage.folder.name}").result(PATIENCE_S)

    sent: Any = models.requests[-1]["messages"]
    assert [message["content"] for message in sent if message["role"] != "system"] == [
        "I am Ada.",
        "echo: I am Ada.",
        "Who am I?",
    ]


CHAINING = """
agents:
  - id: chaining_agent
    model: openai/gpt-4o-mini
    system_prompt: |
      You can make multiple tool calls by returning JSON with 'mcp' field.
      After each tool result, you can make another tool call or provide final response.

      Example:
      1. First call: get_allowed_paths()
      2. Use result to inform: write_file()
      3. Final response to user
    tools:
      - smart_filesystem

workflows:
  simple_workflow:
    steps:
      - agent: chaining_agent
        input: "${user_input}"
        output:
          to: user

tools:
  - id: smart_filesystem
    type: mcpfilesystem
    module: workflow_tools
    methods: [get_allowed_paths, write_file]
"""


def test_an_agent_chains_its_tool_calls_within_one_step_until_a_reply_has_none(stage: Stage) -> None:
    call = {"tool": "smart_filesystem", "method": "get_allowed_paths", "params": {}}
    write = {
        "tool": "smart_filesystem",
        "method": "write_file",
        "params": {"path": "~/workspace/report.json", "content": "..."},
    }
    stage.script(
        {"match": "^Create a report", "reply": {"response": "I'll discover my permissions first", "mcp": call}},
        {
            "match": "read_write_paths",
            "reply": {"response": "Based on my permissions, I'll save to ~/workspace/", "mcp": write},
        },
        {
            "match": "wrote 3 characters",
            "reply": {"response": "Report created successfully at ~/workspace/report.json!"},
        },
    )

    result = stage.run(CHAINING, "simple_workflow", "Create a report with my tasks")

    assert result.output == "Report created successfully at ~/workspace/report.json!"
    assert result.usage.tool_calls == 2
    asked = stage.asked()
    assert asked[0] == "Create a report with my tasks"
    assert asked[1].startswith("I'll discover my permissions first\n\nTool result: ")
    assert json.loads(asked[1].partition("Tool result: ")[2]) == {
        "local_filesystem": {"read_write_paths": ["~/workspace/"]}
    }


ROUTING = (
    agents("security_scanner", "request_processor", "security_handler", "validator")
    + """
workflows:
  secured:
    steps:
      - id: initialize_request
        agent: security_scanner
        input: "${user_input}"
        output:
          to: process_request

      - id: process_request
        agent: request_processor
        input: "${context.step_outputs.initialize_request}"
        output:
          to:
            - condition:
                if: "${context.step_outputs.initialize_request.suspicious_warning} != None"
                then: send_security_warning
                else: check_validation

      - id: send_security_warning
        agent: security_handler
        input: |
          Security Warning: ${context.step_outputs.initialize_request.suspicious_warning}
          Original Request: ${user_input}
        output:
          to: user

      - id: check_validation
        agent: validator
        input: "${context.step_outputs.initialize_request}"
        output:
          to: user
"""
)


@pytest.mark.parametrize(
    ("scanned", "last"),
    [
        ({"suspicious_warning": "a script", "text": "x"}, "Security Warning: a script\nOriginal Request: look"),
        ({"text": "x"}, '{"text":"x"}'),
    ],
)
def test_one_branch_of_a_condition_runs(stage: Stage, scanned: object, last: str) -> None:
    stage.script(
        {"match": "^look$", "reply": scanned}, {"match": "suspicious|text", "reply": "handled"}, {"reply": "warned"}
    )

    result = stage.run(ROUTING, "secured", "look")

    assert stage.asked()[2].strip() == last
    assert len(stage.asked()) == 3
    assert result.agents == [
        "security_scanner",
        "request_processor",
        "security_handler" if "suspicious_warning" in str(scanned) else "validator",
    ]


def test_functions_loops_and_fans(stage: Stage) -> None:
    text = """
agents: [{id: ann, model: openai/gpt-4o-mini}]
workflows:
  counting:
    - {id: words, function: count, input: '${user_input}', fan_key: both}
    - {id: shout, function: upper, script: "def upper(text): return text.upper()", args: {text: '${user_input}'}, fan_key: both}
    - {id: both, transform: {n: '${words.words}', loud: '${shout}'}, fan_key: both, is_fan_in: true}
    - id: each
      loop: {for_each: ['${both.loud}', '${both.n}'], body: {function: count, args: {text: 'item ${item}'}}}
      output: {collect: all}
    - {id: tell, agent: ann, input: '${all[1].text} of ${all[0].text}', output: {to: user}}
"""

    result = stage.run(text, "counting", "one two three")

    assert result.output == "echo: item 3 of item ONE TWO THREE"


def test_a_model_asks_a_person_and_goes_on_with_the_answer(stage: Stage) -> None:
    text = agents("ann", tools="[clarify]") + "workflows: {w: [{id: ask, agent: ann, output: {to: user}}]}\n"
    question = {
        "tool": "clarify",
        "method": "",
        "params": {"prompt": "Which file?", "scope": "root_user", "context": "two are there"},
    }
    stage.script(
        {"match": "^delete the file$", "reply": {"response": "I must ask.", "mcp": question}},
        {"match": "b.txt", "reply": "b.txt is gone"},
    )
    run = stage.start(text, "w", "delete the file")
    step = until(
        lambda: next((s for s in run.record().steps.values() if s.state == "waiting_signal"), None), "the question"
    )

    [waiting] = [event for event in run.log(timeout_s=0.1) if isinstance(event, SignalAwaited)]
    assert waiting.asks == {"prompt": "Which file?", "scope": "root_user", "context": "two are there"}
    assert run.signal(step.step_id, "b.txt") == "taken"

    assert run.result(PATIENCE_S).output == "b.txt is gone"
    assert stage.asked()[1] == 'I must ask.\n\nTool result: "b.txt"'


APPROVAL = (
    agents("ann", "bob")
    + """
workflows:
  publishing:
    - {id: write, agent: ann, input: 'Write about ${user_input}'}
    - {id: approve, approval: May this be published?}
    - {id: choose, type: condition, condition: '${approve.approved} == true', true_step: publish, false_step: drop}
    - {id: publish, agent: bob, input: 'Publish: ${write}', output: {to: user}}
    - {id: drop, transform: dropped, output: {to: user}}
"""
).replace("transform: dropped", "transform: ['dropped', '${approve.why}']")


@pytest.mark.parametrize(
    ("signal", "output"),
    [
        ({"approved": True}, "echo: Publish: echo: Write about tea"),
        ({"approved": False, "why": "too long"}, ["dropped", "too long"]),
    ],
)
def test_a_workflow_waits_for_an_approval(stage: Stage, signal: Any, output: object) -> None:
    run = stage.start(APPROVAL, "publishing", "tea")
    waiting = until(
        lambda: [event for event in run.log(timeout_s=0.1) if isinstance(event, SignalAwaited)], "the pause"
    )[0]
    assert (waiting.step, waiting.asks) == ("publishing/approve", {"prompt": "May this be published?"})

    run.signal("publishing/approve", signal)

    assert run.result(PATIENCE_S).output == output


def test_a_step_is_signalled_by_the_id_that_its_file_gives_it_before_it_waits_too(stage: Stage) -> None:
    stage.script({"match": "^Write", "delay_s": 0.5})
    run = stage.start(APPROVAL, "publishing", "tea")

    assert run.signal("approve", {"approved": True}) == "kept"

    assert run.result(PATIENCE_S).output == "echo: Publish: echo: Write about tea"


SKIPPING = (
    agents("ann", "bob")
    + """
tools: [{id: nothing, type: function, function: workflow_tools.nothing}, {id: broken, type: function, function: workflow_tools.broken}]
workflows:
  last: [{id: a, agent: ann}, {id: b, agent: bob, condition: "${a} == 'x'", output: {to: user}}]
  dropped: [{id: a, agent: ann, output: {to: [b, {invoke: plain}]}}, {id: b, agent: bob, condition: "${a} == 'x'", output: {to: user}}]
  plain: [{id: p, agent: ann}]
  none: [{id: b, agent: bob, condition: "${user_input} == 'x'"}]
  outer: [{id: inner, invoke_workflow: none}, {id: c, agent: bob, input: 'inner: ${inner}'}]
  invoked: [{id: a, agent: ann}, {id: inner, invoke_workflow: none, output: {to: user}}]
  failed: [{id: a, agent: ann}, {id: b, tool: broken, on_error: skip, output: {to: user}}]
  back: [{id: a, agent: ann}, {id: b, tool: broken, rollback_to: a}]
  empty: [{id: a, agent: ann}, {id: b, tool: nothing, output: {to: user}}]
"""
)


@pytest.mark.parametrize(
    ("workflow", "output", "warnings"),
    [
        (
            "last",
            "echo: hello",
            [
                "'last': the steps that give its answer have no output, so the answer is that of 'a', the last step that has one"
            ],
        ),
        (
            "failed",
            "echo: hello",
            [
                "'failed': the steps that give its answer have no output, so the answer is that of 'a', the last step that has one"
            ],
        ),
        (
            "dropped",
            "echo: hello",
            [
                "'dropped': the steps that give its answer have no output, so the answer is that of 'a', the last step that has one"
            ],
        ),
        (
            "invoked",
            "echo: hello",
            [
                "'invoked': the steps that give its answer have no output, so the answer is that of 'a', the last step that has one"
            ],
        ),
        ("outer", "echo: inner: ", []),
        ("empty", None, []),
    ],
)
def test_if_the_steps_of_the_answer_are_skipped_it_is_the_last_output(
    stage: Stage, workflow: str, output: object, warnings: list[str]
) -> None:
    result = stage.run(SKIPPING, workflow)

    assert (result.output, result.warnings) == (output, warnings)


@pytest.mark.parametrize(
    ("workflow", "code", "message"),
    [
        ("none", "no_answer", "'none' has no answer: none of its steps has an output"),
        ("back", "tool_error", "workflow_tools:broken raised RuntimeError: out of paper (in the last of 2 rounds)"),
    ],
)
def test_a_workflow_without_an_answer_fails_with_the_reason(
    stage: Stage, workflow: str, code: str, message: str
) -> None:
    result = stage.start(SKIPPING, workflow).result(PATIENCE_S)

    assert (result.status, result.output) == ("failed", None)
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, message)


def test_a_mistyped_signal_is_refused_with_the_steps_that_wait(stage: Stage, client: EmbeddedClient) -> None:
    run = stage.start(APPROVAL, "publishing", "tea")
    until(lambda: [event for event in run.log(timeout_s=0.1) if isinstance(event, SignalAwaited)], "the pause")

    def cli(*words: str) -> Result:
        return CliRunner().invoke(submit, ["runs", *words], env={"REDIS_URL": client.redis_url})

    with pytest.raises(
        UnknownRunError, match=r"no step 'aprove' of run .* waiting: 'publishing/approve'; did you mean 'approve'"
    ):
        run.signal("aprove", {"approved": True})
    refused = cli("signal", run.run_id, "aprove", "true")
    shown = cli("show", run.run_id)

    assert (refused.exit_code, "waiting: 'publishing/approve'" in refused.stderr) == (2, True)
    assert "waiting for a signal: May this be published?" in shown.output
    assert run.signal("approve", {"approved": True}) == "taken"
    assert run.result(PATIENCE_S).output == "echo: Publish: echo: Write about tea"


def test_the_faults_of_a_file_are_told_before_anything_runs(stage: Stage) -> None:
    with pytest.raises(ConfigError) as error:
        stage.start(agents("ann") + "workflows: {w: [{id: a, agent: ann, output: {to: useer}}]}", "w")
    assert "there is no step 'useer'; did you mean 'user'?" in str(error.value)

    with pytest.raises(ConfigError) as error:
        stage.start(agents("ann") + "workflows: {w: ann -> user}", "v")
    assert "no workflow is called 'v'" in str(error.value)


# --- kills -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hurt(victim: EmbeddedClient, models: ScriptedModels, tmp_path: Path) -> Iterator[Stage]:
    """On that stack."""
    stage = Stage(victim.redis_url, models, tmp_path)
    yield stage
    stage.close()


LOOPING = """
agents: [{id: ann, model: openai/gpt-4o-mini}, {id: judge, model: openai/gpt-4o-mini}]
workflows:
  w:
    - {id: write, agent: ann, input: 'write ${judge.output.notes || user_input}'}
    - {id: save, function: slow, args: {journal: JOURNAL, mark: '${write}', seconds: 3}}
    - id: review
      agent: judge
      input: 'review ${save}'
      output: {to: {condition: {if: "${review.good} == true", then: user, else: write}}}
"""


def kill_tool(stage: Stage, run: TurnRun, journal: Journal) -> None:
    started = until(
        lambda: [line for line in journal.of("start") if "longer" in str(line["name"])], "the second round"
    )[0]
    os.kill(started["pid"], signal.SIGKILL)


def kill_agent(stage: Stage, run: TurnRun, journal: Journal) -> None:
    until(lambda: "review echo: write tea" in stage.asked(), "the request")
    step = until(
        lambda: next((s for s in run.record().steps.values() if s.state == "running" and "review" in s.step_id), None),
        "review",
    )
    os.kill(int(step.worker.rpartition("#")[2]), signal.SIGKILL)


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
@pytest.mark.parametrize("kill", [kill_tool, kill_agent])
def test_a_worker_killed_in_the_middle_delays_a_workflow_and_repeats_nothing_finished(
    hurt: Stage, journal: Journal, kill: Callable[[Stage, TurnRun, Journal], None]
) -> None:
    hurt.script(
        *([{"match": "^review.*tea", "delay_s": 30, "times": 1}] if kill is kill_agent else []),
        {"match": "^review.*tea", "reply": {"notes": "longer"}},
        {"match": "^review.*longer", "reply": {"good": True, "text": "fine"}},
    )
    run = hurt.start(LOOPING.replace("JOURNAL", str(journal.path)), "w", "tea")

    kill(hurt, run, journal)

    result = run.result(60)
    assert (result.status, result.output) == ("succeeded", {"good": True, "text": "fine"})
    assert [line["name"] for line in journal.of("finish")] == ["echo: write tea", "echo: write longer"]
    asked = hurt.asked()
    assert [asked.count(text) for text in ("write tea", "write longer", "review echo: write longer")] == [1, 1, 1]
    assert asked.count("review echo: write tea") == (2 if kill is kill_agent else 1)


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_a_step_whose_script_no_worker_has_is_parked_and_says_so_until_one_has_it(
    stage: Stage, client: EmbeddedClient
) -> None:
    script = "def up(text): return text.upper()"
    text = f"agents: []\nworkflows: {{w: [{{id: shout, function: up, script: '{script}', args: {{text: '${{input}}'}}}}]}}\n"
    file = stage.folder / "flow.yaml"
    file.write_text(text)
    with Client(client.redis_url, config=file) as own:
        assert own.definitions.tools
        file.write_text(text.replace("upper", "lower"))
        run = own.submit_workflow("w", "Hello")
        refused = until(
            lambda: [event for event in run.log(timeout_s=0.5) if isinstance(event, StepRefused)], "a refusal"
        )
        shown = CliRunner().invoke(submit, ["runs", "show", run.run_id], env={"REDIS_URL": client.redis_url}).output
        checks = health.evaluate(health.gather(client.redis_url, version="0.1.0")).checks

        assert "no script 'up' with the digest" in refused[0].message
        assert "no script 'up' with the digest" in " ".join(shown.split())
        (check,) = [check for check in checks if check.name == "steps"]
        assert run.run_id in check.message
        file.write_text(text)
        result = run.result(PATIENCE_S)

    assert (result.status, result.output) == ("succeeded", "HELLO")
