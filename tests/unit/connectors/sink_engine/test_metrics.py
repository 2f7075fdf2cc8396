"""What a sink task counts of its batches."""

from __future__ import annotations

import numpy as np
import pytest
from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.paused_tables import PausedTables, summed
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.telemetry.latency import BOUNDS_S
from cdcworker.schemas.errors import CdcError

from tests.change_streams import NARROW, Stream, arrow

COUNTS = {"rows": 1, "changes": 2, "orphans": 0, "tables": {"t": 1}}


def batch(*sizes: int) -> SinkBatch:
    places = {("t", n): (100, 100 + size) for n, size in enumerate(sizes)}
    return SinkBatch(tables=(), offsets=places, batch_id=1, applied=dict.fromkeys(places, (b"", 1)))


@pytest.mark.parametrize(
    ("sizes", "limits", "reason"),
    [
        ((10,), (100, 100), "trigger"),
        ((100,), (100, 100), "records"),
        # Spark deals a limit out to the partitions and rounds down.
        ((33, 33, 33), (100, 100), "records"),
        ((33, 33, 20), (100, 100), "trigger"),
        ((40,), (40, 100), "bytes"),
        ((30,), (40, 100), "trigger"),
    ],
)
def test_what_cut_a_batch_is_counted(sizes, limits, reason):
    metrics = SinkMetrics()
    metrics.limits = limits
    for times in (1, 2):
        metrics.add(COUNTS, batch(*sizes), {}, 2)
        assert metrics.numbers()["flushes"] == {reason: times}


def test_how_late_a_batch_is_counts_from_the_commit_of_its_newest_change():
    metrics = SinkMetrics()
    metrics.add(COUNTS, SinkBatch((), {("t", 0): (0, 1)}, 1, {("t", 0): (b"", 1_000), ("t", 1): (b"", 2_000)}), {}, 1)
    assert metrics.lag_s > 1e9


@pytest.mark.parametrize("log", [False, True])
def test_every_change_of_a_batch_counts_with_the_time_since_its_own_commit(log, monkeypatch):
    """Of one key twenty changes become one row: all have waited. What a snapshot loaded has not."""
    stream = Stream()
    for number in range(20):
        stream.insert(NARROW, (1, number, "a", "b"))
    stream.delete(NARROW, (1,))
    stream.insert(NARROW, (2, 0, "loaded", "b"), "r")
    built = stream.assembler(log).build(arrow(stream.records), {}, 1)
    newest_s = max(ts for _, ts in built.applied.values()) / 1000
    monkeypatch.setattr("cdcworker.connectors.sink_engine.metrics.time.time", lambda: newest_s + 40)
    metrics = SinkMetrics()
    metrics.add(COUNTS, built, {}, 22)
    found = metrics.numbers()["latency"]
    assert found["counts"] == [0] * BOUNDS_S.index(60.0) + [21, 0, 0]
    assert found["sum_s"] == pytest.approx(21 * 40, rel=0.01)


def test_a_batch_whose_newest_change_is_fresh_does_not_hide_those_that_have_waited(monkeypatch):
    monkeypatch.setattr("cdcworker.connectors.sink_engine.metrics.time.time", lambda: 100.0)
    pairs = [(np.array([60_000, 99_990]), np.array([5, 95]))]
    metrics = SinkMetrics()
    metrics.add(COUNTS, SinkBatch((), {}, 1, {("t", 0): (b"", 99_990)}, moments={"t": pairs}), {}, 100)
    assert metrics.lag_s == 0.01
    assert metrics.latency.counts[BOUNDS_S.index(60.0)] == 5, "one in twenty has waited for 40 s: so says p99"
    assert metrics.latency.counts[BOUNDS_S.index(0.025)] + metrics.latency.counts[BOUNDS_S.index(0.01)] == 95


def test_changes_of_a_table_that_is_paused_do_not_count():
    paused = PausedTables(True)
    paused.take(CdcError(SCHEMA_REFUSED, "no", where={"topic": "t"}))
    pair = (np.array([1]), np.array([1]))
    left = paused.without(SinkBatch((), {}, 1, moments={"t": [pair], "u": [pair]}))
    assert set(summed([left, left]).moments) == {"u"}
    assert len(summed([left, left]).moments["u"]) == 2
