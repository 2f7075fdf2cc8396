"""Each checker of the simulator can fail: histories and systems that are broken on purpose."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.core import placement, supervisor
from cdcworker.coordinator.log.config_fold import connector_record
from cdcworker.coordinator.model import Connector, DeleteConnector, PutConnector, Reply
from cdcworker.worker.source import start_reader
from cdcworker.worker.source.runner import SourceRunner

from .broker import Transaction
from .checks import Checks
from .engine import Proc
from .rest import Op, Rest
from .run import run_seed
from .sources import ADVANCED
from .stage import stage
from .workers import NAMES, Setting

KEY = '["c0",{"server":"t","task":0}]'
PUT = PutConnector("c0", {"n": "1"}, "source")


class Bench:
    """Checks over a broker to which the test commits what it likes."""

    def __init__(self, sim) -> None:
        self.sim = sim
        self.rest = Rest(sim)
        self.checks = Checks(sim, self.rest)

    def commit(self, *places) -> None:
        """One transaction of (topic, key, value, headers) records."""
        transactions = self.sim.cluster.broker.transactions
        txn = Transaction(transactions.new_pid(), 0, "ongoing")
        for topic, key, value, headers in places:
            partition = self.sim.cluster.broker.partition(topic, 0)
            packed = tuple((name, str(text).encode()) for name, text in headers.items())
            partition.append([(key.encode(), value, packed)], txn.pid, 0, True)
            txn.partitions[partition] = None
        for action in transactions.on_commit:
            action("somebody", txn)

    def row(self, number: int, topic: str = "data.c0.0"):
        return topic, str(number), b"%d" % number, {}

    def position(self, lsn: int, epoch: int = 1):
        return NAMES.offsets, KEY, json.dumps({"task_epoch": epoch, "position": {"lsn": lsn}}).encode(), {}

    def decide(self, key: str, value, epoch: int = 1, boot: str = "b1", request: str = "") -> None:
        headers = {"e": epoch, "b": f"{boot}:1", **({"d": request} if request else {})}
        self.commit((NAMES.configs, key, None if value is None else json.dumps(value).encode(), headers))

    def lead(self, epoch: int = 1, boot: str = "b1") -> None:
        self.decide("leader", {"epoch": epoch, "worker_id": "w", "boot_id": boot, "url": "u", "hint": 1}, epoch, boot)

    def connector(self, version: int, request: str = "") -> None:
        record = connector_record(Connector("c0", "i", version, {"n": str(version)}, "RUNNING", "source"))
        self.decide(record.key, record.value, request=request)

    def ask(self, request, request_id: str = "r") -> Op:
        op = Op(request, "c0", 0.0, len(self.checks.history), [request_id])
        self.rest.ops.append(op)
        self.rest.by_id[request_id] = op
        return op

    def found(self, *words: str) -> None:
        text = " ".join(self.sim.world.violations)
        assert all(word in text for word in words), text
        assert text

    @property
    def is_clean(self) -> bool:
        return not self.sim.world.violations


@pytest.fixture
def bench():
    with stage(1, Setting()) as sim:
        yield Bench(sim)


# --- data -------------------------------------------------------------------------------------------------------------


def test_rows_and_positions_in_order_are_right(bench):
    bench.commit(bench.row(0), bench.row(1), bench.position(2))
    bench.commit(bench.row(2), bench.position(3, epoch=2))
    assert bench.is_clean


@pytest.mark.parametrize("rows", [(1,), (0, 0), (0, 2), (0, 1, 0)], ids=str)
def test_a_row_that_is_lost_doubled_or_out_of_order_is_found(bench, rows):
    bench.commit(*(bench.row(number) for number in rows), bench.position(len(rows)))
    bench.found("data", "in place of")


def test_rows_without_a_position_are_found(bench):
    bench.commit(bench.row(0))
    bench.found("data", "without a position")


def test_a_position_that_is_not_of_its_rows_is_found(bench):
    bench.commit(bench.row(0), bench.position(2))
    bench.found("data", "not of one transaction")


def test_a_commit_of_an_older_owner_is_found(bench):
    bench.commit(bench.row(0), bench.position(1, epoch=2))
    bench.commit(bench.row(1), bench.position(2, epoch=1))
    bench.found("I13 owner")


def test_a_position_that_goes_back_is_found(bench):
    bench.commit(bench.row(0), bench.row(1), bench.position(2))
    bench.commit(bench.position(1))
    bench.found("position", "went back from 2 to 1")


def test_a_confirmation_before_the_commit_is_found(bench):
    slot = bench.sim.database.slot("c0.0")
    bench.sim.database.open("c0.0", bench, None)
    bench.commit(bench.row(0), bench.position(1))
    bench.sim.database.confirm("c0.0", bench, 1)
    assert bench.is_clean
    bench.sim.database.confirm("c0.0", bench, 2)
    bench.found("I14 confirm", f"{slot.name} was told 2, committed is 1")


def test_a_source_that_was_confirmed_beyond_the_position_is_found_at_the_next_start(bench):
    bench.sim.database.slot("c0.0").confirmed = 5
    bench.sim.database.open("c0.0", bench, 3)
    bench.found("I14 confirm", "the task stands at 3")


def test_a_replaced_process_that_opens_at_an_old_position_is_refused_and_nothing_is_wrong(bench):
    bench.sim.database.open("c0.0", bench, None)
    bench.commit(bench.row(0), bench.position(1))
    bench.sim.database.confirm("c0.0", bench, 1)
    assert bench.sim.database.open("c0.0", object(), None) == ADVANCED
    assert bench.sim.database.slot("c0.0").owner is bench
    assert bench.is_clean


def test_a_sink_that_applies_a_row_twice_or_leaves_one_out_is_found(bench):
    bench.sim.warehouse.fence("s", (1, 0))
    assert bench.sim.warehouse.apply("s", (1, 0), "data.c0.0", 1, (0,))
    assert bench.is_clean
    bench.sim.warehouse.apply("s", (1, 0), "data.c0.0", 3, (2,))
    bench.found("sink rows")


# --- the leader -------------------------------------------------------------------------------------------------------


def test_a_decision_of_an_older_epoch_is_found(bench):
    bench.lead(1)
    bench.lead(2, "b2")
    assert bench.is_clean
    bench.decide("setting/x", {}, 1)
    bench.found("I12 leader", "after epoch 2")


def test_two_processes_in_one_epoch_are_found(bench):
    bench.lead(1)
    bench.decide("setting/x", {}, 1, "b2")
    bench.found("I12 leader", "two processes")


def test_an_epoch_that_begins_without_a_claim_is_found(bench):
    bench.lead(1)
    bench.decide("setting/x", {}, 2, "b2")
    bench.found("I12 leader", "begins with setting/x")


# --- the register -----------------------------------------------------------------------------------------------------


def test_a_version_that_is_left_out_is_found(bench):
    bench.lead()
    bench.connector(1)
    bench.connector(3)
    bench.found("I16 register", "from version 1 to 3")


def test_a_request_that_is_applied_twice_is_found(bench):
    bench.lead()
    bench.connector(1, "r")
    bench.connector(2, "r")
    bench.found("I16 register", "applied twice")


def test_an_acknowledged_write_that_is_not_in_the_log_is_found(bench):
    bench.lead()
    bench.rest._answered(bench.ask(PUT), Reply("ok", version=1))
    bench.found("I16 register", "acknowledged and is not in the log")


def test_an_acknowledged_write_that_is_in_the_log_is_right(bench):
    bench.lead()
    op = bench.ask(PUT)
    bench.connector(1, "r")
    bench.rest._answered(op, Reply("ok", version=1))
    assert bench.is_clean


def test_a_refused_write_that_is_in_the_log_is_found(bench):
    bench.lead()
    op = bench.ask(PUT)
    bench.connector(1, "r")
    bench.rest._answered(op, Reply("no_leader"))
    bench.found("I16 register", "refused (no_leader) and is in the log")


def test_a_write_that_happens_after_it_was_refused_is_found(bench):
    bench.lead()
    bench.rest._answered(bench.ask(PUT), Reply("no_leader"))
    bench.connector(1, "r")
    bench.found("I16 register", "refused before")


def test_a_write_that_took_effect_before_it_was_asked_is_found(bench):
    bench.lead()
    bench.connector(1, "r")
    bench.rest._answered(bench.ask(PUT), Reply("ok", version=1))
    bench.found("I16 register", "before it was asked")


@pytest.mark.parametrize("outcome", ["exists", "version_mismatch"])
def test_an_answer_from_an_old_picture_is_found(bench, outcome):
    bench.lead()
    bench.connector(1)
    bench.connector(2)
    bench.rest._answered(bench.ask(PUT), Reply(outcome, version=1))
    bench.found("I16 register", "never had version 1")


def test_a_connector_that_was_there_and_is_not_found_is_found(bench):
    bench.lead()
    bench.connector(1)
    bench.rest._answered(bench.ask(DeleteConnector("c0")), Reply("not_found"))
    bench.found("I16 register", "was there all the time")


# --- systems that are broken ------------------------------------------------------------------------------------------


def first_violation(seeds: int = 40, **over) -> str:
    return next((r.violations[0] for seed in range(seeds) if (r := run_seed(seed, **over)).violations), "")


def test_tasks_that_are_never_started_are_found(monkeypatch):
    monkeypatch.setattr(supervisor, "may_start", lambda _turn: False)
    assert "the cluster does not start" in first_violation(1)


def test_a_command_that_is_executed_twice_is_found():
    """Seen by whoever counts the executions of each process."""
    with stage(1, Setting()) as sim:
        transition = SimpleNamespace(me=SimpleNamespace(boot_id="b", worker_id="w"), work=SimpleNamespace(local={}))
        command = SimpleNamespace(id="x", scope={})
        for _ in range(2):
            supervisor._restart(transition, command)
        assert any("commands: x was executed twice" in v for v in sim.world.violations)


def test_a_start_that_forgets_the_position_is_found(monkeypatch):
    monkeypatch.setattr(start_reader.StartReader, "position", lambda _self: None)
    assert first_violation(20, only=("kill_task",), faults=(4, 8)).startswith(("liveness: not every task runs", "data"))


def test_tasks_that_all_run_on_one_worker_are_found(monkeypatch):
    def all_on_one(tasks, holders, workers, _facts):
        return {task: holders.get(task, min(workers)) for task in tasks if workers}

    monkeypatch.setattr(placement, "assign", all_on_one)
    assert "I15" in first_violation(5, faults=(0, 0))


def test_a_thread_that_dies_of_an_error_is_found():
    with stage(1, Setting()) as sim:
        Proc(sim.world, "p", "host").spawn(lambda: 1 // 0)
        sim.world.run(1.0)
        assert sim.world.violations[0].startswith("thread: p: ")


def test_tasks_that_always_fail_are_found(monkeypatch):
    def fail(_self):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(SourceRunner, "_session", fail)
    assert "the cluster does not start" in first_violation(1)
