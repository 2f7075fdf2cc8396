"""The standby process: it starts the session of a sink in advance, reports that it is ready, and becomes the task that
it is given."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import BinaryIO, Final

from cdcworker.connectors.api.sink import NeedsJvm, PreparedSession, Prepares
from cdcworker.connectors.registry.names import lookup
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.linux.process_group import MARK, OOM_SCORE, rename
from cdcworker.worker.linux.procfs import pids, read_stat
from cdcworker.worker.protocol.control import TaskReporter
from cdcworker.worker.protocol.heartbeat import HEARTBEAT, RUNNING, STARTING
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.task.sink_runner import find_machine, spec_of

log = logging.getLogger(__name__)

STANDBY: Final = "standby"
"""The incarnation of a standby until it becomes a task; a connector's is never that short."""
CLASS: Final = "connector.class"
PING_S: Final = 1.0
OOM_SCORE_MAX: Final = 1000


def stand_by(spec: TaskSpec, stdin: BinaryIO, reporter: TaskReporter) -> TaskSpec | None:
    """Prepares the session, waits for a task and returns its spec, or None when the standby is stopped."""
    # When memory runs out the kernel ends a standby before any task.
    score = _set_oom_score(OOM_SCORE_MAX)
    connector = lookup(spec.config[CLASS]).load()(spec.config)
    assert isinstance(connector, Prepares)
    jars = connector.jars if isinstance(connector, NeedsJvm) else ""
    sink_spec = spec_of(spec, spec.config, find_machine(jars))
    os.environ["JAVA_HOME"] = sink_spec.java_home
    ready = connector.prepare(sink_spec)
    HEARTBEAT.enter(RUNNING)
    over = threading.Event()
    SupervisedThread(_ping, ready, reporter, over, name="standby", ends_process=True).start()
    try:
        for line in iter(stdin.readline, b""):
            try:
                message = parse_message(line)
            except JsonRefused as exc:
                log.error("command not understood error=%s", exc)
                continue
            if message.get("type") == "spec":
                _set_oom_score(score)
                return _become(TaskSpec.from_json(message))
            if message.get("type") == "stop":
                break
    finally:
        over.set()
    ready.close()
    return None


def _ping(ready: PreparedSession, reporter: TaskReporter, over: threading.Event) -> None:
    """Reports every second that the session answers. A session that hangs makes no progress, so the standby is replaced
    like a task that hangs."""
    while not over.is_set():
        if not ready.answers():
            if over.is_set():
                return
            log.error("standby session no longer answers")
            os._exit(1)
        HEARTBEAT.beat("a task to come")
        reporter.metrics({STANDBY: 1})
        over.wait(PING_S)


def _set_oom_score(score: int) -> int:
    """Sets the OOM score of all processes of this process session; returns the score that this process had."""
    before = OOM_SCORE
    for pid in pids():
        stat = read_stat(pid)
        if stat is not None and stat.session == os.getpid():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/oom_score_adj", "r+") as file:
                present = int(file.read())
                before = present if pid == os.getpid() else before
                file.seek(0)
                file.write(str(score))
    return before


def _become(spec: TaskSpec) -> TaskSpec:
    """Gives the process the name of its task, whose start begins here for whoever watches it."""
    rename(
        [sys.executable, "-m", "cdcworker.worker.task.main", f"{spec.connector}-{spec.task}"], os.environ.get(MARK, "")
    )
    HEARTBEAT.enter(STARTING)
    return spec
