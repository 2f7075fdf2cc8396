"""Metrics of a task that outlive its processes: they are merged over restarts on the same worker."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.schemas.change import JsonObject

RETRYING: Final = "retrying"
"""The metric of failed attempts in a row, `{"code", "count", "since_ms"}`; null once an attempt has succeeded."""
FAILURES: Final = "failures"
"""The metric of failed processes of the task on this worker, by the kind of their error."""
HELD: Final = "tables_held"
"""The metric of tables that are stopped while others go on: quarantined by a source, paused by a sink."""
INCOMPLETE: Final = "incomplete_topics"
"""The metric of compacted topics of a source whose last record of a key may lack a large value: their names."""
METRICS_MAX: Final = 200
"""The most metrics of a task, as each report carries all; beyond it only those of the last message are kept
(INV-10)."""


def merge_metrics(previous: JsonObject, reported: JsonObject) -> JsonObject:
    """Merges newly reported metrics into the previous ones. A new process keeps the `since_ms` of ongoing retries."""
    merged = {**previous, **reported}
    if len(merged) > METRICS_MAX:
        merged = {**reported, **{name: previous[name] for name in (FAILURES,) if name in previous}}
    since = [part[RETRYING].get("since_ms") for part in (previous, reported) if isinstance(part.get(RETRYING), dict)]
    if len(since) > 1 and all(isinstance(at, int) for at in since):
        merged[RETRYING] = {**merged[RETRYING], "since_ms": min(since)}
    return merged


def with_failure(metrics: JsonObject, error: JsonObject) -> JsonObject:
    """Returns the metrics with one more failure of the error's kind."""
    kind, previous = str(error.get("kind") or "unknown"), metrics.get(FAILURES)
    counts: dict[str, Any] = dict(previous) if isinstance(previous, dict) else {}
    return {**metrics, FAILURES: {**counts, kind: counts.get(kind, 0) + 1}}
