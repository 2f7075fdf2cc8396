"""The herder: one thread that feeds events to the pure core of the cluster and carries out its commands. It runs no
connector code."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.status_fold import topics_reset
from cdcworker.coordinator.model import AssignedTask, JsonObject, Presence, Reply, Request, View
from cdcworker.coordinator.versions import may_alternate_producers
from cdcworker.schemas.errors import INTERNAL, CdcError, declare
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.worker.herder.cluster_io import ClusterIo
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.liveness_probe import LivenessProber
from cdcworker.worker.herder.planner import Plan, TaskPlanner
from cdcworker.worker.processes.launcher import Launcher
from cdcworker.worker.protocol.messages import lease_message
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec

log = logging.getLogger(__name__)

STOPPED = declare(
    "worker.stopped", "transient", "This worker is stopping or has stopped", "Send the request to another worker."
)

TICK_S = 0.1
IDLE_WAIT_S = 0.05
"""Seconds that an idle herder waits for its inbox: Kafka's clients cannot wake this thread, so it polls them this
often."""
BUSY_WAIT_S = 0.003
BUSY_FOR_S = 0.5
"""Seconds after the last event in which it polls more often: decisions come back through the log within milliseconds.
"""
VIEW_EVERY_S = 0.1
INBOX_MAX = 1_000
DRAIN_S_MAX = 15.0
STOP_TASKS_S = 4.0

Job = Callable[[], None]


class Herder(SupervisedThread):
    """Runs one worker's part in the cluster: `start()`, `wait_started()`, then `view()` and `submit()` from any thread,
    at last `drain()` or `stop()`."""

    def __init__(self, config: HerderConfig, plan: Plan, launcher: Launcher) -> None:
        super().__init__(name="herder")
        self.config = config
        self.boot_id = uuid.uuid4().hex
        self.failure: BaseException | None = None
        """The error that ended the herder; None while it runs and after a requested end."""
        self._settings = state_machine.HerdSettings(
            session_timeout_s=config.session_timeout_s,
            drain_timeout_s=DRAIN_S_MAX - 2,
            crash_delay_s=config.crash_delay_s,
            restart_delay_s=config.restart_delay_s,
        )
        self._inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._futures: dict[str, Future[Reply]] = {}
        self._answers: list[tuple[str, Reply]] = []
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._has_ended = False
        self._stopping = False
        self._has_left = False
        self._now = time.monotonic()
        self._busy_until = 0.0
        self._has_revocations = False
        """True if some worker has to give a task up: the next owner must not wait for this worker's idle interval."""
        self._lease_until = 0.0
        self._cluster = ClusterIo(config, self._post)
        self._launcher = launcher
        self._prober = LivenessProber(self._post_event, config.peer_tls)
        self._planner = TaskPlanner(plan, self._cluster.topics, self._post_event)
        self._state = state_machine.initial(self._presence(), self._settings)
        self._view: View = state_machine.view(self._state, self._clock())
        self._viewed_state: state_machine.HerdState = self._state
        self._viewed_at = 0.0
        self._ticked_at = 0.0

    # --- called from any thread -------------------------------------------------------------------------------------

    def wait_started(self, timeout_s: float | None = None) -> bool:
        """Waits until both logs are folded and the group is joined; raises the error that kept the herder from
        starting."""
        done = self._ready.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return done

    def view(self) -> View:
        """Returns the newest view of the cluster; never blocks."""
        return replace(self._view, last_tick_age_s=time.monotonic() - self._now)

    def submit(self, request: Request) -> Future[Reply]:
        """Submits a request to the cluster. The future is completed on the herder's thread, after the view shows the
        result."""
        future: Future[Reply] = Future()
        request_id = uuid.uuid4().hex
        with self._lock:
            ended = self._has_ended
            if not ended:
                self._futures[request_id] = future
        if ended:
            future.set_result(Reply("no_leader", detail="the worker has stopped"))
        else:
            self._post_event(events.RequestArrived(request_id, request))
        return future

    def measured(self, task: AssignedTask, metrics: JsonObject) -> None:
        """Takes numbers of a task of this worker that were measured from outside."""
        self._post_event(events.TaskMeasured(task, metrics))

    def forget_topics(self, connector: str) -> None:
        """Removes the topics recorded for the connector; topics that its tasks still use are reported again."""

        def forget() -> None:
            if records := topics_reset(self._state.status, connector):
                self._cluster.append_status(records)

        self._post(forget)

    def drain(self, timeout_s: float = DRAIN_S_MAX, *, returns: bool = False) -> bool:
        """Hands all tasks over, leaves the cluster and stops the herder; returns whether that was done in time.

        `returns`: a worker with the same id will start soon, and the tasks wait for it.
        """
        deadline = time.monotonic() + min(timeout_s, DRAIN_S_MAX)
        self._post_event(events.DrainRequested(returns))
        self.join(max(0.1, deadline - time.monotonic()))
        handed_over = not self.is_alive() and self._has_left
        self.stop()
        return handed_over

    def stop(self, timeout_s: float = 10.0) -> None:
        """Leaves the group at once and stops the tasks; other workers take the tasks when the lease has expired."""
        self._stopping = True
        self._post(lambda: None)
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout_s)

    def _post(self, job: Job) -> None:
        self._inbox.put(job)

    def _post_event(self, event: events.Event) -> None:
        self._post(lambda: self._feed(event))

    # --- the thread -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        try:
            self._open()
            while not (self._stopping or self._has_left):
                self._run_once()
        except BaseException as exc:
            self.failure = exc if isinstance(exc, CdcError) else _unexpected(exc)
            log.error("herder ended error=%s", exc, exc_info=not isinstance(exc, CdcError))
        finally:
            self._end()

    def _open(self) -> None:
        self._launcher.open(self._post_event)
        configs, status = self._cluster.open()
        identity, accepted = self._cluster.identity, self.config.accepted_identity
        settings = replace(self._settings, identity=identity, accepted_identity=accepted)
        self._state = replace(self._state, settings=settings)
        self._feed(events.ConfigRecords(tuple(configs), replay=True))
        self._feed(events.StatusRecords(tuple(status)))
        self._feed(events.Started())
        self._refresh_view(force=True)
        log.info("herder started worker=%s boot=%s cluster=%s", self.config.worker_id, self.boot_id, self._cluster_id)
        self._ready.set()

    def _end(self) -> None:
        """Leaves the group, stops the tasks and refuses open requests, whichever of these steps fails.

        The group comes first: others need not wait for this worker's tasks to end, since fencing makes that safe.
        """
        try:
            with contextlib.ExitStack() as steps:
                steps.callback(self._ready.set)
                steps.callback(self._refuse_futures)
                steps.callback(self._cluster.close)
                # How they end is told to nobody: without the core to judge it, it would look like a crash.
                steps.callback(self._launcher.close, STOP_TASKS_S)
                steps.callback(self._cluster.leave)
        except Exception:
            log.exception("herder did not end cleanly")

    def _run_once(self) -> None:
        """Takes the inbox, polls the cluster, lets time pass, publishes the view and then completes requests."""
        if self._launcher.failure is not None:
            raise self._launcher.failure
        busy = self._cluster.busy or self._futures or self._has_revocations or time.monotonic() < self._busy_until
        self._take_inbox(BUSY_WAIT_S if busy else IDLE_WAIT_S)
        for event in self._cluster.poll():
            self._feed(event)
        self._now = time.monotonic()
        if self._now - self._ticked_at >= TICK_S:
            self._ticked_at = self._now
            self._feed(events.Tick())
            self._planner.tick(self._view.state, leading=self._view.is_leader)
        self._refresh_view(force=bool(self._answers))
        self._complete_answers()

    def _take_inbox(self, wait_s: float) -> None:
        try:
            self._inbox.get(timeout=wait_s)()
            for _ in range(INBOX_MAX):
                self._inbox.get_nowait()()
        except queue.Empty:
            pass

    def _feed(self, event: events.Event) -> None:
        numbers_only = isinstance(event, events.TaskMeasured) or (
            isinstance(event, events.TaskReport) and event.state is None
        )
        if not (numbers_only or isinstance(event, events.Tick | events.StatusRecords | events.LeaseAcked)):
            self._busy_until = time.monotonic() + BUSY_FOR_S
        if isinstance(event, events.LeaseAcked):
            self._pass_lease_on(event)
        self._state, commands = state_machine.step(self._state, event, self._clock())
        if isinstance(event, events.ConfigRecords):
            self._has_revocations = any(assignment.revoke for assignment in self._state.cluster.assignments.values())
        for command in commands:
            if not isinstance(command, events.AppendStatus | events.RenewLease):
                self._busy_until = time.monotonic() + BUSY_FOR_S
            self._carry_out(command)

    def _clock(self) -> events.Now:
        return events.Now(time.monotonic(), time.time_ns() // 1_000_000)

    def _refresh_view(self, *, force: bool) -> None:
        due = force or self._now - self._viewed_at >= VIEW_EVERY_S
        if due and (self._state is not self._viewed_state or self._now - self._viewed_at >= 1.0):
            self._view = state_machine.view(self._state, self._clock(), self._cluster_id)
            self._viewed_state, self._viewed_at = self._state, self._now

    def _complete_answers(self) -> None:
        answers, self._answers = self._answers, []
        for request_id, reply in answers:
            future = self._futures.pop(request_id, None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(reply)

    def _refuse_futures(self) -> None:
        self._complete_answers()
        with self._lock:
            self._has_ended = True
            futures, self._futures = self._futures, {}
        for future in futures.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(CdcError(STOPPED, "the worker stopped before it could answer"))

    # --- commands ---------------------------------------------------------------------------------------------------

    def _carry_out(self, command: events.HerdCommand) -> None:
        match command:
            case events.Claim():
                self._cluster.claim()
            case events.WriteLog():
                self._cluster.write(command)
            case events.AppendStatus(records):
                self._cluster.append_status(records)
            case events.RenewLease(record):
                self._cluster.renew_lease(record)
            case events.AnswerRequest(request_id, reply):
                self._answers.append((request_id, reply))
            case events.PlanTasks(connector, version, connection):
                self._planner.request(connector, version, connection)
            case events.FenceIds(tasks):
                self._cluster.fence(tasks)
            case events.ProbeWorker():
                self._prober.probe(command)
            case events.RemoveLeader(leader):
                self._cluster.remove_leader(leader)
            case events.Leave(reason, error):
                log.info("worker leaves reason=%s", reason)
                self._has_left = True
                self.failure = _as_error(error) if error else None
            case _:
                self._command_task(command)

    def _command_task(self, command: events.HerdCommand) -> None:
        match command:
            case events.StartTask():
                self._start_task(command)
            case events.StopTask(task):
                self._launcher.stop(task)
            case events.KillTask(task):
                self._launcher.kill(task)
            case events.PauseTask(task):
                self._launcher.send(task, {"type": "pause"})
            case events.ResumeTask(task):
                self._launcher.send(task, {"type": "resume"})
            case events.RepeatTopics(task):
                self._launcher.send(task, {"type": "topics"})
            case events.TellTask(task, jobs):
                self._launcher.send(task, {"type": "jobs", "jobs": list(jobs)})
            case events.StopProducing():
                self._launcher.broadcast(lease_message(0.0))
            case _:
                raise CdcError(INTERNAL, f"the herder does not know the command {type(command).__name__}")

    def _start_task(self, command: events.StartTask) -> None:
        if self._stopping or self._has_left:
            return
        self._launcher.start(command.task, self._spec(command))
        self._launcher.send(command.task, self._lease_message())

    def _pass_lease_on(self, event: events.LeaseAcked) -> None:
        """Tells the tasks how long they may write: from when the lease was sent, not from when it was acknowledged."""
        self._lease_until = event.sent_mono + 0.6 * self.config.session_timeout_s
        self._launcher.broadcast(self._lease_message())

    def _lease_message(self) -> JsonObject:
        """Returns the message that tells a task for how long it may write."""
        left_s = self._lease_until - time.monotonic()
        return lease_message(left_s, may_alternate=may_alternate_producers(self._view.workers.values()))

    def task_template(self) -> TaskSpec:
        """Returns the fields of a task's spec that are the same for every task of this worker."""
        config, names = self.config, self.config.topics
        return TaskSpec(
            kind="source",
            connector="",
            task=0,
            incarnation="",
            task_epoch=0,
            attempt=0,
            worker_id=config.worker_id,
            boot_id=self.boot_id,
            paused=False,
            config={},
            kafka=dict(config.kafka),
            group_id=config.group_id,
            topics=ClusterTopics(names.configs, names.offsets, names.status, names.schemas),
            offsets_partitions=self._cluster.partitions.get(names.offsets, 0),
            session_timeout_s=config.session_timeout_s,
            state_dir=config.state_dir,
            providers=dict(config.providers),
        )

    def _spec(self, command: events.StartTask) -> TaskSpec:
        task = command.task
        return replace(
            self.task_template(),
            kind=command.kind,
            connector=task.connector,
            task=task.task,
            incarnation=task.incarnation,
            task_epoch=task.task_epoch,
            attempt=command.attempt,
            paused=command.paused,
            config=dict(command.config),
            topic_prefixes=command.topic_prefixes,
        )

    def _presence(self) -> Presence:
        config = self.config
        return Presence(
            worker_id=config.worker_id,
            boot_id=self.boot_id,
            url=config.url,
            version=config.version,
            plugins_hash=config.plugins_hash,
            capacity=config.capacity,
            labels=dict(config.labels),
            plugins=dict(config.plugins),
        )

    @property
    def _cluster_id(self) -> str:
        return self._cluster.cluster_id


def _as_error(error: JsonObject) -> CdcError:
    return CdcError(error["code"], error["message"], where=error.get("where"), hint=error.get("hint"))


def _unexpected(exc: BaseException) -> CdcError:
    return CdcError(INTERNAL, f"{type(exc).__name__} in the herder")
