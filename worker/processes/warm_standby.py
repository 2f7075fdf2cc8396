"""Keeps one process ready for a sink task, with the Spark session already started."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcworker.connectors.api.sink import Prepares
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.core.events import Event, StandbyChanged, TaskExited, TaskReport
from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.model import AssignedTask, View
from cdcworker.worker.linux.procfs import read_stat
from cdcworker.worker.processes.child import TaskChild
from cdcworker.worker.processes.launcher import Post
from cdcworker.worker.processes.task_processes import TaskProcesses
from cdcworker.worker.protocol.heartbeat import HangDetector
from cdcworker.worker.protocol.task_limits import limits_of
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.task.warm_standby import CLASS, STANDBY

log = logging.getLogger(__name__)

SETTLE_S: Final = 20.0
"""Seconds after the start of any task during which no standby starts: the task needs the processor more."""
BUSY_S_MAX: Final = 60.0
"""Further seconds for which a standby is not started on a machine that has more work than cores."""
PINGS_S_MAX: Final = 5.0
"""Seconds after its last ping after which a standby gets no task: its session may no longer answer."""
RETRY_S: Final = 30.0
RETRY_S_MAX: Final = 900.0
STABLE_S: Final = 300.0
"""Seconds after which a standby counts as stable: its next failure counts as the first one."""


def session_config(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of a sink's config that decides whether a standby can run it; empty when no standby can, or when
    this worker does not know the connector."""
    try:
        plugin = lookup(config.get(CLASS, ""))
        connector = plugin.load()
    except Exception:  # noqa: BLE001 - whatever an import raises; its tasks report it
        return {}
    if plugin.kind != "sink" or not issubclass(connector, Prepares) or not plugin.runs_here():
        return {}
    found = connector.prepared_config(config)
    return {} if found is None else {CLASS: plugin.name, **found}


def machine_is_busy() -> bool:
    """Returns whether the machine has more runnable processes than processors."""
    try:
        return os.getloadavg()[0] > len(os.sched_getaffinity(0))
    except OSError:
        return False


def standby_spec(view: View, template: TaskSpec) -> TaskSpec | None:
    """Returns the spec of the standby to keep ready: for the first running sink of the cluster that can use one, on
    whichever worker its tasks run; None when no sink can. `template` holds the fields that all tasks of this worker
    share."""
    if not view.ready or view.draining:
        return None
    sinks = sorted(each.name for each in view.state.connectors.values() if each.kind == "sink")
    for name in sinks:
        connector = as_run(view.state, view.state.connectors[name])
        if connector.target_state == "RUNNING" and (session := session_config(connector.config)):
            return _spec(session, template)
    return None


def _spec(session: dict[str, str], template: TaskSpec) -> TaskSpec:
    return replace(
        template,
        kind="sink",
        connector=STANDBY,
        incarnation=STANDBY,
        # The schema log is a topic that is there, and that every sink reads.
        config={**session, "topics": template.topics.schemas},
        providers={},
        standby=True,
    )


class StandbyProcesses(TaskProcesses):
    """Keeps one standby process ready while `keep_ready` asks for it. Whatever happens to that process, tasks start as
    if there were none."""

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
        self._standby_spec: TaskSpec | None = None
        self._idle: AssignedTask | None = None
        self._pinged: float | None = None
        """The time of the standby's last report that it is ready; None before the first one."""
        self._started_count = self._failures = 0
        self._since = 0.0
        self._not_before = float("-inf")
        self._reported_ready = False
        """True if the cluster was told that a standby is ready."""
        self._post_event: Post = lambda _: None

    # --- called from any thread -------------------------------------------------------------------------------------

    def open(self, post: Post) -> None:
        self._post_event = post
        super().open(lambda event: None if self._is_standby(event) else post(event))

    def keep_ready(self, spec: TaskSpec | None) -> None:
        """Sets the spec that the standby has to fit, None for no standby. Cheap enough to be called again and again."""
        self._do(lambda: self._maintain(spec))

    def close(self, timeout_s: float) -> None:
        self.keep_ready(None)
        super().close(timeout_s)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _maintain(self, spec: TaskSpec | None) -> None:
        if spec is None or (
            self._standby_spec is not None and session_config(spec.config) != session_config(self._standby_spec.config)
        ):
            self._dismiss()
        if self._standby_spec is None and spec is not None:
            # A worker that has just come, or its first sink: there is more urgent work.
            self._delay_start(self._settle_s)
        self._standby_spec = spec
        self._report_readiness()
        if spec is None or self._closing or self._idle is not None or not self._may_start():
            return
        self._started_count, self._since = self._started_count + 1, self._clock()
        self._idle, self._pinged = AssignedTask(spec.connector, STANDBY, self._started_count, 0), None
        log.info("standby starting number=%d", self._started_count)
        super()._start(self._idle, replace(spec, task=self._started_count))

    def _report_readiness(self) -> None:
        ready = self._idle is not None and self._pinged is not None and self._clock() - self._pinged <= PINGS_S_MAX
        if ready != self._reported_ready:
            self._reported_ready = ready
            self._post_event(StandbyChanged(ready))

    def _delay_start(self, seconds: float) -> None:
        self._not_before = max(self._not_before, self._clock() + seconds)

    def _may_start(self) -> bool:
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
        self._delay_start(self._settle_s)
        child = self._matching_standby(spec) if spec.kind == "sink" and not spec.paused else None
        if child is None or task in self._children or self._closing:
            super()._start(task, spec)
        else:
            self._hand_over(child, task, spec)

    def _matching_standby(self, spec: TaskSpec) -> TaskChild | None:
        """Returns the standby if this task can use it, else None."""
        if self._idle is None or self._standby_spec is None:
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
        return child if alive and session_config(spec.config) == session_config(self._standby_spec.config) else None

    def _hand_over(self, child: TaskChild, task: AssignedTask, spec: TaskSpec) -> None:
        self._idle = None
        self._report_readiness()
        limits = limits_of(spec, self._memory_mb)
        number = child.task.task
        del self._children[child.task]
        child.task, child.limits, child.hang_detector, child.peak_bytes = (
            task,
            limits,
            HangDetector(limits.hang_s, limits.start_s),
            0,
        )
        self._children[task] = child
        log.info("task started task=%s pid=%d epoch=%d standby=%d", task.id, child.pid, task.task_epoch, number)
        self._send_spec(task, spec, limits)

    def _is_standby(self, event: Event) -> bool:
        if not isinstance(event, TaskReport | TaskExited) or event.task.incarnation != STANDBY:
            return False
        if event.task != self._idle:
            return True
        if isinstance(event, TaskExited):
            delay = min(RETRY_S_MAX, RETRY_S * 2.0**self._failures)
            self._failures += 1
            self._idle = None
            self._delay_start(delay)
            log.warning("standby ended code=%s retry_s=%.0f", event.code, delay)
        elif STANDBY in event.metrics:
            if self._pinged is None:
                log.info("standby ready number=%d", event.task.task)
            elif self._clock() - self._since > STABLE_S:
                self._failures = 0
            self._pinged = self._clock()
        return True
