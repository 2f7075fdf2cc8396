"""One herd that leads: the test commits what it writes and speaks for everybody else."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator.api import Term
from cdcworker.coordinator.core import events, state_machine
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.memory import MemoryTopic
from cdcworker.coordinator.model import Presence

ME = Presence("me", "b1", "http://me", "1", "p")
OTHER = Presence("other", "b2", "http://other", "1", "p")
TERM = Term(b"proof", 1)


class Driver:
    """Feeds one herd by hand; the log is a topic that the test commits to."""

    def __init__(self, *log):
        self.state = state_machine.initial(ME)
        self.now = 100.0
        self.topic = MemoryTopic()
        self.topic.append(log)
        self.read = 0
        self.feed(events.ConfigRecords(tuple(self.unread()), replay=True))
        self.feed(events.StatusRecords((presence_record(ME), lease_record("me", "b1", 1))))
        self.feed(events.Started())

    def unread(self):
        records = self.topic.since(self.read)
        self.read = self.topic.end
        return records

    def feed(self, event):
        self.state, commands = state_machine.step(self.state, event, events.Now(self.now, round(self.now * 1000)))
        return list(commands)

    def commit(self, write):
        """The write happens, and the herd reads the log."""
        self.topic.append(write.records)
        return self.feed(events.ConfigRecords(tuple(self.unread())))

    def lead(self):
        assert of(self.feed(events.TermChanged(TERM)), events.Claim)
        (write,) = of(self.feed(events.Claimed()), events.WriteLog)
        return self.commit(write)

    def settle(self, commands):
        """Commit whatever the leader writes until it writes nothing more."""
        out = list(commands)
        while writes := of(commands, events.WriteLog):
            commands = self.commit(writes[0])
            out += commands
        return out

    def status(self, *records):
        return self.feed(events.StatusRecords(records))


def of(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def keys(write):
    return [record.key for record in write.records]


def e(record, epoch):
    return replace(record, headers={"e": str(epoch)})
