"""When a follower takes the leader out of the election: two signs, turns, and pauses after a mistake."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from cdcworker.coordinator.api import Term
from cdcworker.coordinator.core import events, leader_loss, state_machine
from cdcworker.coordinator.log.config_fold import leader_record, tombstone
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.model import Leader, Presence

from .follower_herd import of

ME = Presence("me", "b1", "http://me", "1", "p")
OTHER = Presence("other", "b2", "http://other", "1", "p")
EARLIER = Presence("a", "b3", "http://a", "1", "p")
LEADER = Leader(1, "other", "b2", "http://other", 7, "member-of-other")
TICK_S = 0.1
LEASE_EVERY = 6
SESSION_S = 10.0


class Follower:
    """A follower that reads its own lease, and those of the others as long as they live."""

    def __init__(self, leader: Leader = LEADER, *others: Presence) -> None:
        self.state = state_machine.initial(ME)
        self.now = 100.0
        self.count = 0
        self.alive = [ME, OTHER, *others]
        self.commands: list = []
        self.feed(events.ConfigRecords((replace(leader_record(leader), headers={"e": "1"}),), replay=True))
        self.feed(events.StatusRecords(tuple(presence_record(one) for one in self.alive)))
        self.feed(events.Started())
        self.wait(2.0)

    def feed(self, event) -> list:
        self.state, commands = state_machine.step(self.state, event, events.Now(self.now, round(self.now * 1000)))
        self.commands += commands
        return list(commands)

    def wait(self, seconds: float) -> list[events.RemoveLeader]:
        """Lets time pass and returns the removals that were asked for."""
        self.commands = []
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.count += 1
            if self.count % LEASE_EVERY == 0:
                self.renew()
            self.feed(events.Tick())
        return of(self.commands, events.RemoveLeader)

    def renew(self) -> None:
        records = tuple(lease_record(one.worker_id, one.boot_id, self.count) for one in self.alive)
        self.feed(events.StatusRecords(records))

    def die(self, one: Presence = OTHER) -> None:
        self.alive.remove(one)

    def refuse(self) -> list[events.RemoveLeader]:
        return of(self.feed(events.WorkerProbed("other", "b2", "gone")), events.RemoveLeader)

    def lost(self) -> list[events.RemoveLeader]:
        """The leader dies and its address refuses."""
        self.die()
        assert not self.wait(2.7)
        return self.refuse()

    def err(self) -> None:
        """The leader was not gone: its lease advances."""
        self.alive.append(OTHER)
        self.renew()


def test_a_leader_that_is_silent_and_refuses_is_taken_out_by_its_member_id():
    assert Follower().lost() == [events.RemoveLeader(LEADER)]


def test_a_silent_leader_whose_address_does_not_refuse_stays():
    follower = Follower()
    follower.die()
    for _ in range(20):
        assert not follower.wait(1.0)
        assert not of(follower.feed(events.WorkerProbed("other", "b2", "unknown")), events.RemoveLeader)


def test_a_leader_that_refuses_and_whose_lease_advances_stays():
    follower = Follower()
    for _ in range(20):
        assert not follower.wait(1.0)
        assert not follower.refuse()


def test_a_lease_that_advances_after_the_verdict_keeps_the_leader():
    follower = Follower()
    follower.lost()
    follower.err()
    assert not follower.wait(1.5)


@pytest.mark.parametrize(
    "leader", [replace(LEADER, member=""), Leader(1, "me", "b1", "http://me", 7, "mine")], ids=["no member", "itself"]
)
def test_a_leader_of_an_older_version_and_the_own_process_are_never_taken_out(leader):
    follower = Follower(leader)
    assert not follower.lost()
    assert not follower.wait(15.0)


def test_a_follower_that_does_not_read_its_own_lease_judges_nobody():
    follower = Follower()
    follower.die()
    follower.wait(2.7)
    follower.alive.clear()
    follower.wait(2.5)
    assert not follower.refuse()
    assert not follower.wait(5.0)


def test_a_follower_that_was_stopped_itself_first_watches_for_two_intervals():
    follower = Follower()
    follower.die()
    follower.wait(1.0)
    follower.now += 3.0
    follower.count += LEASE_EVERY
    follower.renew()
    assert of(follower.feed(events.Tick()), events.ProbeWorker), (
        "what it read when it woke makes the leader look silent"
    )
    assert not follower.refuse()
    assert not follower.wait(0.9)
    assert follower.wait(1.0) == [events.RemoveLeader(LEADER)]


def test_a_worker_that_is_elected_already_takes_nobody_out():
    follower = Follower()
    follower.feed(events.TermChanged(Term(b"proof", 8, member="mine")))
    assert not follower.lost()


def test_a_leader_that_has_left_by_itself_is_not_taken_out():
    follower = Follower()
    follower.die()
    follower.wait(2.7)
    follower.feed(events.StatusRecords((tombstone("worker/other"), tombstone("lease/other"))))
    assert not follower.refuse()


def test_it_is_asked_for_three_times_with_pauses_that_double():
    follower = Follower()
    began = [follower.now] if follower.lost() else []
    for _ in range(300):
        began += [follower.now] * len(follower.wait(TICK_S))
    assert len(began) == leader_loss.ASKS_MAX
    pauses = [after - before for before, after in pairwise(began)]
    assert pauses == [pytest.approx(pause, abs=0.2) for pause in (1.0, 2.0)]


def test_another_claim_ends_it():
    follower = Follower()
    follower.lost()
    claim = leader_record(Leader(2, "a", "b3", "http://a", 8, "member-of-a"))
    follower.feed(events.ConfigRecords((replace(claim, headers={"e": "2"}),)))
    assert not follower.wait(5.0)


def test_the_followers_ask_in_the_order_of_their_ids():
    follower = Follower(LEADER, EARLIER)
    assert not follower.lost()
    assert not follower.wait(0.3)
    assert follower.wait(0.4) == [events.RemoveLeader(LEADER)]


def test_a_worker_that_drains_is_not_waited_for():
    assert Follower(LEADER, replace(EARLIER, draining=True)).lost() == [events.RemoveLeader(LEADER)]


def test_each_mistake_doubles_the_pause_before_the_next_time():
    follower = Follower()
    pauses = []
    for _ in range(4):
        follower.lost()
        follower.wait(0.5)
        follower.err()
        follower.wait(TICK_S)
        pauses.append(round(follower.state.work.leader_loss.held_until - follower.now))
        follower.alive.remove(OTHER)
        follower.wait(3.0)
        assert not follower.refuse(), "it holds back"
        follower.err()
        follower.now = max(follower.now, follower.state.work.leader_loss.held_until) + 1.0
        follower.wait(3.0)
    assert pauses == [SESSION_S, 4 * SESSION_S, 16 * SESSION_S, 64 * SESSION_S], "each round errs twice"


def followed(follower: Follower) -> None:
    """Another worker leads, and deletes the lease of the one that it holds for gone."""
    claim = leader_record(Leader(2, "a", "b3", "http://a", 8, "member-of-a"))
    follower.feed(events.ConfigRecords((replace(claim, headers={"e": "2"}),)))
    follower.wait(TICK_S)
    follower.feed(events.StatusRecords((tombstone("worker/other"), tombstone("lease/other"))))
    follower.wait(1.0)


def test_a_mistake_of_another_follower_is_everybody_s():
    follower = Follower(LEADER, EARLIER)
    follower.die()
    followed(follower)
    assert follower.state.work.leader_loss.mistakes == 0, "a lease that was deleted is no sign of life"
    follower.alive.append(OTHER)
    follower.feed(events.StatusRecords((presence_record(OTHER),)))
    follower.wait(1.0)
    assert follower.state.work.leader_loss.mistakes == 1


def test_a_leader_that_drained_or_was_started_again_was_no_mistake():
    for change in ({"draining": True}, {"boot_id": "b9"}):
        follower = Follower(LEADER, EARLIER)
        follower.die()
        again = replace(OTHER, **change)
        follower.alive.append(again)
        follower.feed(events.StatusRecords((presence_record(again),)))
        follower.wait(1.0)
        followed(follower)
        follower.feed(events.StatusRecords((presence_record(again),)))
        follower.wait(1.0)
        assert follower.state.work.leader_loss.mistakes == 0


def test_a_leader_that_was_taken_out_and_leads_again_was_a_mistake_though_its_lease_stands():
    follower = Follower()
    assert follower.lost()
    again = leader_record(replace(LEADER, epoch=2, member="member-of-other-2"))
    follower.feed(events.ConfigRecords((replace(again, headers={"e": "2"}),)))
    assert not follower.wait(5.0)
    assert follower.state.work.leader_loss.mistakes == 1


def test_mistakes_are_forgotten_after_64_sessions():
    follower = Follower()
    follower.lost()
    follower.err()
    follower.wait(TICK_S)
    assert follower.state.work.leader_loss.mistakes == 1
    follower.now += 66 * SESSION_S
    follower.wait(3.0)
    assert follower.lost() == [events.RemoveLeader(LEADER)]
    follower.err()
    follower.wait(TICK_S)
    assert follower.state.work.leader_loss.mistakes == 1


def replaced(follower: Follower) -> list[events.ProbeWorker]:
    """The leader's machine has started another process before anybody missed the first one."""
    follower.die()
    again = replace(OTHER, boot_id="b9")
    follower.alive.append(again)
    follower.feed(events.StatusRecords((presence_record(again),)))
    follower.wait(1.0)
    return of(follower.commands, events.ProbeWorker)


def test_a_leader_that_another_process_has_replaced_is_probed_and_taken_out():
    follower = Follower()
    assert replaced(follower) == [events.ProbeWorker("other", "b2", "http://other")]
    assert follower.refuse() == [events.RemoveLeader(LEADER)]


def test_for_a_replaced_leader_too_it_is_asked_three_times_and_no_more():
    follower = Follower()
    replaced(follower)
    assert len(follower.refuse()) + len(follower.wait(40.0)) == leader_loss.ASKS_MAX


def test_a_leader_that_still_answers_beside_another_process_stays():
    follower = Follower()
    replaced(follower)
    assert not of(follower.feed(events.WorkerProbed("other", "b2", "unknown")), events.RemoveLeader)
    assert not of(follower.feed(events.WorkerProbed("other", "b9", "gone")), events.RemoveLeader)
    assert not follower.wait(5.0)
    assert len(of(follower.commands, events.ProbeWorker)) <= 1, "it is not probed without end"
