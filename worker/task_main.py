"""The entry of a task's process: JSON lines from the worker on stdin, to the worker on a private descriptor."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
from typing import BinaryIO, Final

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker import levels, logs
from cdcworker.worker.control import Control, Reporter, end_process_group
from cdcworker.worker.limits import MB, TASK_MEMORY
from cdcworker.worker.policy import unexpected
from cdcworker.worker.process import bound_data, die_with, lead
from cdcworker.worker.progress import OWN, tell
from cdcworker.worker.taskspec import TaskSpec

log = logging.getLogger(__name__)

NO_SPEC: Final = declare(
    "task.no_spec",
    "internal",
    "A task's process was started without a task",
    "Tasks are started by their worker; to run a connector use the REST API.",
)

LEASE_SHARE: Final = 0.6
"""Of the session: a task stops producing well before its worker counts as lost."""
YOUNG_MAX: Final = 50_000
"""New containers before the collector of a source looks for cycles. Records are tuples by the thousand and in no cycle."""
EXIT_FAILED: Final = 1
EXIT_FENCED: Final = 3


def main() -> int:
    out = _private_stdout()
    lead()
    die_with(os.getppid())
    # A worker that gives the task up wants to know first where it stands.
    faulthandler.register(signal.SIGQUIT, file=2, all_threads=True)
    logs.set_up(os.environ.get("CDC_LOG_LEVEL", "INFO"), "text")
    # A broken pipe means that the worker is gone; so does the end of stdin.
    reporter = Reporter(out, end_process_group)
    stdin = sys.stdin.buffer
    try:
        spec = _read_spec(stdin.readline())
    except CdcError as error:
        reporter.status("FAILED", error)
        return EXIT_FAILED
    tell(OWN, reporter.beat)
    if spec.standby:
        from cdcworker.worker.standby import stand_by

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
            bound_data(spec.memory_limit_mb * MB)
    control = Control(LEASE_SHARE * spec.session_timeout_s, paused=spec.paused)
    threading.Thread(target=_read_commands, args=(stdin, control), name="commands", daemon=True).start()
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


def _run(spec: TaskSpec, control: Control, reporter: Reporter) -> int:
    from cdcworker.worker.references import resolve

    config = resolve(spec.config, spec.providers)
    if spec.kind == "sink":
        from cdcworker.worker.sink_runner import run_sink

        return run_sink(spec, config, control, reporter)
    from cdcworker.worker.source_start import run_source

    return run_source(spec, config, control, reporter)


def _read_spec(line: bytes) -> TaskSpec:
    try:
        message = json.loads(line)
        if message["type"] == "spec":
            return TaskSpec.from_json(message)
    except (ValueError, KeyError, TypeError) as exc:
        raise CdcError(NO_SPEC, f"the first line is not a task: {type(exc).__name__}") from None
    raise CdcError(NO_SPEC, "the first line is not a task")


def _read_commands(stdin: BinaryIO, control: Control) -> None:
    for line in iter(stdin.readline, b""):
        try:
            message = json.loads(line)
            if message.get("type") == "levels":
                levels.apply(message["levels"])
            else:
                control.apply(message)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            log.error("command not understood error=%s", type(exc).__name__)
    end_process_group()


def _private_stdout() -> int:
    """The pipe to the worker under a descriptor of its own; what libraries print goes to the log."""
    out = os.dup(1)
    os.set_inheritable(out, False)
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    code = main()
    # Threads of client libraries have nothing left to say; waiting for them would delay the next owner.
    logging.shutdown()
    os._exit(code)
