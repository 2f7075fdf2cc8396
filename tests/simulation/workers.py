"""Workers of a simulated cluster: the production herder and the production task runners, in processes that can die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.coordinator.core import events
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import AssignedTask, Connector, Reply, Request, TaskId
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.protocol.control import TaskControl
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.source.kafka_ports import SourcePorts, context_of
from cdcworker.worker.source.runner import SourceRunner
from cdcworker.worker.source.topic_facts import TopicFacts
from cdcworker.worker.task.sink_runner import SinkMachine, run_sink

from .clients import Client, Cluster
from .engine import TIMED_OUT, Killed, Proc, Signal, World, block, sleep
from .network import HELD
from .sources import Database, Encoder, SourceTask, Warehouse

PIPE_S = 0.0005
TERMINATE_S = 13.0
NAMES = TopicNames("g.configs", "g.offsets", "g.status", "g.schemas", "g.coordination")
OFFSETS_PARTITIONS, STATUS_PARTITIONS = 2, 2


@dataclass
class Setting:
    """The settings that differ between histories."""

    session_s: float = 6.0
    tick_s: float = 0.2
    transaction_timeout_ms: int = 900_000
    spawn_s: tuple[float, float] = (0.01, 0.1)
    crash_delay_s: float = 0.0
    restart_delay_s: float = 10.0


@dataclass
class Sim:
    """The state that workers, tasks and checks share."""

    world: World
    cluster: Cluster
    database: Database
    warehouse: Warehouse
    setting: Setting
    widths: dict[str, int] = field(default_factory=dict)
    """The number of tasks that each connector splits into."""
    split_errors: dict[str, int] = field(default_factory=dict)
    """The number of splits of each connector that still fail."""
    nodes: dict[str, Node] = field(default_factory=dict)
    starts: Counter[AssignedTask] = field(default_factory=Counter)
    executed: Counter[tuple[str, str]] = field(default_factory=Counter)
    probes: dict[tuple[str, str], str] = field(default_factory=dict)
    """What the last probe of a worker from a host found: a boot id, or nothing for a refusal."""
    removals: list[Any] = field(default_factory=list)
    """All requests to take a leader out, in the order of time."""

    def trace(self, kind: str, text: object) -> None:
        self.world.trace(kind, text)


class SimulatedHerder(Herder):
    """The production herder; what it carries out is traced."""

    sim: Sim

    def _carry_out(self, command: events.HerdCommand) -> None:
        name = type(command).__name__
        if name not in ("RenewLease", "AppendStatus"):
            self.sim.trace("do", f"{self.config.worker_id} {name} {_short(command)}")
        super()._carry_out(command)

    def clear_failure(self) -> None:
        self.failure = None


def _short(command: Any) -> str:
    if isinstance(command, events.WriteLog):
        return " ".join(record.key for record in command.records)
    for name in ("task", "tasks", "request_id", "reason", "worker_id", "connector"):
        value = getattr(command, name, None)
        if value is not None:
            name = getattr(value, "name", None)
            return str(name or value)
    return ""


class VirtualControl(TaskControl):
    """The production control; waiting gives way to virtual time."""

    def __init__(self, lease_s: float, *, paused: bool, clock: Callable[[], float]) -> None:
        super().__init__(lease_s, paused=paused, clock=clock)
        self._signal = Signal()

    def apply(self, message: Mapping[str, Any]) -> None:
        super().apply(message)
        self._signal.set_off()

    def wait(self, timeout_s: float, until: Callable[[], bool] | None = None) -> None:
        self._signal.wait_for(lambda: self._stopping or (until is not None and until()), timeout_s)


class Reporter:
    """Delivers the messages of a task to its worker, in order."""

    def __init__(self, say: Callable[[events.Event], None], task: AssignedTask) -> None:
        self._say, self._task = say, task
        self._topics: set[str] = set()

    def status(self, state: Any, error: CdcError | None = None) -> None:
        self._say(events.TaskReport(self._task, state, error.to_dict() if error else None))

    def metrics(self, numbers: Any) -> None:
        self._say(events.TaskReport(self._task, metrics=dict(numbers)))

    def topics(self, names: Any) -> None:
        new = sorted(set(names) - self._topics)
        if new:
            self._topics.update(new)
            self._say(events.TaskTopics(self._task, tuple(new)))


class Ports(SourcePorts):
    """The production ports, with rows for changes."""

    def encoder(self, register: Any) -> Any:
        return Encoder()


@dataclass(eq=False)
class Child:
    """One process of a task."""

    task: AssignedTask
    spec: TaskSpec
    worker: Proc
    proc: Proc | None = None
    control: VirtualControl | None = None
    inbox: list[Mapping[str, Any]] = field(default_factory=list)
    is_over: bool = False
    code: int = -9
    hangs: bool = False
    state: str = ""


class Launcher:
    """Runs tasks in simulated processes, with the guarantees of the production launcher."""

    failure: BaseException | None = None

    def __init__(self, sim: Sim, proc: Proc) -> None:
        self.sim, self.proc = sim, proc
        self.children: dict[AssignedTask, Child] = {}
        self._post: Callable[[events.Event], None] = lambda _event: None
        self.is_closing = False
        self.broken = 0
        """The number of starts that still fail."""

    def open(self, post: Callable[[events.Event], None]) -> None:
        self._post = post

    def start(self, task: AssignedTask, spec: TaskSpec) -> None:
        sim = self.sim
        sim.starts[task] += 1
        if self.is_closing or task in self.children:
            raise AssertionError(f"a second start of {task}")
        child = self.children[task] = Child(task, spec, self.proc)
        sim.world.at(sim.world.random.uniform(*sim.setting.spawn_s), self._spawn, child)

    def _spawn(self, child: Child) -> None:
        if child.is_over or not self.proc.alive:
            return
        if self.broken:
            self.broken -= 1
            self._over(child)
            return
        name = f"{self.proc.name}/{child.task.id}@{child.task.task_epoch}.{child.spec.attempt}"
        proc = child.proc = Proc(self.sim.world, name, self.proc.host, self.proc)
        proc.on_end.append(lambda: self._over(child))
        proc.spawn(lambda: self._main(child, proc))

    def _main(self, child: Child, proc: Proc) -> None:
        spec = child.spec
        child.control = control = VirtualControl(0.6 * spec.session_timeout_s, paused=spec.paused, clock=proc.mono)
        for message in child.inbox:
            control.apply(message)
        reporter = Reporter(lambda event: self._say(child, event), child.task)
        run = _run_source if spec.kind == "source" else _run_sink
        try:
            child.code = run(self.sim, child, control, reporter)
        except CdcError as exc:
            child.code = 3 if exc.kind == "fenced" else 1
            if child.code == 1:
                reporter.status("FAILED", exc)
        self.sim.world.at(0.0, proc.kill, f"exit {child.code}")
        block(None)

    def _say(self, child: Child, event: events.Event) -> None:
        if isinstance(event, events.TaskReport) and event.state:
            child.state = event.state
            self.sim.trace(
                "task", f"{child.proc and child.proc.name} {event.state} {(event.error or {}).get('code', '')}"
            )
        self.sim.world.at(PIPE_S, self.proc.call, self._post, event)

    def _over(self, child: Child) -> None:
        """Reports the end of a process, exactly once for each start."""
        if child.is_over:
            return
        child.is_over = True
        self.sim.world.at(PIPE_S, self.proc.call, self._reap, child)

    def _reap(self, child: Child) -> None:
        self.children.pop(child.task, None)
        self._post(events.TaskExited(child.task, child.code))

    # --- what the herder asks ---------------------------------------------------------------------------------------

    def send(self, task: AssignedTask, message: Mapping[str, Any]) -> None:
        child = self.children.get(task)
        if child is not None:
            self.sim.world.at(PIPE_S, self._deliver, child, message)

    def _deliver(self, child: Child, message: Mapping[str, Any]) -> None:
        if child.proc is None or child.control is None:
            child.inbox.append(message)
        else:
            child.proc.call(child.control.apply, message)

    def broadcast(self, message: Mapping[str, Any]) -> None:
        for task in list(self.children):
            self.send(task, message)

    def stop(self, task: AssignedTask) -> None:
        child = self.children.get(task)
        if child is not None:
            self.send(task, {"type": "stop"})
            self.sim.world.at(TERMINATE_S, self._kill, child)

    def kill(self, task: AssignedTask) -> None:
        child = self.children.get(task)
        if child is not None:
            self.sim.world.at(0.0, self._kill, child)

    def _kill(self, child: Child) -> None:
        if child.proc is not None:
            child.proc.kill("killed")
        else:
            self._over(child)

    def close(self, timeout_s: float) -> None:
        self.is_closing = True
        for task in list(self.children):
            self.stop(task)
        until = self.proc.mono() + timeout_s
        while self.children and self.proc.mono() < until:
            sleep(0.05)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AssertionError(f"the simulated launcher does not know {name!r}, which the herder uses")


def _run_source(sim: Sim, child: Child, control: VirtualControl, reporter: Reporter) -> int:
    spec, proc = child.spec, child.proc
    assert proc is not None
    name = f"{spec.connector}.{spec.task}"
    context: TaskContext = context_of(spec, control, lambda _numbers: None, control.interrupted)

    def make(_share: Any, _context: Any) -> Any:
        return SourceTask(sim.database, name, lambda: child.hangs)

    ports = Ports(spec, dict(spec.config), make, reporter, context, control)  # type: ignore[arg-type]
    ports.topics._look_up = lambda topics: dict.fromkeys(topics, TopicFacts(1))  # type: ignore[method-assign]
    return SourceRunner(ports, control, reporter, clock=proc.mono).run()


def _run_sink(sim: Sim, child: Child, control: VirtualControl, reporter: Reporter) -> int:
    return run_sink(child.spec, dict(child.spec.config), control, reporter, machine=lambda _jars: SinkMachine())  # type: ignore[arg-type]


class Node:
    """A machine with a worker id; its worker process may die and come back."""

    def __init__(self, sim: Sim, worker_id: str) -> None:
        self.sim = sim
        self.worker_id = worker_id
        self.boots = 0
        self.proc: Proc | None = None
        self.herder: SimulatedHerder | None = None
        self.launcher: Launcher | None = None
        self.retired: list[tuple[Proc, SimulatedHerder, Launcher]] = []
        """The earlier processes, which may still run."""
        self.comes_back = True
        self.is_deaf = False
        """Tells whether nothing listens at its address although it runs."""
        self.refuses: set[str] = set()
        """The hosts whose connections something on the way refuses, although it runs and listens."""
        sim.nodes[worker_id] = self

    @property
    def is_up(self) -> bool:
        return self.proc is not None and self.proc.alive

    def boot(self) -> None:
        """Starts a process with this worker id, whether or not there is one already."""
        sim = self.sim
        if self.is_up:
            assert self.proc is not None
            assert self.herder is not None
            assert self.launcher is not None
            self.retired.append((self.proc, self.herder, self.launcher))
        self.boots += 1
        proc = self.proc = Proc(sim.world, f"{self.worker_id}#{self.boots}", self.worker_id)
        launcher = self.launcher = Launcher(sim, proc)
        self.herder = None
        self.comes_back = True
        sim.trace("boot", proc.name)
        proc.spawn(lambda: self._main(proc, launcher))

    def _main(self, proc: Proc, launcher: Launcher) -> None:
        sim = self.sim
        config = HerderConfig(
            kafka={"bootstrap.servers": "simulated"},
            group_id="g",
            worker_id=self.worker_id,
            url=f"http://{self.worker_id}",
            topics=NAMES,
            offsets_partitions=OFFSETS_PARTITIONS,
            status_partitions=STATUS_PARTITIONS,
            session_timeout_s=sim.setting.session_s,
            crash_delay_s=sim.setting.crash_delay_s,
            restart_delay_s=sim.setting.restart_delay_s,
        )
        herder = SimulatedHerder(config, self._split, launcher)  # type: ignore[arg-type]
        herder.sim = sim
        if self.proc is proc:
            self.herder = herder
        inbox = herder._inbox
        sim.cluster.data_arrived[proc] = lambda: inbox.put(_nothing) if inbox.empty() else None
        try:
            herder.run()
        finally:
            sim.cluster.data_arrived.pop(proc, None)
        failure = herder.failure
        if isinstance(failure, CdcError) and failure.code == INTERNAL:
            sim.world.violate("herder", f"{proc.name} ended: {failure.__cause__ or failure}")
        sim.world.at(0.0, self._ended, proc, f"herder ended {failure or ''}")
        block(None)

    def _ended(self, proc: Proc, why: str) -> None:
        proc.kill(why)
        if self.proc is proc and self.comes_back and self.herder is not None and self.herder.failure is not None:
            self.sim.world.at(1.0, self.boot_if_down)

    def boot_if_down(self) -> None:
        if not self.is_up:
            self.boot()

    def _split(self, connector: Connector, _topics: frozenset[str]) -> Sequence[Mapping[str, str]]:
        sim = self.sim
        sleep(sim.world.random.choice((0.001, 0.001, 0.05, 0.3)))
        if sim.split_errors.get(connector.name, 0) > 0:
            sim.split_errors[connector.name] -= 1
            raise CdcError(kafka_errors.TIMEOUT, "the source does not answer")
        width = sim.widths[connector.name] = int(connector.config.get("width", "1"))
        return [{"task": str(n)} for n in range(width)]

    # --- what others do to it ---------------------------------------------------------------------------------------

    def kill(self, why: str = "kill") -> None:
        if self.proc is not None:
            self.proc.kill(why)

    def drain(self, restart: bool = False) -> None:
        if not self.is_up or self.herder is None or self.proc is None:
            return
        event = events.DrainRequested(returns=restart)
        self.comes_back = False
        self.proc.call(self.herder._post_event, event)

    def submit(self, request: Request, done: Callable[[str, Reply | None], None]) -> str:
        """Submits a request as REST does. It runs in the process; `done` is called there with the request's id."""
        assert self.herder is not None
        future = self.herder.submit(request)
        request_id = next(reversed(self.herder._futures), "")
        future.add_done_callback(lambda f: done(request_id, None if f._error else f._value))
        return request_id

    def states(self) -> Mapping[TaskId, Child]:
        if self.launcher is None or not self.is_up:
            return {}
        return {task.id: child for task, child in self.launcher.children.items() if not child.is_over}


def _nothing() -> None:
    """Wakes the herder."""


def boot_at(sim: Sim, url: str) -> str:
    """Returns the boot id that answers at this address, as a probe over TCP would."""
    node = sim.nodes[url.removeprefix("http://")]
    client = Client()

    def listen() -> Any:
        if not node.is_up or node.is_deaf or client.proc.host in node.refuses:
            return ""
        assert node.proc is not None
        return HELD if node.proc.paused or node.herder is None else node.herder.boot_id

    answer = client.ask(f"rest:{node.worker_id}", listen, 1.0)
    if answer is TIMED_OUT:
        raise TimeoutError
    sim.probes[client.proc.host, node.worker_id] = str(answer)
    if not answer:
        raise ConnectionRefusedError
    return str(answer)


__all__ = ["Killed", "Launcher", "Node", "Setting", "Sim", "SimulatedHerder"]
