"""When held tasks move for an even spread: not while a worker has just been lost, at once when one has joined."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator import events as ev
from cdcworker.coordinator.crew import Crew, may_level, mustered
from cdcworker.coordinator.model import TaskStatus
from cdcworker.coordinator.status import task_status_record

from .pair import OTHER, Cluster

THIRD = replace(OTHER, worker_id="third", boot_id="b3")
A, B, C = ("a", "1"), ("b", "1"), ("c", "1")


def test_a_new_leader_takes_somebody_to_be_missing():
    assert mustered(Crew(), [A, B], 5.0) == Crew(frozenset({A, B}), 5.0)


def test_the_crew_is_short_from_the_last_loss_on():
    crew = mustered(mustered(Crew(frozenset({A, B, C})), [A, B], 5.0), [A, B], 6.0)
    assert crew.short_since == 5.0
    assert mustered(crew, [A], 7.0).short_since == 7.0
    assert not may_level(crew, 30.0, 34.9)
    assert may_level(crew, 30.0, 35.0)


def test_whoever_joins_makes_it_complete_a_new_process_of_the_same_name_too():
    for joined in ([A, B, C], [A, ("b", "2")]):
        crew = mustered(Crew(frozenset({A, B}), 5.0), joined, 6.0)
        assert may_level(crew, 30.0, 6.0)


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
    cluster.told(ev.DrainRequested())
    cluster.obey(cluster.me)
    cluster.wait(1, OTHER, THIRD)
    assert cluster.of(ready.worker_id) == {task}


def test_who_has_one_prepared_says_so_and_takes_it_back():
    cluster = Cluster(resend_s=0.0)
    for ready in (True, False):
        cluster.take(ev.AppendStatus)
        cluster.told(ev.StandbyChanged(ready))
        cluster.told(ev.Tick())
        said = [record for append in cluster.take(ev.AppendStatus) for record in append.records]
        assert [record.value["prepared"] for record in said if record.key == "worker/me"] == [ready]
        assert cluster.state.status.presence["me"].prepared is ready
