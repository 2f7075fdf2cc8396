"""Tasks that were let go by a process that ended badly: what it may have left open is ended, by a new owner or the leader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.core import events
from cdcworker.coordinator.log.config_fold import command_record, connector_record, tombstone
from cdcworker.coordinator.log.status_fold import presence_record, task_status_record
from cdcworker.coordinator.model import AssignedTask, Command, Connector, TaskStatus

from . import follower_herd
from .follower_herd import ENTRY, Driver, of
from .two_workers import OTHER, TASKS, Cluster

KILLED = {"code": "coordinator.task_crashed", "kind": "transient", "message": "m"}


# --- what a worker says -----------------------------------------------------------------------------------------------


def revoked() -> Driver:
    driver = Driver()
    driver.running()
    assert of(driver.assigned(revoke=(ENTRY,)), events.StopTask)
    return driver


def told_of_the_end(driver: Driver, event: events.Event) -> str | None:
    """The code in the report of the stop that follows."""
    (append,) = of(driver.feed(event), events.AppendStatus)
    ((state, error),) = ((record.value["state"], record.value["error"]) for record in append.records)
    assert state == "STOPPED"
    return error and error["code"]


def test_a_task_that_stopped_when_it_was_told_to_names_no_error():
    assert told_of_the_end(revoked(), events.TaskExited(ENTRY, 0)) is None


@pytest.mark.parametrize("code", [1, -9, 137])
def test_a_task_that_had_to_be_killed_says_so_when_it_is_let_go(code):
    assert told_of_the_end(revoked(), events.TaskExited(ENTRY, code)) == "coordinator.task_crashed"


def test_a_process_that_is_given_up_is_a_bad_end_too():
    driver = revoked()
    commands = [c for _, c in driver.wait(45)]
    assert of(commands, events.KillTask)
    last = [record.value for append in of(commands, events.AppendStatus) for record in append.records][-1]
    assert (last["state"], last["error"]["code"]) == ("STOPPED", "coordinator.task_stuck")


def test_a_task_that_is_let_go_while_it_waits_says_how_its_process_ended():
    driver = Driver()
    driver.running()
    driver.fails(KILLED, -9)
    (append,) = of(driver.assigned(revoke=(ENTRY,)), events.AppendStatus)
    assert [(r.value["state"], r.value["error"]["code"]) for r in append.records] == [("STOPPED", KILLED["code"])]


def test_how_a_former_process_ended_is_forgotten_once_the_task_runs():
    driver = Driver()
    driver.running()
    driver.fails(follower_herd.TRANSIENT)
    driver.wait(3)
    driver.feed(events.TaskReport(ENTRY, "RUNNING"))
    driver.assigned(revoke=(ENTRY,))
    assert told_of_the_end(driver, events.TaskExited(ENTRY, 0)) is None


def test_the_release_of_a_start_that_never_ran_waits_for_the_older_one_and_tells_how_that_ended():
    driver = Driver()
    driver.running()
    newer = ENTRY._replace(task_epoch=ENTRY.task_epoch + 1)
    assert of(driver.assigned(newer), events.StopTask)
    assert not of(driver.assigned(revoke=(newer,)), events.AppendStatus)
    appends = of(driver.feed(events.TaskExited(ENTRY, -9)), events.AppendStatus)
    said = [record.value for append in appends for record in append.records]
    assert [(v["state"], v["task_epoch"]) for v in said] == [
        ("STOPPED", ENTRY.task_epoch),
        ("STOPPED", newer.task_epoch),
    ]
    assert said[-1]["error"]["code"] == "coordinator.task_crashed"


NEWER = ENTRY._replace(task_epoch=ENTRY.task_epoch + 1)


def without_a_lease() -> Driver:
    """The task was killed for want of a lease; what replaces it may not start before there is one."""
    driver = Driver()
    driver.running()
    driver.now += 60.0
    assert of(driver.feed(events.Tick()), events.StopProducing)
    return driver


def released(driver: Driver, entry: AssignedTask) -> str | None:
    commands = driver.assigned(revoke=(entry,))
    assert not of(commands, events.StartTask)
    ((state, epoch, error),) = (
        (r.value["state"], r.value["task_epoch"], r.value["error"])
        for a in of(commands, events.AppendStatus)
        for r in a.records
    )
    assert (state, epoch) == ("STOPPED", entry.task_epoch)
    return error and error["code"]


def test_the_release_of_a_start_that_never_ran_tells_how_the_older_one_ended_while_it_waited():
    driver = without_a_lease()
    driver.feed(events.TaskExited(ENTRY, -9))
    assert not of(driver.assigned(NEWER), events.StartTask)
    assert released(driver, NEWER) == "coordinator.task_crashed"


def test_a_restart_that_is_asked_for_while_the_task_waits_does_not_hide_how_its_process_ended():
    driver = without_a_lease()
    driver.feed(events.TaskExited(ENTRY, -9))
    scope = {"connector": "c", "incarnation": "i", "task": None}
    commands = driver.config(command_record(Command("r", "restart", scope, 10**9)))
    assert not of(commands, events.StartTask), "there is no lease yet"
    assert released(driver, ENTRY) == "coordinator.task_crashed"


def test_the_release_of_a_start_that_never_ran_tells_how_the_older_one_ended_that_it_replaced():
    driver = without_a_lease()
    driver.assigned(NEWER)
    driver.feed(events.TaskExited(ENTRY, -9))
    assert released(driver, NEWER) == "coordinator.task_crashed"


@pytest.mark.parametrize(
    ("state", "told"),
    [("RUNNING", "coordinator.task_crashed"), ("PAUSED", "coordinator.task_crashed"), ("STOPPED", None)],
)
def test_the_release_of_a_start_that_never_ran_tells_what_was_not_heard_of_the_owner_before(state, told):
    """Its worker died: the leader left the fence to the new owner's start, and there was none."""
    driver = without_a_lease()
    driver.feed(events.TaskExited(ENTRY, 0))
    theirs = TaskStatus("c", 1, state, "other", ENTRY.task_epoch, 7)
    driver.feed(events.StatusRecords((task_status_record(theirs),)))
    ours = NEWER._replace(task=1)
    driver.assigned(ours)
    assert released(driver, ours) == told


def test_the_release_of_a_task_that_never_ran_anywhere_names_no_error():
    driver = without_a_lease()
    driver.feed(events.TaskExited(ENTRY, 0))
    ours = NEWER._replace(task=1)
    driver.assigned(ours)
    assert released(driver, ours) is None


# --- what the leader makes of it --------------------------------------------------------------------------------------


class Pair(Cluster):
    def decide(self, *records) -> None:
        """As if somebody had asked for it."""
        epoch = str(self.state.cluster.epoch)
        self.configs.append([replace(record, headers={"e": epoch}) for record in records])
        self.feed(events.Tick())

    def let_go(self, error: dict | None, worker: str = "other", seq: int = 1) -> set:
        """The worker stops what it is to let go, and says how its processes ended."""
        revoked = self.state.cluster.assignments[worker].revoke
        said = [TaskStatus("c", e.task, "STOPPED", worker, e.task_epoch, seq, error) for e in revoked]
        self.append(*map(task_status_record, said))
        return {entry.id for entry in revoked}

    def fenced(self) -> set:
        """What the leader fenced since it was last asked; they are done at once."""
        commands = self.take(events.FenceIds)
        for command in commands:
            self.feed(events.FencesDone(command.tasks))
        return {task for command in commands for task in command.tasks}


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.join()
    assert len(pair.of("other")) == 2
    return pair


@pytest.mark.parametrize("error", [None, KILLED])
def test_of_what_a_deletion_ends_only_bad_ends_are_fenced_and_only_once(pair, error):
    pair.decide(tombstone("connector/c"), tombstone("tasks/c"))
    gone = pair.let_go(error)
    assert len(gone) == 2
    assert pair.fenced() == (gone if error else set())
    pair.wait(3, OTHER)
    assert not pair.take(events.FenceIds)
    assert "c" not in pair.state.cluster.fenced


def test_a_bad_end_that_gets_a_new_owner_is_left_to_its_start(pair):
    gone = pair.of("other")
    pair.append(presence_record(replace(OTHER, draining=True)))
    assert pair.let_go(KILLED) == gone
    assert pair.of("me") == set(TASKS)
    assert not pair.fenced()
    assert "fenced/c" not in [record.key for record in pair.configs.records]


def test_a_bad_end_that_waits_for_its_worker_is_fenced_meanwhile(pair):
    pair.append(presence_record(replace(OTHER, draining=True, returns=True)))
    gone = pair.let_go(KILLED)
    assert len(gone) == 2
    assert pair.fenced() == gone
    assert len(pair.of("me")) == 2
    pair.join(replace(OTHER, boot_id="b3"))
    assert pair.of("other") == gone


def test_a_bad_end_of_a_paused_source_is_fenced_before_it_moves(pair):
    """A paused task opens nothing, so its start would not fence the one before."""
    pair.decide(connector_record(Connector("c", "i", 2, {}, "PAUSED", "source", config_version=1)))
    pair.append(presence_record(replace(OTHER, draining=True)))
    gone = pair.let_go(KILLED)
    assert not gone & pair.of("me")
    assert pair.why() == {(task.task, "other", "", "drain") for task in gone}
    assert pair.fenced() == gone
    assert pair.of("me") == set(TASKS)
    assert pair.why() == {(task.task, "other", "me", "its fence is set") for task in gone}


def test_a_bad_end_that_its_worker_told_before_it_died_is_fenced(pair):
    pair.decide(tombstone("connector/c"), tombstone("tasks/c"))
    first, second = pair.state.cluster.assignments["other"].revoke
    # The one report and the death are read together: no round of the leader lies between.
    pair.feed(
        events.StatusRecords(
            (
                task_status_record(TaskStatus("c", first.task, "STOPPED", "other", first.task_epoch, 1, KILLED)),
                task_status_record(TaskStatus("c", second.task, "STOPPED", "other", second.task_epoch, 1)),
                tombstone("worker/other"),
            )
        )
    )
    assert pair.fenced() == {first.id}


def test_a_bad_end_of_a_paused_source_that_was_told_before_its_worker_died_is_fenced_too(pair):
    pair.decide(connector_record(Connector("c", "i", 2, {}, "PAUSED", "source", config_version=1)))
    theirs = pair.state.cluster.assignments["other"].tasks
    said = [TaskStatus("c", e.task, "STOPPED", "other", e.task_epoch, 1, KILLED) for e in theirs]
    pair.feed(events.StatusRecords((*map(task_status_record, said), tombstone("worker/other"))))
    assert len(pair.of("me")) == 2
    assert pair.fenced() == {entry.id for entry in theirs}
    assert pair.of("me") == set(TASKS)


def test_tasks_of_sinks_have_no_ids_to_fence(pair):
    pair.decide(connector_record(Connector("c", "i", 2, {}, "RUNNING", "sink", config_version=1)))
    pair.append(presence_record(replace(OTHER, draining=True, returns=True)))
    assert len(pair.let_go(KILLED)) == 2
    assert not pair.fenced()


@pytest.mark.parametrize(("kind", "given_up"), [("source", [ENTRY.id]), ("sink", [])])
def test_what_a_source_left_open_that_is_given_up_is_ended_by_its_worker(kind, given_up):
    """Its restart would do that, and there is none; readers of the same partitions would wait for the time-out."""
    driver = Driver(connector_record(replace(follower_herd.CONNECTOR, kind=kind)))
    driver.running()
    assert not of(driver.fails(follower_herd.TRANSIENT), events.FenceIds), "its next start fences"
    assert of([command for _, command in driver.wait(3)], events.StartTask)
    driver.feed(events.TaskReport(ENTRY, "RUNNING"))
    assert [
        task for command in of(driver.fails(follower_herd.CONFIG), events.FenceIds) for task in command.tasks
    ] == given_up
