"""When the changes of a batch were committed in their source: how far each partition has come, and how late each change is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.arrow import array_ops
from cdcworker.connectors.telemetry.latency import BOUNDS_S, LatencyHistogram

if TYPE_CHECKING:
    import numpy as np
    from cdcworker.connectors.arrow.topic_records import DecodedTopic, TopicRecords

    Ints = np.ndarray[Any, np.dtype[np.int64]]

STREAMED = ("c", "u", "d", "t")
"""The operations whose latency counts. A row of a snapshot (`r`) was committed at some time before: nobody waited for it."""


def applied(topic: TopicRecords, decoded: DecodedTopic) -> dict[tuple[str, int], tuple[bytes, int]]:
    """Returns the highest position of each partition, and the newest commit time in ms."""
    import numpy as np

    out: dict[tuple[str, int], tuple[bytes, int]] = {}
    for number in np.unique(topic.partition).tolist():
        rows = np.flatnonzero((topic.partition == number) & (decoded.major >= 0))
        if len(rows):
            best = rows[np.lexsort((decoded.minor[rows], decoded.major[rows]))[-1:]]
            position = array_ops.position(decoded.major[best], decoded.minor[best])[0].as_py()
            out[topic.name, number] = (position, int(decoded.ts_ms[rows].max()))
    return out


def committed(decoded: DecodedTopic) -> tuple[Ints, Ints]:
    """Returns commit times in ms, and how many changes each has. Changes of a transaction mostly stand together, so that
    comparing neighbours alone makes few pairs of many changes."""
    import numpy as np

    times = decoded.ts_ms[np.isin(decoded.op, STREAMED) & (decoded.ts_ms > 0)]
    edges = np.flatnonzero(np.diff(times, prepend=-1))
    return times[edges], np.diff(edges, append=len(times))


def note(latency: LatencyHistogram, moments: Mapping[str, Sequence[tuple[Ints, Ints]]], now_s: float) -> None:
    """Adds the latency of every change to the histogram; `moments` has what `committed` returns, by topic. The newest change
    of a batch alone would hide how long the others have waited."""
    import numpy as np

    for times, counts in _pairs(moments):
        latencies_s = np.maximum(0.0, now_s - times / 1000)
        buckets = np.bincount(np.searchsorted(BOUNDS_S, latencies_s), counts, len(BOUNDS_S) + 1)
        latency.counts = [known + int(more) for known, more in zip(latency.counts, buckets, strict=True)]
        latency.sum_s += float(latencies_s @ counts)


def _pairs(moments: Mapping[str, Sequence[tuple[Ints, Ints]]]) -> Iterable[tuple[Ints, Ints]]:
    return (pair for pairs in moments.values() for pair in pairs if len(pair[0]))
