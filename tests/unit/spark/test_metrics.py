"""What a sink task counts of its batches."""

from __future__ import annotations

import pytest
from cdcworker.connectors.api import SinkBatch
from cdcworker.connectors.spark.metrics import Metrics

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
    metrics = Metrics()
    metrics.limits = limits
    for times in (1, 2):
        metrics.add(COUNTS, batch(*sizes), {}, 2)
        assert metrics.numbers()["flushes"] == {reason: times}


def test_how_late_a_batch_is_counts_from_the_commit_of_its_newest_change():
    metrics = Metrics()
    metrics.add(COUNTS, SinkBatch((), {("t", 0): (0, 1)}, 1, {("t", 0): (b"", 1_000), ("t", 1): (b"", 2_000)}), {}, 1)
    assert sum(metrics.numbers()["latency"]["counts"]) == 1
    assert metrics.numbers()["latency"]["sum_s"] == metrics.lag_s > 1e9
