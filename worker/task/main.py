"""The entry point of a task process: it reads JSON lines from the worker on stdin and writes to the worker on a
descriptor of its own."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
from typing import BinaryIO, Final

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.schemas.untrusted.json_text import parse_message
from cdcworker.worker.linux.process_group import die_with_parent, lead_session, limit_data_segment
from cdcworker.worker.logs import levels
from cdcworker.worker.logs.setup import set_up
from cdcworker.worker.protocol.control import TaskControl, TaskReporter, end_process_group
from cdcworker.worker.protocol.heartbeat import HEARTBEAT, start_heartbeats
from cdcworker.worker.protocol.task_limits import MB, TASK_MEMORY
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.source.error_policy import unexpected

log = logging.getLogger(__name__)

NO_SPEC: Final = declare(
    "task.no_spec",
    "internal",
    "A task's process was started without a task",
    "Tasks are started by their worker; to run a connector use the REST API.",
)

LEASE_SHARE: Final = 0.6
"""Share of the session timeout for which a task writes without a new lease: it stops well before its worker counts as
lost."""
YOUNG_MAX: Final = 50_000
"""New containers after which Python's garbage collector runs in a source task: records are tuples by the thousand, in
no cycle."""
EXIT_FAILED: Final = 1
EXIT_FENCED: Final = 3


def main() -> int:
    """Runs the task that the first line on stdin describes and returns the exit code of the process."""
    out = _private_stdout()
    lead_session()
    die_with_parent(os.getppid())
    # A worker that gives the task up wants to know first where it stands.
    faulthandler.register(signal.SIGQUIT, file=2, all_threads=True)
    set_up(os.environ.get("CDC_LOG_LEVEL", "INFO"), "text")
    # A broken pipe means that the worker is gone; so does the end of stdin.
    reporter = TaskReporter(out, end_process_group)
    stdin = sys.stdin.buffer
    try:
        spec = _read_spec(stdin.readline())
    except CdcError as error:
        reporter.status("FAILED", error)
        return EXIT_FAILED
    start_heartbeats(HEARTBEAT, reporter.heartbeat)
    if spec.kind == "sink":
        from cdcworker.worker.task.foreign_output import cleaned_output

        with cleaned_output():
            return _perform(spec, stdin, reporter)
    return _perform(spec, stdin, reporter)


def _perform(spec: TaskSpec, stdin: BinaryIO, reporter: TaskReporter) -> int:
    """Runs the task, or waits as a standby for one and runs that. Returns the exit code."""
    if spec.standby:
        from cdcworker.worker.task.warm_standby import stand_by

        try:
            task = stand_by(spec, stdin, reporter)
        except CdcError as error:
            log.error("standby failed error=%s", error)
            return EXIT_FAILED
        if task is None:
            return 0
        spec = task
    if spec.kind == "source":
        gc.set_threshold(YOUNG_MAX)
        if spec.memory_limit_mb:
            limit_data_segment(spec.memory_limit_mb * MB)
    control = TaskControl(LEASE_SHARE * spec.session_timeout_s, paused=spec.paused)
    SupervisedThread(_read_commands, stdin, control, reporter, name="commands", ends_process=True).start()
    try:
        return _run(spec, control, reporter)
    except CdcError as error:
        if error.kind == "fenced":
            log.warning("task fenced error=%s", error)
            return EXIT_FENCED
        log.error("task failed error=%s", error)
        reporter.status("FAILED", error)
    except MemoryError:
        log.exception("task is out of memory")
        reporter.status("FAILED", CdcError(TASK_MEMORY, f"a part did not fit into {spec.memory_limit_mb} MB"))
    except Exception as exc:
        log.exception("task failed")
        reporter.status("FAILED", unexpected(exc))
    return EXIT_FAILED


def _run(spec: TaskSpec, control: TaskControl, reporter: TaskReporter) -> int:
    from cdcworker.worker.config.config_providers import resolve

    config = resolve(spec.config, spec.providers)
    if spec.kind == "sink":
        from cdcworker.worker.task.sink_runner import run_sink

        return run_sink(spec, config, control, reporter)
    from cdcworker.worker.source.start import run_source

    return run_source(spec, config, control, reporter)


def _read_spec(line: bytes) -> TaskSpec:
    try:
        message = parse_message(line)
        if message["type"] == "spec":
            return TaskSpec.from_json(message)
    except (ValueError, KeyError, TypeError) as exc:
        raise CdcError(NO_SPEC, f"the first line is not a task: {type(exc).__name__}") from None
    raise CdcError(NO_SPEC, "the first line is not a task")


def _read_commands(stdin: BinaryIO, control: TaskControl, reporter: TaskReporter | None = None) -> None:
    for line in iter(stdin.readline, b""):
        try:
            message = parse_message(line)
            if message.get("type") == "levels":
                levels.apply(message["levels"])
            elif message.get("type") == "topics":
                if reporter is not None:
                    reporter.repeat_topics()
            else:
                control.apply(message)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            log.error("command not understood error=%s", type(exc).__name__)
    end_process_group()


def _private_stdout() -> int:
    """Moves the pipe to the worker to a descriptor of its own; what libraries print then goes to the log."""
    out = os.dup(1)
    os.set_inheritable(out, False)
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    code = main()
    # Threads of client libraries have nothing left to say; waiting for them would delay the next owner.
    logging.shutdown()
    os._exit(code)
