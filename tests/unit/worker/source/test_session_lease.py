"""A lease that lapses between two steps of a session: what was produced under it is not committed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.schemas.change import OutRecord, PollBatch
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.source.session import (
    LEASE_LAPSED,
    Counters,
    DeliverySession,
    RecordTargets,
    SessionParts,
    TransactionLimits,
)
from cdcworker.worker.source.topic_facts import TopicFacts

PLACE = RecordTargets("c", 0, "i", 1, "offsets", 0, "key", "watermark")


class Producer:
    """Notes what is asked of it; `when` is called at each call."""

    def __init__(self, when) -> None:
        self.opened_at = None
        self.calls: list[str] = []
        self._when = when

    def _note(self, name: str) -> None:
        self.calls.append(name)
        self._when(name)

    def begin(self):
        self.opened_at = 1.0
        self._note("begin")

    def produce(self, topic, key, value, partition, headers=None):
        self._note(f"produce {topic}")

    def serve(self):
        self._note("serve")

    def flush(self, timeout_s):
        self._note("flush")

    def commit(self):
        self._note("commit")


class Facts:
    def __call__(self, topic):
        return TopicFacts(1)

    def all(self, topics):
        return {topic: self(topic) for topic in topics}


@pytest.mark.parametrize("step", ["begin", "produce data", "serve", "produce offsets"])
def test_a_lease_that_lapses_at_any_step_before_the_commit_stops_it(step):
    leased, acked = [True], []

    def when(name):
        leased[0] = leased[0] and name != step

    producer = Producer(when)
    tools = SessionParts(
        producer=producer,
        task=SimpleNamespace(ack=acked.append),
        encoder=SimpleNamespace(encode=lambda changes: []),
        topics=Facts(),
        control=SimpleNamespace(leased=lambda: leased[0]),
        counters=Counters(),
        on_tick=lambda session: None,
        on_commit=lambda: None,
        clock=lambda: 1.0,
    )
    session = DeliverySession(tools, PLACE, TransactionLimits(), None)
    batch = PollBatch(records=(OutRecord("data", None, b"v", [], None),), position={"lsn": 1}, idle=True)
    with pytest.raises(CdcError) as caught:
        session.take(batch)
    assert caught.value.code == LEASE_LAPSED
    assert step in producer.calls
    assert "commit" not in producer.calls
    assert not acked
    assert session.committed is None
