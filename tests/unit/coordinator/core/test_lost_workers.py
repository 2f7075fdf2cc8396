"""Workers that vanish, restart or are probed: who gets their tasks, when, and what the journal says about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.config_fold import tombstone
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.model import Presence, Restart

from .two_workers import ME, OTHER, TASKS, Cluster

# --- deadlines ------------------------------------------------------------------------------------------------------


def test_lost_tasks_move_when_the_lease_lapses_and_the_journal_says_so(shared):
    cluster = shared()
    theirs = {task.task for task in cluster.of("other")}
    cluster.wait(10)
    assert len(cluster.of("other")) == 2
    cluster.wait(1)
    assert cluster.of("me") == set(TASKS)
    assert cluster.why() == {(task, "other", "me", "lease lapsed") for task in theirs}
    assert not cluster.take(events.FenceIds)


def test_a_crash_delay_keeps_lost_tasks_for_a_worker_that_comes_back_in_time(shared):
    cluster = shared(crash_delay_s=8.0)
    theirs = cluster.of("other")
    cluster.wait(11)
    assert cluster.of("other") == set()
    assert len(cluster.of("me")) == 2
    statuses = cluster.view().statuses
    assert {statuses[task].error["code"] for task in theirs} == {"coordinator.task_waits"}
    assert 0 < cluster.view().waiting_s[min(theirs)] <= 8
    back = replace(OTHER, boot_id="b3")
    cluster.join(back)
    assert cluster.of("other") == theirs
    assert cluster.why() == {(task.task, "other", "other", "worker returned") for task in theirs}
    assert not cluster.state.cluster.deadlines


def test_lost_tasks_that_wait_are_fenced_at_once_and_move_when_the_delay_is_over(shared):
    cluster = shared(crash_delay_s=5.0)
    theirs = cluster.of("other")
    while not cluster.state.cluster.deadlines:
        cluster.now += 0.5
        cluster.lease(ME)
        cluster.feed(events.Tick())
    (fence,) = cluster.take(events.FenceIds)
    assert set(fence.tasks) == theirs
    cluster.feed(events.FencesDone(fence.tasks))
    cluster.wait(4.5)
    assert len(cluster.of("me")) == 2
    cluster.wait(1.5)
    assert cluster.of("me") == set(TASKS)
    assert {why for *_, why in cluster.why()} == {"worker did not return in time"}


def test_a_worker_that_restarts_within_its_lease_gets_its_own_tasks_back(shared):
    cluster = shared()
    theirs = cluster.of("other")
    cluster.join(replace(OTHER, boot_id="b3"))
    assert cluster.of("other") == theirs
    assert cluster.why() == {(task.task, "other", "other", "worker restarted") for task in theirs}
    assert not cluster.take(events.FenceIds), "their start fences them"


def test_an_announced_restart_reserves_the_tasks_and_the_next_process_takes_them_up(shared):
    cluster = shared()
    theirs = cluster.of("other")
    going = replace(OTHER, draining=True, returns=True)
    cluster.append(presence_record(going))
    assert cluster.of("other") == set()
    assert {entry.id for entry in cluster.state.cluster.assignments["other"].revoke} == theirs
    assert cluster.why() == {(task.task, "other", "", "restart announced") for task in theirs}
    cluster.obey(going)
    assert "other" not in cluster.state.cluster.assignments
    cluster.append(tombstone("worker/other"), tombstone("lease/other"))
    cluster.wait(40)
    assert len(cluster.of("me")) == 2
    assert not cluster.take(events.FenceIds), "they stopped by themselves"
    cluster.join(replace(OTHER, boot_id="b3"))
    assert cluster.of("other") == theirs


def test_a_restart_that_is_asked_for_meanwhile_names_the_starts_before_it(shared):
    cluster = shared()
    before = max(entry.task_epoch for a in cluster.state.cluster.assignments.values() for entry in a.tasks)
    cluster.append(presence_record(replace(OTHER, draining=True, returns=True)))
    cluster.obey(OTHER)
    cluster.feed(events.RequestArrived("r", Restart("c", include_tasks=True)))
    (command,) = cluster.state.cluster.commands.values()
    assert command.scope["after"] == before
    back = replace(OTHER, boot_id="b3")
    cluster.join(back)
    assert min(entry.task_epoch for entry in cluster.state.cluster.assignments["other"].tasks) > before


def test_an_announced_restart_that_never_ends_is_not_waited_for_for_ever(shared):
    cluster = shared()
    going = replace(OTHER, draining=True, returns=True)
    cluster.append(presence_record(going))
    cluster.obey(going)
    cluster.append(tombstone("worker/other"), tombstone("lease/other"))
    cluster.wait(59)
    assert len(cluster.of("me")) == 2
    cluster.wait(2)
    assert cluster.of("me") == set(TASKS)


def test_a_scaled_down_worker_hands_over_at_once(shared):
    cluster = shared()
    going = replace(OTHER, draining=True)
    cluster.append(presence_record(going))
    cluster.obey(going)
    assert cluster.of("me") == set(TASKS)
    assert {why for *_, why in cluster.why()} == {"drain"}
    assert not cluster.state.cluster.deadlines


def test_a_scale_down_waits_for_nothing_whatever_delay_a_crash_has(shared):
    cluster = shared(crash_delay_s=8.0, restart_delay_s=60.0)
    going = replace(OTHER, draining=True)
    cluster.append(presence_record(going))
    cluster.obey(going)
    cluster.append(tombstone("worker/other"), tombstone("lease/other"))
    assert cluster.of("me") == set(TASKS)
    assert not cluster.state.cluster.deadlines


def test_what_a_worker_that_left_could_not_hand_over_moves_at_once(shared):
    """There was no leader while it drained."""
    cluster = shared(crash_delay_s=8.0)
    theirs = cluster.of("other")
    cluster.append(tombstone("worker/other"), tombstone("lease/other"))
    assert cluster.of("me") == set(TASKS)
    assert cluster.why() == {(task.task, "other", "me", "worker left") for task in theirs}
    assert not cluster.state.cluster.deadlines


def test_a_deadline_goes_on_under_a_new_leader_by_its_own_clock(shared):
    cluster = shared()
    going = replace(OTHER, draining=True, returns=True)
    cluster.append(presence_record(going))
    cluster.obey(going)
    cluster.append(tombstone("worker/other"), tombstone("lease/other"))
    cluster.wait(50)
    theirs = set(TASKS) - cluster.of("me")
    cluster.boot(Presence("me", "b9", "http://me", "1", "p"))
    cluster.now += 100_000.0  # another machine's clock says nothing
    cluster.boot(Presence("me", "b10", "http://me", "1", "p"))
    cluster.wait(50)
    assert set(TASKS) - cluster.of("me") == theirs, "counted from when this process read it"
    cluster.wait(11)
    assert cluster.of("me") == set(TASKS)


def test_a_follower_ages_deadlines_before_it_leads(shared):
    cluster = shared()
    follower = state_machine.initial(Presence("third", "b7", "http://third", "1", "p"), cluster.settings)
    going = replace(OTHER, draining=True, returns=True)
    cluster.append(presence_record(going))
    records = events.ConfigRecords(tuple(cluster.configs.records), replay=True)
    follower, _ = state_machine.step(follower, records, events.Now(500.0, 0))
    assert max(state_machine.view(follower, events.Now(530.0, 0)).waiting_s.values()) == pytest.approx(30.0)


def test_while_an_older_version_is_there_nothing_is_written_that_it_does_not_act_on(shared):
    cluster = shared(crash_delay_s=8.0)
    cluster.append(presence_record(replace(OTHER, protocol=1)))
    before = cluster.view().journal[0].seq
    old = Presence("third", "b7", "http://third", "1", "p", protocol=1)
    cluster.join(old)
    cluster.wait(12, old)
    assert cluster.of("other") == set()
    assert cluster.of("me") | cluster.of("third") == set(TASKS)
    assert not cluster.state.cluster.deadlines
    assert not cluster.state.cluster.fenced
    assert cluster.view().journal[0].seq == before


# --- probes ---------------------------------------------------------------------------------------------------------


def silent(cluster):
    """Until the other is probed."""
    for _ in range(10):
        cluster.wait(0.5)
        if probes := cluster.take(events.ProbeWorker):
            return probes
    raise AssertionError("no probe")


def test_a_silent_worker_is_probed_after_three_lease_intervals(shared):
    cluster = shared()
    cluster.wait(5, OTHER)
    assert not cluster.take(events.ProbeWorker)
    began = cluster.now
    assert silent(cluster) == [events.ProbeWorker("other", "b2", "http://other")]
    assert 2.0 <= cluster.now - began <= 3.0


def test_a_worker_that_was_probed_gone_loses_its_tasks_at_once(shared):
    cluster = shared()
    silent(cluster)
    cluster.feed(events.WorkerProbed("other", "b2", "gone"))
    assert cluster.of("me") == set(TASKS)
    assert {why for *_, why in cluster.why()} == {"worker probed gone"}
    assert "other" not in cluster.view().workers


def test_a_verdict_of_unknown_changes_nothing_and_is_asked_again(shared):
    cluster = shared()
    silent(cluster)
    cluster.feed(events.WorkerProbed("other", "b2", "unknown"))
    assert len(cluster.of("other")) == 2
    assert silent(cluster)


def test_a_lease_that_advances_outweighs_the_verdict(shared):
    cluster = shared()
    silent(cluster)
    cluster.lease(OTHER)
    cluster.feed(events.WorkerProbed("other", "b2", "gone"))
    assert len(cluster.of("other")) == 2, "the verdict is older than the sign of life"
    silent(cluster)
    cluster.feed(events.WorkerProbed("other", "b2", "gone"))
    assert "other" not in cluster.view().workers
    cluster.append(presence_record(OTHER))
    cluster.lease(OTHER)
    assert "other" in cluster.view().workers


def test_a_verdict_about_another_process_says_nothing(shared):
    cluster = shared()
    silent(cluster)
    cluster.feed(events.WorkerProbed("other", "b0", "gone"))
    cluster.feed(events.WorkerProbed("stranger", "b0", "gone"))
    assert len(cluster.of("other")) == 2


def test_while_the_own_lease_does_not_advance_nobody_looks_silent(shared):
    cluster = shared()
    for _ in range(40):
        cluster.now += 0.5
        cluster.feed(events.Tick())
    assert not cluster.take(events.ProbeWorker)


# --- plugins and weights --------------------------------------------------------------------------------------------


def test_tasks_go_only_where_their_plugin_is():
    cluster = Cluster(replace(ME, plugins={"postgres": "1"}), {"connector.class": "datagen"})
    assert cluster.of("me") == set()
    errors = {status.error["code"] for status in cluster.view().statuses.values()}
    assert errors == {"coordinator.no_plugin"}
    cluster.join(replace(OTHER, plugins={"datagen": "1"}))
    assert cluster.of("other") == set(TASKS)


def test_a_worker_that_lists_no_plugins_has_those_that_ship_and_no_others():
    shipped = Cluster(replace(ME, plugins={"datagen": "1"}), {"connector.class": "datagen"})
    shipped.join(replace(OTHER, plugins={}))
    assert len(shipped.of("other")) == 2
    installed = Cluster(replace(ME, plugins={"orders": "acme-orders==1"}), {"connector.class": "orders"})
    installed.join(replace(OTHER, plugins={}))
    assert installed.of("me") == set(TASKS)


def test_tasks_go_only_where_the_transforms_of_other_distributions_are():
    config = {"connector.class": "datagen", "transforms": "a", "transforms.a.type": "mask-card"}
    cluster = Cluster(replace(ME, plugins={"datagen": "1"}), config)
    cluster.join(replace(OTHER, plugins={"datagen": "1", "transform:mask-card": "acme-masks==1"}))
    assert cluster.of("other") == set(TASKS)
    assert cluster.of("me") == set()


def test_a_worker_with_twice_the_capacity_gets_twice_the_tasks():
    cluster = Cluster(replace(ME, capacity=3))
    cluster.join()
    assert (len(cluster.of("me")), len(cluster.of("other"))) == (3, 1)


def test_without_a_worker_that_takes_tasks_they_say_so(shared):
    cluster = shared()
    cluster.wait(11)
    cluster.feed(events.DrainRequested())
    cluster.obey(ME)
    errors = {(status.error or {}).get("code") for status in cluster.view().statuses.values()}
    assert errors == {"coordinator.no_worker"}


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "code"),
    [
        ({"protocol": 1}, {"floor": 2}, "coordinator.protocol_too_old"),
        ({"floor": 2}, {"protocol": 1}, "coordinator.peers_too_old"),
    ],
)
def test_a_version_that_does_not_fit_a_live_worker_refuses_to_start(mine, theirs, code):
    state = state_machine.initial(replace(ME, **mine))
    theirs = replace(OTHER, **theirs)
    out = []

    def feed(event, now):
        nonlocal state
        state, commands = state_machine.step(state, event, events.Now(now, 0))
        out.extend(commands)

    feed(events.StatusRecords((presence_record(theirs), lease_record("other", "b2", 5))), 0.0)
    feed(events.Started(), 0.0)
    assert not [c for c in out if isinstance(c, events.AppendStatus)], (
        "it is not there before it is known whether it may"
    )
    for n in range(1, 4):
        feed(events.StatusRecords((lease_record("me", "b1", n), lease_record("other", "b2", 5 + n))), float(n))
        feed(events.Tick(), float(n))
    (leave,) = [c for c in out if isinstance(c, events.Leave)]
    assert leave.error["code"] == code


def test_the_presence_of_a_dead_worker_of_another_version_keeps_nobody_away():
    state = state_machine.initial(replace(ME, floor=2))
    dead = replace(OTHER, protocol=1)
    appended = []
    records = (presence_record(dead), lease_record("other", "b2", 5))
    state, _ = state_machine.step(state, events.StatusRecords(records), events.Now(0.0, 0))
    state, _ = state_machine.step(state, events.Started(), events.Now(0.0, 0))
    for n in range(1, 15):
        state, _ = state_machine.step(
            state, events.StatusRecords((lease_record("me", "b1", n),)), events.Now(float(n), 0)
        )
        state, commands = state_machine.step(state, events.Tick(), events.Now(float(n), 0))
        appended += [r.key for c in commands if isinstance(c, events.AppendStatus) for r in c.records]
        assert not [c for c in commands if isinstance(c, events.Leave)]
    assert "worker/me" in appended
