"""A process that waits for a sink task with everything brought up: its launcher's side, and its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, Final, Protocol

from cdcworker.connectors.registry import lookup
from cdcworker.coordinator.events import Event, StandbyChanged, TaskExited, TaskReport
from cdcworker.coordinator.model import AssignedTask, View
from cdcworker.worker.child import Child
from cdcworker.worker.control import Reporter
from cdcworker.worker.herder import HerderConfig
from cdcworker.worker.launcher import Post
from cdcworker.worker.limits import HEAP, limits_of
from cdcworker.worker.process import MARK, OOM_SCORE, rename
from cdcworker.worker.procstat import pids, read_stat
from cdcworker.worker.progress import OWN, RUNNING, STARTING, Pulse
from cdcworker.worker.tasks import TaskProcesses
from cdcworker.worker.taskspec import TaskSpec, Topics

log = logging.getLogger(__name__)

STANDBY: Final = "standby"
"""Incarnation of what stands in for a task until there is one; a connector's is never that short."""
CLASS: Final = "connector.class"
SHAPE: Final = (HEAP, "spark.cores", "warehouse")
"""What a session cannot change any more once it is there."""
LAUNCHER: Final = "spark.launcher"
LOCAL: Final = "local"
SETTLE_S: Final = 20.0
"""After the start of any task: it needs the processor more than the next standby does."""
BUSY_S_MAX: Final = 60.0
"""For so much longer a standby leaves the processor to a machine that has more work than cores."""
PINGS_S_MAX: Final = 5.0
"""Without a ping for so long a standby gets no task: what it has ready may not answer any more."""
RETRY_S: Final = 30.0
RETRY_S_MAX: Final = 900.0
STABLE_S: Final = 300.0
"""A standby that has lived so long has not failed: the next end counts as a first one."""
PING_S: Final = 1.0
OOM_SCORE_MAX: Final = 1000


def shape_of(config: Mapping[str, str]) -> dict[str, str]:
    """What of a sink's config decides whether a standby fits; empty: there is none for it, or its connector is not
    known here."""
    try:
        plugin = lookup(config.get(CLASS, ""))
        connector = plugin.load()
    except Exception:  # noqa: BLE001 - whatever an import raises; its tasks report it
        return {}
    if config.get(LAUNCHER, LOCAL).strip() != LOCAL:
        # It would hold cores of a cluster that does nothing with them.
        return {}
    if plugin.kind != "sink" or not hasattr(connector, "prepare") or not plugin.runs_here():
        return {}
    return {CLASS: plugin.name, **{key: config[key] for key in SHAPE if key in config}}


def machine_is_busy() -> bool:
    try:
        return os.getloadavg()[0] > len(os.sched_getaffinity(0))
    except OSError:
        return False


def wanted(view: View, config: HerderConfig) -> TaskSpec | None:
    """What a worker keeps in readiness: something for the first sink of the cluster that can use it, wherever its tasks
    are now."""
    if not view.ready or view.draining:
        return None
    sinks = sorted(found.name for found in view.state.connectors.values() if found.kind == "sink")
    for name in sinks:
        found = view.state.connectors[name]
        if found.target_state == "RUNNING" and (shape := shape_of(found.config)):
            return _spec(shape, view.boot_id, config)
    return None


def _spec(shape: dict[str, str], boot_id: str, config: HerderConfig) -> TaskSpec:
    names = config.topics
    return TaskSpec(
        kind="sink",
        connector=STANDBY,
        task=0,
        incarnation=STANDBY,
        task_epoch=0,
        attempt=0,
        worker_id=config.worker_id,
        boot_id=boot_id,
        paused=False,
        # The schema log is a topic that is there, and that every sink reads.
        config={**shape, "topics": names.schemas},
        kafka=dict(config.kafka),
        group_id=config.group_id,
        topics=Topics(names.configs, names.offsets, names.status, names.schemas),
        offsets_partitions=0,
        session_timeout_s=config.session_timeout_s,
        state_dir=config.state_dir,
        standby=True,
    )


class StandbyProcesses(TaskProcesses):
    """Keeps one process in readiness for a sink task while `want` asks for it. Whatever becomes of that process, tasks
    are started as if there were none."""

    def __init__(
        self,
        *,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], bool] = machine_is_busy,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._settle_s = settle_s
        self._clock = clock
        self._busy = busy
        self._wanted: TaskSpec | None = None
        self._idle: AssignedTask | None = None
        self._pinged: float | None = None
        """When the standby last said that it is ready."""
        self._made = self._failures = 0
        self._since = 0.0
        self._not_before = float("-inf")
        self._told = False
        """Whether the herd believes that one is ready."""
        self._tell: Post = lambda _: None

    # --- called from any thread -------------------------------------------------------------------------------------

    def open(self, post: Post) -> None:
        self._tell = post
        super().open(lambda event: None if self._is_standby(event) else post(event))

    def want(self, spec: TaskSpec | None) -> None:
        """What a standby is to be fit for; None: for nothing. Cheap, to be called again and again."""
        self._do(lambda: self._keep(spec))

    def close(self, timeout_s: float) -> None:
        self.want(None)
        super().close(timeout_s)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _keep(self, spec: TaskSpec | None) -> None:
        if spec is None or (self._wanted is not None and shape_of(spec.config) != shape_of(self._wanted.config)):
            self._dismiss()
        if self._wanted is None and spec is not None:
            # A worker that has just come, or its first sink: there is more urgent work.
            self._rest(self._settle_s)
        self._wanted = spec
        self._tell_if_ready()
        if spec is None or self._closing or self._idle is not None or not self._calm():
            return
        self._made, self._since = self._made + 1, self._clock()
        self._idle, self._pinged = AssignedTask(spec.connector, STANDBY, self._made, 0), None
        log.info("standby starts number=%d", self._made)
        super()._start(self._idle, replace(spec, task=self._made))

    def _tell_if_ready(self) -> None:
        ready = self._idle is not None and self._pinged is not None and self._clock() - self._pinged <= PINGS_S_MAX
        if ready != self._told:
            self._told = ready
            self._tell(StandbyChanged(ready))

    def _rest(self, seconds: float) -> None:
        self._not_before = max(self._not_before, self._clock() + seconds)

    def _calm(self) -> bool:
        late = self._clock() - self._not_before
        return late >= 0 and (late > BUSY_S_MAX or not self._busy())

    def _dismiss(self) -> None:
        if self._idle is None:
            return
        if self._pinged is None:
            # It listens only when it is ready.
            self._kill(self._idle)
        else:
            self._stop(self._idle)
        self._idle = None

    def _start(self, task: AssignedTask, spec: TaskSpec) -> None:
        self._rest(self._settle_s)
        child = self._fit(spec) if spec.kind == "sink" and not spec.paused else None
        if child is None or task in self._children or self._closing:
            super()._start(task, spec)
        else:
            self._hand_over(child, task, spec)

    def _fit(self, spec: TaskSpec) -> Child | None:
        """The standby, if this task can have it."""
        if self._idle is None or self._wanted is None:
            return None
        if self._pinged is None:
            # Its start would only take the processor from the task's.
            self._dismiss()
            return None
        child = self._children.get(self._idle)
        if child is None or child.error is not None or self._clock() - self._pinged > PINGS_S_MAX:
            return None
        stat = read_stat(child.pid)
        alive = stat is not None and stat.state not in "ZXTt"
        return child if alive and shape_of(spec.config) == shape_of(self._wanted.config) else None

    def _hand_over(self, child: Child, task: AssignedTask, spec: TaskSpec) -> None:
        self._idle = None
        self._tell_if_ready()
        limits = limits_of(spec, self._memory_mb)
        number = child.task.task
        del self._children[child.task]
        child.task, child.limits, child.pulse, child.peak_bytes = task, limits, Pulse(limits.hang_s, limits.start_s), 0
        self._children[task] = child
        log.info("task started task=%s pid=%d epoch=%d standby=%d", task.id, child.pid, task.task_epoch, number)
        self._brief(task, spec, limits)

    def _is_standby(self, event: Event) -> bool:
        if not isinstance(event, TaskReport | TaskExited) or event.task.incarnation != STANDBY:
            return False
        if event.task != self._idle:
            return True
        if isinstance(event, TaskExited):
            delay = min(RETRY_S_MAX, RETRY_S * 2.0**self._failures)
            self._failures += 1
            self._idle = None
            self._rest(delay)
            log.warning("standby ended code=%s retry_s=%.0f", event.code, delay)
        elif STANDBY in event.metrics:
            if self._pinged is None:
                log.info("standby ready number=%d", event.task.task)
            elif self._clock() - self._since > STABLE_S:
                self._failures = 0
            self._pinged = self._clock()
        return True


class Prepared(Protocol):
    """What a sink's `prepare(spec)` has brought up in this process, for the `run` that may follow. The config that it
    gets holds only what decides whether a task fits."""

    def answers(self) -> bool:
        """Whether it is still of use; waits as long as that takes."""

    def close(self) -> None:
        """There will be no `run`."""


def stand_by(spec: TaskSpec, stdin: BinaryIO, reporter: Reporter) -> TaskSpec | None:
    """The process's own side: be ready, then wait for the task. None: there will be none."""
    from cdcworker.worker.sink_runner import find_machine, spec_of

    # When memory runs out it goes before any task.
    score = _set_oom_score(OOM_SCORE_MAX)
    connector = lookup(spec.config[CLASS]).load()(spec.config)
    sink_spec = spec_of(spec, spec.config, find_machine(connector.jars))
    os.environ["JAVA_HOME"] = sink_spec.java_home
    ready: Prepared = connector.prepare(sink_spec)
    OWN.enter(RUNNING)
    over = threading.Event()
    threading.Thread(target=_ping, args=(ready, reporter, over), name="standby", daemon=True).start()
    try:
        for line in iter(stdin.readline, b""):
            message = json.loads(line)
            if message.get("type") == "spec":
                _set_oom_score(score)
                return _become(TaskSpec.from_json(message))
            if message.get("type") == "stop":
                break
    finally:
        over.set()
    ready.close()
    return None


def _ping(ready: Prepared, reporter: Reporter, over: threading.Event) -> None:
    """A standby that does not answer any more makes no step, and is replaced as any task that hangs."""
    while not over.is_set():
        if not ready.answers():
            if over.is_set():
                return
            log.error("standby lost what it had ready")
            os._exit(1)
        OWN.beat("a task to come")
        reporter.metrics({STANDBY: 1})
        over.wait(PING_S)


def _set_oom_score(score: int) -> int:
    """For every process of ours; returns what this one had."""
    before = OOM_SCORE
    for pid in pids():
        stat = read_stat(pid)
        if stat is not None and stat.session == os.getpid():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/oom_score_adj", "r+") as file:
                found = int(file.read())
                before = found if pid == os.getpid() else before
                file.seek(0)
                file.write(str(score))
    return before


def _become(spec: TaskSpec) -> TaskSpec:
    rename(
        [sys.executable, "-m", "cdcworker.worker.task_main", f"{spec.connector}-{spec.task}"], os.environ.get(MARK, "")
    )
    OWN.enter(STARTING)
    return spec
