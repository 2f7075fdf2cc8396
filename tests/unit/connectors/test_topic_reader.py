"""Schemas that are not in the schema log, and a schema log that cannot be read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors import topic_reader
from cdcworker.connectors.topic_reader import SchemaReader
from cdcworker.schemas.errors import CdcError


class Log:
    """A reader of a log without records."""

    def __init__(self, *, at_end):
        self.at_end, self.reads = at_end, 0

    def read_soon(self, count, timeout_s):
        self.reads += 1
        return []

    def is_at_end(self):
        return self.at_end


def made(monkeypatch, *, at_end):
    reader = SchemaReader({}, "log")
    reader._reader = log = Log(at_end=at_end)
    now = [1_000.0]

    def monotonic():
        now[0] += 0.5
        return now[0]

    monkeypatch.setattr(topic_reader, "time", SimpleNamespace(monotonic=monotonic))
    return reader, log


def test_only_the_first_unknown_id_is_waited_for_long(monkeypatch):
    reader, log = made(monkeypatch, at_end=True)
    counts = []
    for id in range(3):
        with pytest.raises(CdcError) as caught:
            reader.stored(id)
        assert caught.value.code == "schema.unknown_id"
        counts.append(log.reads)
    assert counts[0] > 10
    assert counts[2] - counts[0] < 10


def test_no_id_is_unknown_while_the_log_cannot_be_read(monkeypatch):
    reader, _ = made(monkeypatch, at_end=False)
    with pytest.raises(CdcError) as caught:
        reader.stored(1)
    assert (caught.value.code, caught.value.kind) == ("sink.read_failed", "transient")
