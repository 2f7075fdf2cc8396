"""When held tasks move for an even spread: not while a worker has just been lost, at once when one has joined."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.core import events
from cdcworker.coordinator.core.assign import StableMembers
from cdcworker.coordinator.log.status_fold import task_status_record
from cdcworker.coordinator.model import TaskStatus

from .two_workers import OTHER, Cluster

THIRD = replace(OTHER, worker_id="third", boot_id="b3")
A, B, C = ("a", "1"), ("b", "1"), ("c", "1")


def test_a_new_leader_takes_somebody_to_be_missing():
    assert StableMembers().updated([A, B], 5.0) == StableMembers(frozenset({A, B}), 5.0)


def test_a_worker_is_missing_from_the_last_loss_on():
    members = StableMembers(frozenset({A, B, C})).updated([A, B], 5.0).updated([A, B], 6.0)
    assert members.missing_since == 5.0
    assert members.updated([A], 7.0).missing_since == 7.0
    assert not members.may_balance(30.0, 34.9)
    assert members.may_balance(30.0, 35.0)


def test_whoever_joins_completes_the_members_a_new_process_of_the_same_name_too():
    for joined in ([A, B, C], [A, ("b", "2")]):
        members = StableMembers(frozenset({A, B}), 5.0).updated(joined, 6.0)
        assert members.may_balance(30.0, 6.0)


def make_heavy(cluster, task, worker_id):
    (entry,) = [e for e in cluster.state.cluster.assignments[worker_id].tasks if e.id == task]
    for seq in range(1, 300):
        status = TaskStatus(
            "c", task.task, "RUNNING", worker_id, entry.task_epoch, seq, metrics={"cpu_cores": 2.0, "rows": seq}
        )
        cluster.append(task_status_record(status))


def test_after_a_loss_only_lost_tasks_move_until_nobody_has_come_back_for_a_while():
    cluster = Cluster()
    cluster.join()
    cluster.join(THIRD)
    cluster.obey(OTHER)
    (heavy,) = cluster.of("other")
    (light,) = cluster.of("third")
    mine = cluster.of("me")
    make_heavy(cluster, heavy, "other")
    cluster.wait(5, OTHER, THIRD)
    assert cluster.of("other") == {heavy}
    cluster.wait(12, THIRD)
    assert cluster.of("third") == {light, heavy}
    assert cluster.of("me") == mine
    cluster.wait(25, THIRD)
    assert cluster.of("third") == {light, heavy}
    cluster.wait(10, THIRD)
    cluster.obey(THIRD)
    assert cluster.of("third") == {heavy}
    assert cluster.why() == {(light.task, "third", "me", "balance")}


@pytest.mark.parametrize("ready", [OTHER, THIRD], ids=lambda presence: presence.worker_id)
def test_a_sink_moves_to_whoever_has_one_prepared(ready):
    cluster = Cluster(kind="sink", tasks=1)
    for presence in (OTHER, THIRD):
        cluster.join(replace(presence, prepared=presence == ready))
    (task,) = cluster.of("me")
    cluster.feed(events.DrainRequested())
    cluster.obey(cluster.me)
    cluster.wait(1, OTHER, THIRD)
    assert cluster.of(ready.worker_id) == {task}


def test_who_has_one_prepared_says_so_and_takes_it_back():
    cluster = Cluster(resend_s=0.0)
    for ready in (True, False):
        cluster.take(events.AppendStatus)
        cluster.feed(events.StandbyChanged(ready))
        cluster.feed(events.Tick())
        said = [record for append in cluster.take(events.AppendStatus) for record in append.records]
        assert [record.value["prepared"] for record in said if record.key == "worker/me"] == [ready]
        assert cluster.state.status.presence["me"].prepared is ready
