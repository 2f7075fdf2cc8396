"""A leader, and another worker whose records the test writes."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator.api import Term
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.core.herd_state import HerdSettings
from cdcworker.coordinator.log.config_fold import connector_record, leader_record, task_set_record
from cdcworker.coordinator.log.status_fold import lease_record, presence_record, task_status_record
from cdcworker.coordinator.memory import MemoryTopic
from cdcworker.coordinator.model import Connector, Leader, Presence, TaskId, TaskSet, TaskStatus

ME = Presence("me", "b1", "http://me", "1", "p")
OTHER = Presence("other", "b2", "http://other", "1", "p")
TASKS = [TaskId("c", n) for n in range(4)]


class Cluster:
    """A leader, and the other worker as the leader sees it: its records are written by the test."""

    def __init__(self, me=ME, config=None, kind="source", tasks=4, **settings):
        self.settings = HerdSettings(**settings)
        self.now = 100.0
        self.leases = {}
        self.configs, self.status = MemoryTopic(), MemoryTopic()
        connector = Connector("c", "i", 1, config or {}, "RUNNING", kind)
        records = [leader_record(Leader(1, "x", "bx", "u")), connector_record(connector)]
        self.configs.append([replace(r, headers={"e": "1"}) for r in records])
        tasks = task_set_record("c", TaskSet("i", 1, ({},) * tasks, task_epoch=1))
        self.configs.append([replace(tasks, headers={"e": "1"})])
        self.boot(me)

    def boot(self, me):
        """This process, or one that takes over: both read the logs from the start."""
        self.me, self.out = me, []
        self.state = state_machine.initial(me, self.settings)
        self.read_configs = self.configs.end
        self.feed(events.ConfigRecords(tuple(self.configs.records), replay=True))
        self.feed(events.StatusRecords(tuple(self.status.records)))
        self.feed(events.Started())
        self.lease(me)
        self.feed(events.TermChanged(Term(b"proof", 1)))
        self.feed(events.Claimed())

    def feed(self, event):
        self.state, commands = state_machine.step(self.state, event, events.Now(self.now, round(self.now * 1000)))
        self.out += commands
        for command in commands:
            if isinstance(command, events.WriteLog):
                self.configs.append(command.records)
            if isinstance(command, events.AppendStatus):
                self.append(*command.records)
        fresh = self.configs.since(self.read_configs)
        self.read_configs = self.configs.end
        if fresh:
            self.feed(events.ConfigRecords(tuple(fresh)))

    def append(self, *records):
        start = self.status.end
        self.status.append(records)
        self.feed(events.StatusRecords(tuple(self.status.since(start))))

    def lease(self, presence):
        count = self.leases[presence.boot_id] = self.leases.get(presence.boot_id, 0) + 1
        self.append(lease_record(presence.worker_id, presence.boot_id, count))

    def join(self, presence=OTHER):
        self.append(presence_record(presence))
        self.lease(presence)
        self.obey(self.me)

    def obey(self, *workers):
        """These workers stop what they are to let go."""
        for presence in workers:
            assignment = self.state.cluster.assignments.get(presence.worker_id)
            for entry in assignment.revoke if assignment else ():
                who = presence.worker_id
                self.append(task_status_record(TaskStatus("c", entry.task, "STOPPED", who, entry.task_epoch, 1)))

    def wait(self, seconds, *alive):
        """Time passes; these and this process renew their leases, and fences are carried out."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.5
            for presence in (self.me, *alive):
                self.lease(presence)
            self.feed(events.LeaseAcked(self.now))
            self.feed(events.Tick())
            for command in self.take(events.FenceIds):
                self.feed(events.FencesDone(command.tasks))

    def take(self, kind):
        found = [command for command in self.out if isinstance(command, kind)]
        self.out = [command for command in self.out if not isinstance(command, kind)]
        return found

    def of(self, worker):
        assignment = self.state.cluster.assignments.get(worker)
        return {entry.id for entry in assignment.tasks} if assignment else set()

    def why(self):
        """The last decision: (task, from, to, why)."""
        entry = self.view().journal[0]
        return {(m.task, m.source, m.target, m.why) for m in entry.moves}

    def view(self):
        return state_machine.view(self.state, events.Now(self.now, 0))
