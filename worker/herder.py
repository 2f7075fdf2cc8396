"""The herder: one thread that feeds the cluster's pure core and carries out what it decides. It runs no user code."""

from __future__ import annotations

import contextlib
import logging
import queue
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

from cdcworker.coordinator import events as ev
from cdcworker.coordinator import herd
from cdcworker.coordinator.kafka_topics import TopicNames
from cdcworker.coordinator.model import JsonObject, Presence, Reply, Request, View
from cdcworker.coordinator.records import tombstone
from cdcworker.coordinator.status import topics_key
from cdcworker.coordinator.versions import may_take_turns
from cdcworker.schemas.errors import INTERNAL, CdcError, declare
from cdcworker.worker.herd_kafka import HerdKafka
from cdcworker.worker.launcher import Launcher
from cdcworker.worker.pipes import lease_message
from cdcworker.worker.planning import Plan, Planner
from cdcworker.worker.probe import Prober
from cdcworker.worker.tasks import TaskProcesses
from cdcworker.worker.taskspec import TaskSpec, Topics

log = logging.getLogger(__name__)

STOPPED = declare(
    "worker.stopped", "transient", "This worker is stopping or has stopped", "Send the request to another worker."
)

TICK_S = 0.1
IDLE_WAIT_S = 0.05
"""Kafka's clients cannot wake this thread, so it looks at them this often."""
BUSY_WAIT_S = 0.003
BUSY_FOR_S = 0.5
"""How long after the last sign of work it looks more often: decisions come back through the log in milliseconds."""
VIEW_EVERY_S = 0.1
INBOX_MAX = 1_000
DRAIN_S_MAX = 15.0
STOP_TASKS_S = 4.0

Job = Callable[[], None]


@dataclass(frozen=True)
class HerderConfig:
    """What one worker needs to know to take part. `kafka` holds the worker's Kafka client properties."""

    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    worker_id: str
    url: str
    topics: TopicNames
    offsets_partitions: int = 25
    status_partitions: int = 5
    session_timeout_s: float = 10.0
    state_dir: str = ""
    plugins_hash: str = ""
    version: str = ""
    capacity: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1
    providers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The worker's `config.providers.*` properties."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Versions by every name that a `connector.class` may have here."""
    crash_delay_s: float = 0.0
    restart_delay_s: float = 60.0
    backend: Literal["kafka", "zookeeper", "memory"] = "kafka"
    zookeeper_connect: str = ""
    zookeeper_digest: str = field(default="", repr=False)
    accepted_identity: str = ""
    """Fingerprint of our identity when an operator says that the log, which belongs to another, is ours now."""
    peer_tls: ssl.SSLContext | None = field(default=None, repr=False)
    """How other workers' certificates are checked."""


class Herder(threading.Thread):
    """`start()`, `wait_started()`, then `view()` and `submit()` from any thread; ends by `drain()` or `stop()`."""

    def __init__(self, config: HerderConfig, plan: Plan, launcher: Launcher | None = None) -> None:
        super().__init__(name="herder", daemon=True)
        self.config = config
        self.boot_id = uuid.uuid4().hex
        self.failure: BaseException | None = None
        """Why the herder ended, when it was not asked to."""
        self._settings = herd.HerdSettings(
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
        self._ended = False
        self._stopping = False
        self._left = False
        self._now = time.monotonic()
        self._busy_until = 0.0
        self._moving = False
        """Somebody has to let a task go: who gets it must not wait for this worker to look."""
        self._lease_until = 0.0
        self._kafka = HerdKafka(config, self._post)
        self._launcher = launcher or TaskProcesses()
        self._prober = Prober(self._post_event, config.peer_tls)
        self._planner = Planner(plan, self._kafka.topics, self._post_event)
        self._state = herd.initial(self._presence(), self._settings)
        self._view: View = herd.view(self._state, self._clock())
        self._viewed_state: herd.HerdState = self._state
        self._viewed_at = 0.0
        self._ticked_at = 0.0

    # --- called from any thread -------------------------------------------------------------------------------------

    def wait_started(self, timeout_s: float | None = None) -> bool:
        """Until both logs are folded and the group is joined; raises what kept it from starting."""
        done = self._ready.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return done

    def view(self) -> View:
        """The last picture of the cluster; never waits."""
        return replace(self._view, last_tick_age_s=time.monotonic() - self._now)

    def submit(self, request: Request) -> Future[Reply]:
        """Ask the herd. The future is completed on the herder's thread, after the view shows what was done."""
        future: Future[Reply] = Future()
        request_id = uuid.uuid4().hex
        with self._lock:
            ended = self._ended
            if not ended:
                self._futures[request_id] = future
        if ended:
            future.set_result(Reply("no_leader", detail="the worker has stopped"))
        else:
            self._post_event(ev.RequestArrived(request_id, request))
        return future

    def forget_topics(self, connector: str) -> None:
        """Topics in use by the connector's tasks so far; those that still are in use are reported again."""

        def forget() -> None:
            known = [task for task in self._state.status.topics if task.connector == connector]
            if known:
                self._kafka.append_status([tombstone(topics_key(task)) for task in known])

        self._post(forget)

    def drain(self, timeout_s: float = DRAIN_S_MAX, *, returns: bool = False) -> bool:
        """Hand all tasks over, then leave; whether that was done in time. In the end the herder is stopped.

        `returns`: a worker of the same id follows soon, the tasks wait for it.
        """
        deadline = time.monotonic() + min(timeout_s, DRAIN_S_MAX)
        self._post_event(ev.DrainRequested(returns))
        self.join(max(0.1, deadline - time.monotonic()))
        handed_over = not self.is_alive() and self._left
        self.stop()
        return handed_over

    def stop(self, timeout_s: float = 10.0) -> None:
        """Leave the group at once and stop the tasks; lost work moves when the lease lapses."""
        self._stopping = True
        self._post(lambda: None)
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout_s)

    def _post(self, job: Job) -> None:
        self._inbox.put(job)

    def _post_event(self, event: ev.Event) -> None:
        self._post(lambda: self._feed(event))

    # --- the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._open()
            while not (self._stopping or self._left):
                self._turn()
        except BaseException as exc:
            self.failure = exc if isinstance(exc, CdcError) else _unforeseen(exc)
            log.error("herder ended error=%s", exc, exc_info=not isinstance(exc, CdcError))
        finally:
            self._end()

    def _open(self) -> None:
        self._launcher.open(self._post_event)
        configs, status = self._kafka.open()
        identity, accepted = getattr(self._kafka, "identity", None), self.config.accepted_identity
        settings = replace(self._settings, identity=identity, accepted_identity=accepted)
        self._state = replace(self._state, settings=settings)
        self._feed(ev.ConfigRecords(tuple(configs), replay=True))
        self._feed(ev.StatusRecords(tuple(status)))
        self._feed(ev.Started())
        self._refresh_view(force=True)
        log.info("herder started worker=%s boot=%s cluster=%s", self.config.worker_id, self.boot_id, self._cluster_id)
        self._ready.set()

    def _end(self) -> None:
        """Leave the group first: others need not wait for our tasks to end, fencing makes that safe. Whatever fails on
        the way, the tasks are ended and who waits is told."""
        try:
            with contextlib.ExitStack() as steps:
                steps.callback(self._ready.set)
                steps.callback(self._refuse_futures)
                steps.callback(self._kafka.close)
                # How they end is told to nobody: without the core to judge it, it would look like a crash.
                steps.callback(self._launcher.close, STOP_TASKS_S)
                steps.callback(self._kafka.leave)
        except Exception:
            log.exception("herder did not end cleanly")

    def _turn(self) -> None:
        """Take what arrived, serve Kafka, let time pass, publish the view, then answer who asked."""
        if self._launcher.failure is not None:
            raise self._launcher.failure
        busy = self._kafka.busy or self._futures or self._moving or time.monotonic() < self._busy_until
        self._take_inbox(BUSY_WAIT_S if busy else IDLE_WAIT_S)
        for event in self._kafka.turn():
            self._feed(event)
        self._now = time.monotonic()
        if self._now - self._ticked_at >= TICK_S:
            self._ticked_at = self._now
            self._feed(ev.Tick())
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

    def _feed(self, event: ev.Event) -> None:
        numbers_only = isinstance(event, ev.TaskReport) and event.state is None
        if not (numbers_only or isinstance(event, ev.Tick | ev.StatusRecords | ev.LeaseAcked)):
            self._busy_until = time.monotonic() + BUSY_FOR_S
        if isinstance(event, ev.LeaseAcked):
            self._pass_lease_on(event)
        self._state, commands = herd.step(self._state, event, self._clock())
        if isinstance(event, ev.ConfigRecords):
            self._moving = any(assignment.revoke for assignment in self._state.cluster.assignments.values())
        for command in commands:
            if not isinstance(command, ev.AppendStatus | ev.RenewLease):
                self._busy_until = time.monotonic() + BUSY_FOR_S
            self._carry_out(command)

    def _clock(self) -> ev.Now:
        return ev.Now(time.monotonic(), time.time_ns() // 1_000_000)

    def _refresh_view(self, *, force: bool) -> None:
        due = force or self._now - self._viewed_at >= VIEW_EVERY_S
        if due and (self._state is not self._viewed_state or self._now - self._viewed_at >= 1.0):
            self._view = herd.view(self._state, self._clock(), self._cluster_id)
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
            self._ended = True
            futures, self._futures = self._futures, {}
        for future in futures.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(CdcError(STOPPED, "the worker stopped before it could answer"))

    # --- commands ---------------------------------------------------------------------------------------------------

    def _carry_out(self, command: ev.HerdCommand) -> None:
        match command:
            case ev.Claim():
                self._kafka.claim()
            case ev.WriteLog():
                self._kafka.write(command)
            case ev.AppendStatus(records):
                self._kafka.append_status(records)
            case ev.RenewLease(record):
                self._kafka.renew_lease(record)
            case ev.Answer(request_id, reply):
                self._answers.append((request_id, reply))
            case ev.PlanTasks(connector, version):
                self._planner.request(connector, version)
            case ev.FenceIds(tasks):
                self._kafka.fence(tasks)
            case ev.ProbeWorker():
                self._prober.probe(command)
            case ev.Leave(reason, error):
                log.info("worker leaves reason=%s", reason)
                self._left = True
                self.failure = _told(error) if error else None
            case _:
                self._command_task(command)

    def _command_task(self, command: ev.HerdCommand) -> None:
        match command:
            case ev.StartTask():
                self._start_task(command)
            case ev.StopTask(task):
                self._launcher.stop(task)
            case ev.KillTask(task):
                self._launcher.kill(task)
            case ev.PauseTask(task):
                self._launcher.send(task, {"type": "pause"})
            case ev.ResumeTask(task):
                self._launcher.send(task, {"type": "resume"})
            case ev.TellTask(task, jobs):
                self._launcher.send(task, {"type": "jobs", "jobs": list(jobs)})
            case ev.StopProducing():
                self._launcher.broadcast(lease_message(0.0))
            case _:
                raise CdcError(INTERNAL, f"the herder does not know the command {type(command).__name__}")

    def _start_task(self, command: ev.StartTask) -> None:
        if self._stopping or self._left:
            return
        self._launcher.start(command.task, self._spec(command))
        self._launcher.send(command.task, self._lease_message())

    def _pass_lease_on(self, event: ev.LeaseAcked) -> None:
        """Tasks produce on our lease, by their own clock: from when it was sent, not from when it was answered."""
        self._lease_until = event.sent_mono + 0.6 * self.config.session_timeout_s
        self._launcher.broadcast(self._lease_message())

    def _lease_message(self) -> JsonObject:
        left_s = self._lease_until - time.monotonic()
        return lease_message(left_s, takes_turns=may_take_turns(self._view.workers.values()))

    def _spec(self, command: ev.StartTask) -> TaskSpec:
        config, task = self.config, command.task
        names = config.topics
        return TaskSpec(
            kind=command.kind,
            connector=task.connector,
            task=task.task,
            incarnation=task.incarnation,
            task_epoch=task.task_epoch,
            attempt=command.attempt,
            worker_id=config.worker_id,
            boot_id=self.boot_id,
            paused=command.paused,
            config=dict(command.config),
            kafka=dict(config.kafka),
            group_id=config.group_id,
            topics=Topics(names.configs, names.offsets, names.status, names.schemas),
            offsets_partitions=self._kafka.partitions[names.offsets],
            session_timeout_s=config.session_timeout_s,
            state_dir=config.state_dir,
            providers=dict(config.providers),
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
        return getattr(self._kafka, "cluster_id", "")


def _told(error: JsonObject) -> CdcError:
    return CdcError(error["code"], error["message"], where=error.get("where"), hint=error.get("hint"))


def _unforeseen(exc: BaseException) -> CdcError:
    return CdcError(INTERNAL, f"{type(exc).__name__} in the herder")
