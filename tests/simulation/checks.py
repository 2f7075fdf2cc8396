"""Invariants that are checked as things happen; for each a test with a broken system proves that it fires."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.log.config_fold import fold_all, task_set_of
from cdcworker.coordinator.log.status_fold import WorkerLease
from cdcworker.coordinator.model import ClusterState, DeleteConnector, PutConnector, TaskId
from cdcworker.schemas.errors import CdcError

from .broker import Entry, Partition, Transaction
from .clients import Client
from .engine import TIMED_OUT
from .group import SERVICE
from .rest import Op, Rest
from .sources import Slot
from .workers import NAMES, Child, Sim

WEIGHT = {"source": 1, "sink": 2}
REFUSALS = ("no_leader", "not_leader", "exists", "not_found", "version_mismatch", "conflict")


def record_of(entry: Entry) -> LogRecord:
    value = None if entry.value is None else json.loads(entry.value)
    headers = {name: (text or b"").decode() for name, text in entry.headers}
    return LogRecord((entry.key or b"").decode(), value, headers, entry.offset, 0, entry.timestamp_ms)


class Checks:
    """Hooks into the broker, the database and the clients."""

    def __init__(self, sim: Sim, rest: Rest) -> None:
        self.sim, self.rest = sim, rest
        self.history: list[LogRecord] = []
        """The config log as it was decided, without compaction."""
        self.versions: dict[str, list[tuple[int, int]]] = {}
        """By connector, from which record on it had which version; 0 for none."""
        self.leader_epoch = 0
        self.leader_boot = ""
        self.rows: Counter[str] = Counter()
        """The committed rows of each data topic."""
        self.positions: dict[str, tuple[int, int]] = {}
        """By offsets key, the task epoch and the position committed last."""
        self._state, self._folded = ClusterState(), 0
        self.by_request: dict[str, list[int]] = {}
        configs = sim.cluster.broker.partition(NAMES.configs, 0)
        self.configs = configs
        sim.cluster.broker.transactions.on_commit.append(self._committed)
        sim.database.on_confirm.append(self._confirmed)
        sim.database.committed = self._durable
        rest.decided = lambda: len(self.history)
        rest.on_answer.append(self._answered)

    def violate(self, name: str, text: str) -> None:
        self.sim.world.violate(name, text)

    # --- commits ----------------------------------------------------------------------------------------------------

    def _committed(self, name: str, txn: Transaction) -> None:
        rows: Counter[str] = Counter()
        positions: list[Entry] = []
        for partition in txn.partitions:
            entries = partition.open_of(txn.pid)
            if partition is self.configs:
                self._decided(entries)
            elif partition.topic == NAMES.offsets:
                positions += entries
            elif partition.topic.startswith("data."):
                rows[partition.topic] += len(entries)
                self._rows(partition, entries)
        if rows or positions:
            self._position(name, rows, positions)

    def _rows(self, partition: Partition, entries: Sequence[Entry]) -> None:
        """Checks that a read_committed reader gets all rows in order, none lost and none twice."""
        for entry in entries:
            number, expected = int(entry.value or b"-1"), self.rows[partition.topic]
            if number != expected:
                self.violate("data", f"{partition.topic} got row {number} in place of {expected}")
            self.rows[partition.topic] = number + 1

    def _position(self, name: str, rows: Counter[str], positions: Sequence[Entry]) -> None:
        if not positions:
            self.violate("data", f"{name} committed {sum(rows.values())} rows without a position")
            return
        for entry in positions:
            key, value = (entry.key or b"").decode(), json.loads(entry.value or b"null")
            connector, partition = json.loads(key)
            epoch, lsn = int(value["task_epoch"]), int(value["position"]["lsn"])
            known_epoch, known = self.positions.get(key, (0, 0))
            if epoch < known_epoch:
                self.violate("I13 owner", f"{key} of epoch {epoch:#x} committed after {known_epoch:#x}")
            if lsn < known:
                self.violate("position", f"{key} went back from {known} to {lsn}")
            if lsn != self.rows[f"data.{connector}.{partition['task']}"]:
                self.violate("data", f"{key}: position {lsn} and {self.rows} rows are not of one transaction")
            self.positions[key] = (epoch, lsn)

    def _confirmed(self, slot: Slot, position: int) -> None:
        durable = self._durable(slot.name)
        if position > durable:
            self.violate("I14 confirm", f"{slot.name} was told {position}, committed is {durable}")

    def _durable(self, slot: str) -> int:
        connector, _, task = slot.rpartition(".")
        key = json.dumps([connector, {"server": "t", "task": int(task)}], sort_keys=True, separators=(",", ":"))
        return self.positions.get(key, (0, 0))[1]

    # --- the config log ---------------------------------------------------------------------------------------------

    def _decided(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            record = record_of(entry)
            epoch, boot = int(record.headers.get("e", 0)), str(record.headers.get("b", "")).partition(":")[0]
            if epoch < self.leader_epoch:
                self.violate("I12 leader", f"{record.key} of epoch {epoch} is decided after epoch {self.leader_epoch}")
            elif epoch == self.leader_epoch and boot != self.leader_boot:
                self.violate("I12 leader", f"{record.key}: two processes write in epoch {epoch}")
            elif epoch > self.leader_epoch and record.key not in ("leader",) and not record.key.startswith("claim"):
                self.violate("I12 leader", f"epoch {epoch} begins with {record.key}")
            self.leader_epoch, self.leader_boot = max(epoch, self.leader_epoch), boot
            index = len(self.history)
            self.history.append(record)
            self._note_version(record, index)
            self._note_request(record, index)

    def _note_version(self, record: LogRecord, index: int) -> None:
        kind, _, name = record.key.partition("/")
        if kind != "connector":
            return
        version = int(record.value["version"]) if record.value else 0
        known = self.versions.setdefault(name, [(0, 0)])
        if version and version != known[-1][1] + 1:
            self.violate("I16 register", f"{name} went from version {known[-1][1]} to {version}")
        known.append((index + 1, version))

    def _note_request(self, record: LogRecord, index: int) -> None:
        request_id = record.headers.get("d", "")
        kind = record.key.partition("/")[0]
        if not request_id or kind not in ("connector", "command"):
            return
        self.by_request.setdefault(request_id, []).append(index)
        if len(self.by_request[request_id]) > 1:
            self.violate("I16 register", f"a request was applied twice: {record.key}")
        op = self.rest.by_id.get(request_id)
        if op is not None and op.reply is not None and op.reply.outcome in REFUSALS and self._is_last(op, request_id):
            self.violate("I16 register", f"{record.key} was changed by a request that was refused before")

    @staticmethod
    def _is_last(op: Op, request_id: str) -> bool:
        """The herder that answered; one that forwarded has refused for itself."""
        return op.ids[-1] == request_id

    def _answered(self, op: Op) -> None:
        reply = op.reply
        if reply is None or reply.outcome == "timeout":
            return
        applied = [i for request_id in op.ids for i in self.by_request.get(request_id, ())]
        if reply.outcome == "ok" and not applied and not self._holds(op, (reply.version,)):
            self.violate("I16 register", f"{op.request} was acknowledged and is not in the log")
        if reply.outcome in REFUSALS and applied:
            self.violate("I16 register", f"{op.request} was refused ({reply.outcome}) and is in the log")
        if any(index < op.first for index in applied):
            self.violate("I16 register", f"{op.request} took effect before it was asked")
        if reply.outcome in ("exists", "version_mismatch") and not self._holds(op, (reply.version,)):
            self.violate("I16 register", f"{op.name} never had version {reply.version} while {op.request} was asked")
        if reply.outcome == "not_found" and not isinstance(op.request, PutConnector) and not self._absent(op):
            self.violate("I16 register", f"{op.name} was there all the time of {op.request}")

    def _holds(self, op: Op, wanted: tuple[int, ...]) -> bool:
        """Tells whether the connector had one of these versions at some moment between request and reply."""
        return any(version in wanted for version in self._versions_during(op))

    def _absent(self, op: Op) -> bool:
        return 0 in self._versions_during(op) or not isinstance(op.request, DeleteConnector)

    def _versions_during(self, op: Op) -> set[int]:
        known = self.versions.get(op.name, [(0, 0)])
        before = [version for index, version in known if index <= op.first]
        return {before[-1], *(version for index, version in known if op.first <= index <= op.last)}

    # --- the cluster as it is ---------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        """The fold of the whole config log."""
        if self._folded < len(self.history):
            self._state = fold_all(self._state, self.history[self._folded :])
            self._folded = len(self.history)
        return self._state

    def wanted(self) -> set[TaskId]:
        state = self.state()
        out = set()
        for name, connector in state.connectors.items():
            tasks = task_set_of(state, name)
            # What is paused before it ever had tasks has none until it is resumed.
            waits = connector.target_state == "PAUSED" and (tasks is None or tasks.config_version == 0)
            if connector.target_state != "STOPPED" and not waits:
                width = int(connector.config.get("width", "1"))
                out |= {TaskId(name, n) for n in range(width if tasks is None else max(width, len(tasks.tasks)))}
        return out

    def processes(self) -> dict[TaskId, list[Child]]:
        """Returns the running processes of each task on all live workers."""
        out: dict[TaskId, list[Child]] = {}
        for node in self.sim.nodes.values():
            if node.launcher is None or not node.is_up:
                continue
            for task, child in node.launcher.children.items():
                if not child.is_over and child.proc is not None:
                    out.setdefault(task.id, []).append(child)
        return out

    def is_settled(self) -> bool:
        processes, wanted = self.processes(), self.wanted()
        if set(processes) != wanted or any(len(c) != 1 for c in processes.values()):
            return False
        return all(c[0].state in ("RUNNING", "PAUSED") for c in processes.values())

    def describe(self) -> str:
        runs = {str(t): [f"{c.proc and c.proc.name}:{c.state}" for c in cs] for t, cs in self.processes().items()}
        ups = [node.proc.name for node in self.sim.nodes.values() if node.is_up and node.proc]
        leads = [n.worker_id for n in self.sim.nodes.values() if n.is_up and n.herder and n.herder._view.is_leader]
        wanted = sorted(map(str, self.wanted()))
        return f"up={ups} leads={leads} wanted={wanted} runs={runs}"

    def is_quiet(self) -> bool:
        """Tells whether all rows have arrived and no open transaction blocks readers."""
        slots, warehouse = self.sim.database.slots, self.sim.warehouse.ledgers
        for task_id in self.wanted():
            slot = slots.get(f"{task_id.connector}.{task_id.task}")
            connector = self.state().connectors[task_id.connector]
            is_read = slot is not None and connector.target_state == "RUNNING" and connector.kind == "source"
            if is_read and slot is not None and self.rows[f"data.{slot.name}"] != slot.end:
                return False
            if connector.kind == "sink" and connector.target_state == "RUNNING":
                rows = warehouse[f"{task_id.connector}-{task_id.task}"].rows if warehouse else {}
                topics = connector.config.get("topics", "").split(",")
                if any(rows.get(topic, 0) != self.rows[topic] for topic in topics):
                    return False
        return all(partition.lso == partition.hw for partition in self.sim.cluster.broker.all())

    def unread(self) -> str:
        held = [p.name for p in self.sim.cluster.broker.all() if p.lso != p.hw]
        behind = {
            s.name: (self.rows[f"data.{s.name}"], s.end)
            for s in self.sim.database.slots.values()
            if self.rows[f"data.{s.name}"] != s.end
        }
        sinks: dict[str, Any] = {name: ledger.rows for name, ledger in self.sim.warehouse.ledgers.items()}
        return f"held back: {held}, rows of: {behind}, sinks: {sinks}"

    def is_balanced(self) -> bool:
        """Tells whether no move of a task would make the loads more even."""
        weights = [(c.worker.host, WEIGHT[c.spec.kind]) for cs in self.processes().values() for c in cs]
        loads = {node.worker_id: 0 for node in self.sim.nodes.values() if node.is_up}
        for host, weight in weights:
            loads[host] = loads.get(host, 0) + weight
        return not weights or max(loads.values()) - min(loads.values()) <= max(weight for _, weight in weights)


# --- removals of the leader ---------------------------------------------------------------------------------------------

ANSWER_S = 3.0
ASKS_MAX = 3
"""One worker asks no more often for one leader."""


@dataclass(frozen=True)
class Removal:
    """One request, and the lease on which its sender judged."""

    asker: str
    at: float
    member: str
    worker_id: str
    epoch: int
    lease: WorkerLease | None


def remove_member(sim: Sim, asked: Mapping[str, Any]) -> None:
    """Sends the request over the simulated network, where it may be lost, late or repeated."""
    client, member = Client(), str(asked["member_id"])
    check_removal(sim, client.proc.host, client.proc.name, member)
    answer = client.ask(SERVICE, lambda: sim.cluster.group.leave(member), ANSWER_S)
    if answer is TIMED_OUT:
        raise CdcError(e.TIMEOUT, "take a member out of the group")


def check_removal(sim: Sim, host: str, asker: str, member: str) -> None:
    """I17: both signs hold, nobody asks more often than it may, and who was wrong waits."""
    node, target = sim.nodes[host], member.partition("#")[0]
    if node.proc is None or node.proc.name != asker or node.herder is None:
        return  # a process that a second one has replaced: its herder is not known any more
    state = node.herder._state
    leader, status, settings = state.cluster.leader, state.status, state.settings
    lease = status.leases.get(target)
    found = sim.probes.get((host, target), None)
    boot = _boot_of(sim, member)
    if found is None or (boot and found == boot):
        sim.world.violate("I17 removal", f"{asker} takes {member} out, whose address answers")
    if leader is None or lease is None:
        return  # it learned of another one between the decision and the request
    age_s = status.lease_clock_s - lease.seen_s
    if lease.boot_id == boot and age_s < settings.probe_after_s:
        sim.world.violate("I17 removal", f"{asker} takes {member} out, whose lease is {age_s:.2f} s old")
    # The lease of a process that has replaced the leader's says nothing of the leader.
    own = lease if lease.boot_id == leader.boot_id else None
    removal = Removal(asker, sim.world.now, member, target, leader.epoch, own)
    _check_pace(sim, removal, settings.session_timeout_s)
    sim.removals.append(removal)
    sim.trace("removal", f"{asker} {member}")


def _boot_of(sim: Sim, member: str) -> str:
    """Returns the boot id of the process that has this member, if it is its worker's present one."""
    target, process = member.partition("#")[0], member.rpartition("-")[0]
    node = sim.nodes.get(target)
    is_present = node is not None and node.is_up and node.proc is not None and node.proc.name == process
    return node.herder.boot_id if is_present and node is not None and node.herder is not None else ""


def _check_pace(sim: Sim, removal: Removal, session_s: float) -> None:
    before = [one for one in sim.removals if one.asker == removal.asker]
    if sum(one.member == removal.member and one.lease == removal.lease for one in before) >= ASKS_MAX:
        sim.world.violate("I17 storm", f"{removal.asker} asks for {removal.member} without end")
    if before:
        state = sim.nodes[removal.asker.partition("#")[0]].herder._state  # type: ignore[union-attr]
        last = before[-1]
        now = state.status.leases.get(last.worker_id)
        was_wrong = (
            last.lease is not None and now is not None and now.boot_id == last.lease.boot_id and now != last.lease
        )
        if was_wrong and removal.at - last.at < session_s * 0.5:
            sim.world.violate("I17 storm", f"{removal.asker} was wrong about {last.member} and goes on")
