"""One herd that leads nothing: the test writes the log that it follows and speaks for its task processes."""

from __future__ import annotations

from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, task_set_record
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Presence, TaskSet

ME = Presence("me", "b1", "http://me", "1", "p")
CONNECTOR = Connector("c", "i", 1, {"a": "1", "b": "2"}, "RUNNING", "source")
TASKS = TaskSet("i", 1, ({"b": "3"}, {"b": "4"}), task_epoch=1)
ENTRY = AssignedTask("c", "i", 0, 2)
TRANSIENT = {"code": "x.y", "kind": "transient", "message": "m"}
CONFIG = {"code": "x.z", "kind": "config", "message": "m"}


class Driver:
    def __init__(self, *replayed):
        self.state = state_machine.initial(ME)
        self.now = 100.0
        self.offset = 0
        self.config(connector_record(CONNECTOR), task_set_record("c", TASKS), *replayed, replay=True)
        self.feed(events.StatusRecords((presence_record(ME), lease_record("me", "b1", 1))))
        self.feed(events.Started())
        self.feed(events.LeaseAcked(self.now))

    def feed(self, event):
        self.state, commands = state_machine.step(self.state, event, events.Now(self.now, round(self.now * 1000)))
        return list(commands)

    def config(self, *records, replay=False):
        return self.feed(events.ConfigRecords(records, replay=replay))

    def assigned(self, *entries, boot_id="b1", revoke=()):
        return self.config(assignment_record("me", Assignment(boot_id, entries, revoke)))

    def running(self):
        assert of(self.assigned(ENTRY), events.StartTask)
        return self.feed(events.TaskReport(ENTRY, "RUNNING"))

    def fails(self, error, code=1):
        self.feed(events.TaskReport(ENTRY, "FAILED", error))
        return self.feed(events.TaskExited(ENTRY, code))

    def wait(self, seconds):
        """Time passes while leases are acknowledged; returns what was asked of the driver, and when."""
        out, until = [], self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.5
            commands = self.feed(events.LeaseAcked(self.now)) + self.feed(events.Tick())
            out += [(self.now, c) for c in commands if not isinstance(c, events.RenewLease)]
        return out

    def reported(self):
        report = self.state.work.reports.get(ENTRY.id)
        return report.status if report else None


def of(commands, kind):
    return [command for command in commands if isinstance(command, kind)]
