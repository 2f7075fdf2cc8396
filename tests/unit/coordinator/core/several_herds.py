"""Several herds over the memory log under a virtual clock: brokers, workers and their task processes, all imaginary."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from cdcworker.coordinator.api import Term, TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.config_fold import fold_all, record_epoch
from cdcworker.coordinator.memory import (
    MemoryGroup,
    MemoryLeadership,
    MemoryLeaderWriter,
    MemoryLog,
    MemoryTopic,
    MemoryTransactions,
)
from cdcworker.coordinator.model import (
    AssignedTask,
    ClusterState,
    Presence,
    PutConnector,
    Reply,
    Request,
    TaskId,
)

STEP_S = 0.1
START_S = 0.3
FAILOVER_S = 12.0
OUTCOMES = {TermOver: "stale", WriterFenced: "fenced", WriteUnknown: "unknown"}


@dataclass
class Process:
    entry: AssignedTask
    begun: float
    paused: bool
    config: dict
    epoch: int | None = None
    valid_until: float = 0.0
    ended: int | None = None


@dataclass
class World:
    """The brokers, the network and the clock."""

    seed: int
    now: float = 1000.0
    configs: MemoryTopic = field(default_factory=MemoryTopic)
    status: MemoryTopic = field(default_factory=MemoryTopic)
    transactions: MemoryTransactions = field(default_factory=MemoryTransactions)
    nodes: dict[str, Node] = field(default_factory=dict)
    replies: dict[str, Reply] = field(default_factory=dict)
    answers: Counter = field(default_factory=Counter)
    produced: dict[TaskId, list[int]] = field(default_factory=dict)
    starts: Counter = field(default_factory=Counter)
    fenced_ids: list[TaskId] = field(default_factory=list)
    requests: int = 0
    boots: int = 0
    broken_status: bool = False
    errors: dict[str, dict] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    probes: bool = False
    """Whether the dead machine's address still answers with a refusal."""

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.group = MemoryGroup(lambda: self.now)

    def boot(self, worker_id: str) -> Node:
        self.boots += 1
        node = self.nodes[worker_id] = Node(self, worker_id, f"boot{self.boots}")
        return node

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            order = sorted(self.nodes)
            self.random.shuffle(order)
            for worker_id in order:
                self.nodes[worker_id].turn()

    def until(self, condition, within_s: float) -> float:
        begun = self.now
        while not condition():
            assert self.now - begun <= within_s, f"not reached in {within_s} s: {self.describe()}"
            self.run(STEP_S)
        return self.now - begun

    def ask(self, request: Request, node: Node | None = None) -> str:
        self.requests += 1
        request_id = f"r{self.requests}"
        (node or self.leader()).tell(events.RequestArrived(request_id, request))
        return request_id

    def ask_until_ok(self, request: Request, within_s: float = 60.0) -> Reply:
        begun = self.now
        while self.now - begun <= within_s:
            leader = self.leader_or_none()
            if leader is not None:
                request_id = self.ask(request, leader)
                while request_id not in self.replies and self.now - begun <= within_s:
                    self.run(STEP_S)
                if self.replies.get(request_id, Reply("timeout")).outcome in ("ok", "not_found"):
                    return self.replies[request_id]
            self.run(STEP_S)
        raise AssertionError(f"no answer: {self.describe()}")

    def leader_or_none(self) -> Node | None:
        """The newest claim's; a frozen one cannot answer."""
        leading = [n for n in self.nodes.values() if n.is_up and n.state.lead.role == "leading"]
        awake = [n for n in leading if self.now >= n.frozen_until]
        return max(awake, key=lambda n: n.state.lead.epoch, default=None)

    def leader(self) -> Node:
        leader = self.leader_or_none()
        assert leader is not None
        return leader

    def cluster(self) -> ClusterState:
        return fold_all(ClusterState(), self.configs.records)

    def running(self) -> dict[TaskId, AssignedTask]:
        out = {}
        for node in self.nodes.values():
            for entry, process in node.processes.items():
                if process.epoch is not None and process.ended is None and self.is_current(process):
                    assert entry.id not in out, f"two current owners of {entry.id}"
                    out[entry.id] = entry
        return out

    def is_current(self, process: Process) -> bool:
        return self.transactions.epochs.get(str(process.entry.id)) == process.epoch

    def wanted(self) -> set[TaskId]:
        return {
            TaskId(name, n)
            for name, c in self.cluster().connectors.items()
            if c.target_state != "STOPPED"
            for n in range(self.widths.get(name, 1))
        }

    def has_no_overlap(self) -> bool:
        """Without faults a task has at most one process at any moment: it is handed over, not taken."""
        count = Counter(p.entry.id for node in self.nodes.values() for p in node.live_processes())
        assert all(n == 1 for n in count.values()), f"two processes at once: {count}"
        return True

    def is_settled(self) -> bool:
        return set(self.running()) == self.wanted() and all(not a.revoke for a in self.cluster().assignments.values())

    def settle(self, within_s: float = FAILOVER_S) -> float:
        took = self.until(self.is_settled, within_s)
        self.run(2.0)
        assert self.is_settled(), self.describe()
        return took

    def describe(self) -> str:
        where = {str(t): e.task_epoch & 0xFFFFF for t, e in sorted(self.running().items())}
        plan = {w: [f"{e.id}@{e.task_epoch & 0xFFFFF}" for e in a.tasks] for w, a in self.cluster().assignments.items()}
        return f"seed={self.seed} running={where} assigned={plan} wanted={len(self.wanted())}"

    def loads(self) -> list[int]:
        return sorted(len(n.live_processes()) for n in self.nodes.values() if n.is_up)


class Node:
    """A driver: carries out commands against the memory parts and runs imaginary task processes."""

    def __init__(self, world: World, worker_id: str, boot_id: str) -> None:
        self.world = world
        self.worker_id = worker_id
        me = Presence(worker_id, boot_id, f"http://{worker_id}", "1", "p")
        self.state = state_machine.initial(me)
        self.configs = MemoryLog(world.configs)
        self.statuses = MemoryLog(world.status)
        self.leadership = MemoryLeadership(world.group, boot_id)
        self.writer: MemoryLeaderWriter | None = None
        self.term: Term | None = None
        self.inbox: list[events.Event] = []
        self.later: list[tuple[float, events.Event]] = []
        self.processes: dict[AssignedTask, Process] = {}
        self.is_up = True
        self.frozen_until = 0.0
        self.left = ""
        self.tell(events.ConfigRecords(tuple(self.configs.read_to_end(1)), replay=True))
        self.tell(events.StatusRecords(tuple(self.statuses.read_to_end(1))))
        self.tell(events.Started())

    def live_processes(self) -> list[Process]:
        return [p for p in self.processes.values() if p.ended is None]

    def alive(self, entry: AssignedTask) -> Process | None:
        """None: the process ended by itself, and its TaskExited is on the way."""
        process = self.processes.get(entry)
        return process if process is not None and process.ended is None else None

    def tell(self, event: events.Event) -> None:
        self.inbox.append(event)

    def kill(self) -> None:
        self.is_up = False
        self.processes.clear()

    def freeze(self, seconds: float) -> None:
        self.frozen_until = self.world.now + seconds

    def turn(self) -> None:
        now = self.world.now
        for process in self.live_processes():
            self.run_process(process)
        if not self.is_up or now < self.frozen_until:
            return
        self.leadership.tick(0)
        if self.leadership.term() != self.term:
            self.term = self.leadership.term()
            self.tell(events.TermChanged(self.term))
        if records := self.configs.poll(0):
            self.tell(events.ConfigRecords(tuple(records)))
        if not self.world.broken_status and (records := self.statuses.poll(0)):
            self.tell(events.StatusRecords(tuple(records)))
        due = [event for at, event in self.later if at <= now]
        self.later = [(at, event) for at, event in self.later if at > now]
        self.inbox += due
        for process in list(self.processes.values()):
            if process.ended is not None:
                del self.processes[process.entry]
                self.tell(events.TaskExited(process.entry, process.ended))
        self.tell(events.Tick())
        self.drain_inbox()

    def drain_inbox(self) -> None:
        while self.inbox and self.is_up:
            event = self.inbox.pop(0)
            now = events.Now(self.world.now, round(self.world.now * 1000))
            self.state, commands = state_machine.step(self.state, event, now)
            for command in commands:
                getattr(self, f"do_{type(command).__name__}")(command)

    def soon(self, event: events.Event) -> None:
        self.later.append((self.world.now + self.world.random.choice([0.0, 0.1, 0.3]), event))

    def do_Claim(self, _command) -> None:
        self.leadership.tick(0)
        if self.leadership.term() is None:
            self.tell(events.ClaimFailed("not the owner"))
            return
        world = self.world
        self.writer = MemoryLeaderWriter(world.configs, world.group, world.transactions, "cdc-leader-g")
        self.tell(events.ConfigRecords(tuple(self.configs.read_to_end(1))))
        self.tell(events.Claimed())

    def do_WriteLog(self, command) -> None:
        try:
            if self.writer is None or self.term is None:
                raise TermOver
            self.writer.write(command.records, self.term)
            self.tell(events.WriteDone(command.write_id))
        except (TermOver, WriterFenced, WriteUnknown) as exc:
            self.writer = None
            self.tell(events.WriteFailed(command.write_id, OUTCOMES[type(exc)]))

    def do_AppendStatus(self, command) -> None:
        if not self.world.broken_status and self.world.random.random() > 0.02:
            self.statuses.append(command.records, 1)

    def do_RenewLease(self, command) -> None:
        if not self.world.broken_status:
            self.statuses.append((command.record,), 1)
            self.soon(events.LeaseAcked(self.world.now))
            for process in self.live_processes():
                process.valid_until = self.world.now + 6.0

    def do_AnswerRequest(self, command) -> None:
        self.world.answers[command.request_id] += 1
        self.world.replies[command.request_id] = command.reply

    def do_PlanTasks(self, command) -> None:
        connector, world = command.connector, self.world
        ids = (connector.name, connector.incarnation, command.config_version)
        error = world.errors.get(connector.name)
        tasks = tuple({"task": str(n)} for n in range(world.widths.get(connector.name, 1)))
        self.soon(events.TasksPlanned(*ids, error=error) if error else events.TasksPlanned(*ids, tasks))

    def do_StartTask(self, command) -> None:
        entry = command.task
        assert entry.id not in {p.entry.id for p in self.live_processes()}, "two processes of one task on one worker"
        self.world.starts[entry] += 1
        self.processes[entry] = Process(
            entry, self.world.now, command.paused, dict(command.config), valid_until=self.world.now + 6.0
        )

    def do_StopTask(self, command) -> None:
        if process := self.alive(command.task):
            process.ended = 0

    def do_KillTask(self, command) -> None:
        if process := self.alive(command.task):
            process.ended = -9

    def do_PauseTask(self, command) -> None:
        if process := self.alive(command.task):
            process.paused = True

    def do_RepeatTopics(self, command) -> None: ...

    def do_ResumeTask(self, command) -> None:
        if process := self.alive(command.task):
            process.paused = False

    def do_FenceIds(self, command) -> None:
        for task_id in command.tasks:
            self.world.transactions.init(str(task_id))
            self.world.fenced_ids.append(task_id)
        self.soon(events.FencesDone(command.tasks))

    def do_ProbeWorker(self, command) -> None:
        node = self.world.nodes[command.worker_id]
        boot_id = node.state.me.boot_id
        gone = self.world.probes and not (node.is_up and boot_id == command.boot_id)
        self.soon(events.WorkerProbed(command.worker_id, command.boot_id, "gone" if gone else "unknown"))

    def do_RemoveLeader(self, command) -> None:
        self.world.group.leave(command.leader.member)

    def do_StopProducing(self, _command) -> None:
        for process in self.live_processes():
            process.valid_until = self.world.now

    def do_Leave(self, command) -> None:
        self.left = command.reason
        self.leadership.close()
        self.kill()

    def run_process(self, process: Process) -> None:
        """What a task process does by itself: fence its predecessor, look whether it is still assigned, produce."""
        world, entry = self.world, process.entry
        if process.epoch is None:
            if world.now - process.begun < START_S:
                return
            process.epoch = world.transactions.init(str(entry.id))
            assignment = world.cluster().assignments.get(self.worker_id)
            if assignment is None or entry not in assignment.tasks or assignment.boot_id != self.state.me.boot_id:
                process.ended = 3
                return
            self.later.append((world.now, events.TaskReport(entry, "RUNNING")))
        if not world.is_current(process):
            process.ended = 3
        elif world.now < process.valid_until and not process.paused:
            world.produced.setdefault(entry.id, []).append(entry.task_epoch)


def check_safety(world: World) -> None:
    for task_id, epochs in world.produced.items():
        assert epochs == sorted(epochs), f"an older owner of {task_id} produced after a newer one"
    leader_epochs = [record_epoch(record) for record in world.configs.records]
    assert leader_epochs == sorted(leader_epochs), "a write of an older leader epoch is in the log"
    assert not world.cluster().stale_keys
    assert all(count == 1 for count in world.answers.values()), "a request was answered twice"


def cluster(seed: int, workers: int = 3, connectors: int = 4, width: int = 3) -> World:
    world = World(seed)
    for n in range(workers):
        world.boot(f"w{n}")
        world.run(STEP_S)
    world.until(lambda: (led := world.leader_or_none()) and len(view_of(led).workers) == workers, 10.0)
    for n in range(connectors):
        world.widths[f"c{n}"] = width
        world.ask_until_ok(PutConnector(f"c{n}", {"n": "0"}, "source"))
    world.settle()
    return world


def view_of(node: Node):
    return state_machine.view(node.state, events.Now(node.world.now, 0))
