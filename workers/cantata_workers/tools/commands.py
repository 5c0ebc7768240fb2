"""Steps that run allowed commands, with named environment variables and without secrets in the output."""

from __future__ import annotations

import locale
import os
import select
import selectors
import subprocess
import time
from typing import IO, Any, cast

import structlog

from cantata.errors import StepError
from cantata.flows.definitions import Command
from cantata.flows.graph import Outcome
from cantata.operation.logs.secrets import redact, secrets_in
from cantata.values import Usage
from cantata_workers.process.config_folder import environment
from cantata_workers.process.process import kill_descendants
from cantata_workers.process.step_context import StepContext, handles

log = structlog.get_logger(__name__)

LOGGED_CHARS = 2000  # of what a command wrote to its standard error
READ_BYTES = 65_536  # of an output at once: what a pipe of Linux holds
QUOTED_CHARS = 500  # of that in an error


@handles("proc.run")
def proc_run(context: StepContext) -> Outcome:
    """Run an allowed command; an exit code other than 0 is an error."""
    name = context.text_param("command")
    command = context.definitions.commands[name]
    arguments, stdin = _arguments(context, command)
    done = _run(command, arguments, stdin, context.folder, limit_bytes=context.definitions.limits.output_bytes)
    secrets = secrets_in(os.environ)
    stdout, stderr = (
        redact(done.stdout, secrets),
        redact(done.stderr, secrets),
    )  # before anything is cut: half a secret is not recognized
    if stderr.strip():
        log.info("command_output", command=name, stderr=stderr.strip()[-LOGGED_CHARS:])
    if done.returncode != 0:
        quoted = (stderr or stdout).strip()[-QUOTED_CHARS:]
        raise StepError(f"command exited with {done.returncode}: {quoted}", code="proc_error", retryable=True)
    return Outcome(output={"exit_code": done.returncode, "stdout": stdout, "stderr": stderr}, usage=Usage(tool_calls=1))


def _arguments(context: StepContext, command: Command) -> tuple[list[str], str]:
    """Return the arguments and the standard input from the node's input."""
    given = context.node_input
    unknown = sorted(set(given) - {"args", "stdin"})
    if unknown:
        raise StepError(
            f"a proc node takes 'args' (a list of texts) and 'stdin' (text), not {unknown[0]!r}", code="bad_arguments"
        )
    args = given.get("args") or []
    if not isinstance(args, list) or not all(isinstance(arg, str | int | float) for arg in args):
        raise StepError(f"'args' must be a list of texts, not {args!r}", code="bad_arguments")
    if args and command.args == "none":
        message = f"the command takes no 'args' (args: none in the configuration), and the node gives {len(args)}"
        raise StepError(message, code="bad_arguments")
    return [*(["--"] if command.args == "operands" else []), *map(str, args)], str(given.get("stdin") or "")


def _run(
    command: Command, arguments: list[str], stdin: str, folder: str | None, *, limit_bytes: int
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; kill it, with those that it started, past its time limit or once it has written too much."""
    started_with = [*command.command, *arguments]
    encoding = locale.getencoding()
    try:
        process = subprocess.Popen(
            started_with,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment(command.env),
            bufsize=0,
        )
    except FileNotFoundError as error:
        raise StepError(f"command {command.command[0]!r} is not installed on this worker", code="proc_error") from error
    with process:
        try:
            written = _communicate(
                process, stdin.encode(encoding, "replace"), timeout_s=command.timeout_s, limit_bytes=limit_bytes
            )
        except BaseException:  # also of a signal: nobody would read what it goes on to write
            kill_descendants(process.pid)
            process.kill()
            raise
    out, err = (data.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n") for data in written)
    return subprocess.CompletedProcess(started_with, process.returncode, out, err)


def _communicate(
    process: subprocess.Popen[bytes], stdin: bytes, *, timeout_s: float, limit_bytes: int
) -> tuple[bytes, bytes]:
    """Return what a process writes to both of its outputs until it has ended. Raises StepError past one of the limits.

    `Popen.communicate` has no limit of the size, and what a command writes may be endless.
    """
    assert process.stdin
    assert process.stdout
    assert process.stderr
    deadline, unsent, size = time.monotonic() + timeout_s, memoryview(stdin), 0
    found: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in found:
            selector.register(stream, selectors.EVENT_READ)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            for key, _ in selector.select(left_s) if left_s > 0 else ():
                if key.fileobj is process.stdin:
                    try:
                        unsent = unsent[os.write(key.fd, unsent[: select.PIPE_BUF]) :] if unsent else unsent
                    except BrokenPipeError:  # it reads no more
                        unsent = unsent[:0]
                    is_over = not unsent
                else:
                    piece = os.read(key.fd, READ_BYTES)
                    found[key.fileobj] += piece
                    size, is_over = size + len(piece), not piece
                if is_over:
                    selector.unregister(key.fileobj)
                    cast("IO[bytes]", key.fileobj).close()
            if size > limit_bytes:
                message = f"command wrote more than {limit_bytes / 1e6:.1f} MB and was stopped (limits.output_bytes)"
                raise StepError(message, code="output_too_large")
            if time.monotonic() >= deadline and selector.get_map():
                raise _too_late(timeout_s)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise _too_late(timeout_s) from error
    out, err = map(bytes, found.values())
    return out, err


def _too_late(timeout_s: float) -> StepError:
    return StepError(f"command took longer than its {timeout_s:g} s and was stopped", code="timeout", retryable=True)
