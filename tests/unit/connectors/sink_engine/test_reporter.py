"""What a sink task reports of itself while it cannot apply anything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.sink_engine.metrics import SinkMetrics
from cdcworker.connectors.sink_engine.reporter import SinkReporter
from cdcworker.connectors.sink_errors import TARGET_GONE
from cdcworker.connectors.telemetry.retry_status import RetryStatus
from cdcworker.schemas.errors import CdcError


@pytest.mark.parametrize(
    ("waiting", "tries", "lag_s"), [(9, True, 300.0), (9, False, 0.5), (0, True, 0.5)], ids=["away", "works", "dry"]
)
def test_a_sink_whose_warehouse_is_away_grows_late(waiting, tries, lag_s):
    told: list[dict] = []
    retrying = RetryStatus()
    if tries:
        retrying.failed(CdcError(TARGET_GONE, "gone"))
    numbers = {"lag_records": waiting, "topic_lag_s": {"a": 300.0, "b": 1.0}}
    nothing = SimpleNamespace(numbers=lambda *_: {})
    context = TaskContext("c", 0, 1, "i", "", report=told.append)
    lag = SimpleNamespace(numbers=lambda _: numbers)
    SinkReporter(context, SinkMetrics(lag_s=0.5), lag, nothing, retrying, None).report()
    assert told[0]["lag_s"] == lag_s
