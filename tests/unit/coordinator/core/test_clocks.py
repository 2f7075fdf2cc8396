"""No clock on the wall decides who is alive, when work moves, or when a task falls silent."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.config_fold import deadline_record
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.model import AssignedTask, Presence, ReturnDeadline

ME = Presence("me", "b1", "http://me", "1", "p")
OTHER = Presence("other", "b2", "http://other", "1", "p")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class Watch:
    """One herd whose clocks are set by hand."""

    def __init__(self) -> None:
        self.state = state_machine.initial(ME)
        self.mono, self.wall_ms, self.lease = 100.0, 1_700_000_000_000, 0
        self.commands: list[object] = []
        self.feed(events.ConfigRecords((), replay=True))
        self.feed(events.StatusRecords((presence_record(ME), presence_record(OTHER), lease_record("other", "b2", 1))))
        self.feed(events.Started())

    def feed(self, event) -> None:
        self.state, commands = state_machine.step(self.state, event, events.Now(self.mono, self.wall_ms))
        self.commands += commands

    def second(self, *records: LogRecord) -> None:
        """One second passes: the own lease is renewed and read back, with what others wrote."""
        self.mono += 1.0
        self.wall_ms += 1000
        self.lease += 1
        self.feed(events.StatusRecords((lease_record("me", "b1", self.lease), *records)))
        self.feed(events.LeaseAcked(self.mono))
        self.feed(events.Tick())

    @property
    def alive(self) -> set[str]:
        return set(state_machine.view(self.state, events.Now(self.mono, self.wall_ms)).workers)


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 10 * DAY_MS, -10 * DAY_MS])
def test_a_clock_that_is_set_buries_nobody(jump_ms):
    watch = Watch()
    for n in range(30):
        watch.second(lease_record("other", "b2", n + 2))
        if n == 10:
            watch.wall_ms += jump_ms
            watch.feed(events.Tick())
        assert watch.alive == {"me", "other"}
    assert not [command for command in watch.commands if isinstance(command, events.StopProducing | events.Leave)]


def test_a_clock_that_stands_still_keeps_nobody_alive():
    watch = Watch()
    for _ in range(12):
        watch.wall_ms -= 1000
        watch.second()
    assert watch.alive == {"me"}


def test_a_clock_that_jumps_to_and_fro_hides_no_death():
    watch = Watch()
    for n in range(12):
        watch.wall_ms += HOUR_MS if n % 2 else -HOUR_MS
        watch.second()
        assert ("other" in watch.alive) == (n <= 10), n


def test_a_deadline_that_takes_in_more_tasks_ends_when_it_would_have_ended():
    watch = Watch()
    entries = [AssignedTask("c", "i", n, 1) for n in range(2)]

    def written(boot_id, *tasks):
        record = deadline_record("worker/other", ReturnDeadline(boot_id, "crash", 10_000, tasks))
        watch.feed(events.ConfigRecords((record,)))
        return watch.state.lead.deadlines_seen["worker/other"].read_at

    begun = written("b2", entries[0])
    watch.second()
    watch.second()
    assert written("b2", *entries) == begun
    assert written("b3", entries[0]) == watch.mono, "another process that is lost has a deadline of its own"
