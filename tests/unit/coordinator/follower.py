"""One herd that leads nothing: the test writes the log that it follows and speaks for its task processes."""

from __future__ import annotations

from cdcworker.coordinator import events as ev
from cdcworker.coordinator import herd
from cdcworker.coordinator.model import AssignedTask, Assignment, Connector, Presence, TaskSet
from cdcworker.coordinator.state import assignment_record, connector_record, task_set_record
from cdcworker.coordinator.status import lease_record, presence_record

ME = Presence("me", "b1", "http://me", "1", "p")
CONNECTOR = Connector("c", "i", 1, {"a": "1", "b": "2"}, "RUNNING", "source")
TASKS = TaskSet("i", 1, ({"b": "3"}, {"b": "4"}), task_epoch=1)
ENTRY = AssignedTask("c", "i", 0, 2)
TRANSIENT = {"code": "x.y", "kind": "transient", "message": "m"}
CONFIG = {"code": "x.z", "kind": "config", "message": "m"}


class Driver:
    def __init__(self, *replayed):
        self.state = herd.initial(ME)
        self.now = 100.0
        self.offset = 0
        self.config(connector_record(CONNECTOR), task_set_record("c", TASKS), *replayed, replay=True)
        self.told(ev.StatusRecords((presence_record(ME), lease_record("me", "b1", 1))))
        self.told(ev.Started())
        self.told(ev.LeaseAcked(self.now))

    def told(self, event):
        self.state, commands = herd.step(self.state, event, ev.Now(self.now, round(self.now * 1000)))
        return list(commands)

    def config(self, *records, replay=False):
        return self.told(ev.ConfigRecords(records, replay=replay))

    def assigned(self, *entries, boot_id="b1", revoke=()):
        return self.config(assignment_record("me", Assignment(boot_id, entries, revoke)))

    def running(self):
        assert of(self.assigned(ENTRY), ev.StartTask)
        return self.told(ev.TaskReport(ENTRY, "RUNNING"))

    def fails(self, error, code=1):
        self.told(ev.TaskReport(ENTRY, "FAILED", error))
        return self.told(ev.TaskExited(ENTRY, code))

    def wait(self, seconds):
        """Time passes while leases are acknowledged; returns what was asked of the driver, and when."""
        out, until = [], self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.5
            commands = self.told(ev.LeaseAcked(self.now)) + self.told(ev.Tick())
            out += [(self.now, c) for c in commands if not isinstance(c, ev.RenewLease)]
        return out

    def reported(self):
        report = self.state.work.reports.get(ENTRY.id)
        return report.status if report else None


def of(commands, kind):
    return [command for command in commands if isinstance(command, kind)]
