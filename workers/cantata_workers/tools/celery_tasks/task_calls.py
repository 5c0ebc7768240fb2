"""Handler of steps that call a task: publishes it with the user's application, to the user's workers."""

from __future__ import annotations

from typing import Any, cast

from celery import Celery, Task, states
from kombu.exceptions import EncodeError, OperationalError
from pydantic import TypeAdapter

from cantata.engine.dispatch import user_app
from cantata.errors import StepError, UnavailableError
from cantata.flows.definitions import Tool
from cantata.flows.graph import Outcome
from cantata.ledger.redis.connection import RedisFailure
from cantata.operation import fault_points
from cantata.values import JsonValue, ToolSchema
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.tools import schemas
from cantata_workers.tools.celery_tasks import result_watcher
from cantata_workers.tools.celery_tasks.result_watcher import ResultWatcher, TaskCall

FIRST_CHECK_S = 5.0  # until the sweep has a worker look for the result, in case the one that published the task is gone
MAX_EARLIER = 5  # earlier attempts whose results are looked for


@handles("task.call")
def task_call(context: StepContext) -> Outcome:
    """Publish the task of a tool. If the task of an earlier attempt has succeeded meanwhile, its result is the outcome."""
    tool, begun, watcher = context.tool, context.begun, result_watcher.current()
    assert tool is not None
    assert tool.task is not None
    task = user_app.task_named(tool.task)
    if tool.at_most_once and (task.acks_late if task else watcher.user_app.conf.task_acks_late):
        message = f"task {tool.task} is acknowledged late (acks_late), so your broker may deliver it twice: 'at_most_once' cannot hold"
        raise StepError(message, code="acks_late")
    call = watcher.call(begun, tool)
    if begun.attempt > 1 and (earlier := _earlier_outcome(context, watcher, call)):
        return earlier
    arguments = _arguments(context, tool, task)
    options: dict[str, Any] = {
        "task_id": call.task_id, "expires": begun.spec.timeout_s, **({"queue": tool.queue} if tool.queue else {}),
        **({"retry": False} if tool.at_most_once else {}),  # the broker may have a message whose reply was lost
        "headers": {
            "cantata_run": begun.run_id, "cantata_step": begun.step_id, "cantata_idempotency_key": f"{begun.run_id}:{begun.step_id}",
            **watcher.heartbeat_header(call),
        },
    }  # fmt: skip
    with watcher.watching(call, ignores_result=task.ignore_result if task else None) as links:
        _publish(
            watcher.user_app, tool.task, task, arguments, {**options, **links, "producer": watcher.producers.get()}
        )
    fault_points.at("task-published")
    return Outcome(
        status="dispatched", detail=call.detail, retry_in_s=min(FIRST_CHECK_S, begun.spec.timeout_s or FIRST_CHECK_S)
    )


def _earlier_outcome(context: StepContext, watcher: ResultWatcher, call: TaskCall) -> Outcome | None:
    """Return the outcome of an earlier attempt whose task has succeeded after all; revoke the tasks of the others.

    Of many attempts it looks at the last ones, at those that lost their worker, and at the last that is recorded as dispatched.
    """
    info = cast("dict[str, Any]", context.process.ledger.reader.infos(call.begun.run_id, [call.begun.step_id])[0])
    run_id, step_id, number = call.begun.run_id, call.begun.step_id, call.begun.attempt
    sent = {watcher.task_id(run_id, each["attempt"], step_id) for each in info.get("lost") or ()} | {
        *filter(None, [info.get("task_id")])
    }
    last = {watcher.task_id(run_id, attempt, step_id) for attempt in range(max(1, number - MAX_EARLIER), number)}
    results = watcher.read([*sent | last])
    for task_id, result in results.items():
        if result.state == states.SUCCESS:
            return result.outcome(call.task, ()).model_copy(update={"detail": {"task": call.task, "task_id": task_id}})
    watcher.revoke([*sent - results.keys()])
    return None


def _arguments(context: StepContext, tool: Tool, task: Task[Any, Any] | None) -> dict[str, JsonValue]:
    """Return the task's keyword arguments. A model's are checked against the task's parameters, if it is known here."""
    given = context.node_input
    if task is not None and context.begun.spec.is_asked_by_model:
        given = _json.validate_python(schemas.jsonable(schemas.bind(task.run, tool, given)))
    elif task is not None:
        given = schemas.with_defaults(task.run, given, context.mapped_names)
    if fixed := sorted(tool.values.keys() & given.keys()):
        raise StepError(
            f"argument {fixed[0]!r} is given by the configuration's 'values'; leave it out", code="bad_arguments"
        )
    return {**given, **tool.values}


_json = TypeAdapter[dict[str, JsonValue]](dict[str, JsonValue])


def _publish(
    app: Celery, name: str, task: Task[Any, Any] | None, arguments: dict[str, JsonValue], options: dict[str, Any]
) -> None:
    """Publish a task, by its own method if it is known here: that has the task's own options, and checks its arguments."""
    try:
        sent = (
            task.apply_async(kwargs=arguments, **options) if task else app.send_task(name, kwargs=arguments, **options)
        )
    except TypeError as error:
        raise StepError(f"task {name}: {error}; its input was {sorted(arguments)}", code="bad_arguments") from error
    except EncodeError as error:
        raise StepError(f"task {name}: its arguments cannot be serialized: {error}", code="bad_arguments") from error
    except Exception as error:
        if isinstance(error, OperationalError | RedisFailure | OSError) or "Retry limit exceeded" in str(
            error
        ):  # of broker or backend
            raise UnavailableError(f"the broker of {user_app.title(app)} cannot be used: {error}") from error
        raise StepError(f"task {name} cannot be sent: {type(error).__name__}: {error}", code="not_sent") from error
    if getattr(sent, "id", None) != options["task_id"]:
        message = f"task {name} was not sent under the id that its apply_async was given, so its result cannot be found"
        raise StepError(message, code="not_sent")


def schema_of(name: str, tool: Tool) -> ToolSchema:
    """Return the tool schema of a task from its signature. Raises StepError if the task is not known here."""
    task = user_app.task_named(str(tool.task))
    if task is None:
        message = f"task {tool.task!r} is not registered in the application of these workers; write 'parameters' for tool {name!r}"
        raise StepError(message, code="tool_schema")
    return schemas.schema_of(task.run, tool, name)
