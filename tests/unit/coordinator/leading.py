"""One herd that leads: the test commits what it writes and speaks for everybody else."""

from __future__ import annotations

from dataclasses import replace

from cdcworker.coordinator import events as ev
from cdcworker.coordinator import herd
from cdcworker.coordinator.api import Term
from cdcworker.coordinator.memory import MemoryTopic
from cdcworker.coordinator.model import Presence
from cdcworker.coordinator.status import lease_record, presence_record

ME = Presence("me", "b1", "http://me", "1", "p")
OTHER = Presence("other", "b2", "http://other", "1", "p")
TERM = Term(b"proof", 1)


class Driver:
    """Feeds one herd by hand; the log is a topic that the test commits to."""

    def __init__(self, *log):
        self.state = herd.initial(ME)
        self.now = 100.0
        self.topic = MemoryTopic()
        self.topic.append(log)
        self.read = 0
        self.told(ev.ConfigRecords(tuple(self.unread()), replay=True))
        self.told(ev.StatusRecords((presence_record(ME), lease_record("me", "b1", 1))))
        self.told(ev.Started())

    def unread(self):
        records = self.topic.since(self.read)
        self.read = self.topic.end
        return records

    def told(self, event):
        self.state, commands = herd.step(self.state, event, ev.Now(self.now, round(self.now * 1000)))
        return list(commands)

    def commit(self, write):
        """The write happens, and the herd reads the log."""
        self.topic.append(write.records)
        return self.told(ev.ConfigRecords(tuple(self.unread())))

    def lead(self):
        assert of(self.told(ev.TermChanged(TERM)), ev.Claim)
        (write,) = of(self.told(ev.Claimed()), ev.WriteLog)
        return self.commit(write)

    def settle(self, commands):
        """Commit whatever the leader writes until it writes nothing more."""
        out = list(commands)
        while writes := of(commands, ev.WriteLog):
            commands = self.commit(writes[0])
            out += commands
        return out

    def status(self, *records):
        return self.told(ev.StatusRecords(records))


def of(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def keys(write):
    return [record.key for record in write.records]


def e(record, epoch):
    return replace(record, headers={"e": str(epoch)})
