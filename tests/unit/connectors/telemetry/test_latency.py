"""How late changes are: every one of them counts."""

from __future__ import annotations

from cdcworker.connectors.telemetry.latency import BOUNDS_S, LatencyHistogram


def quantile(latency: LatencyHistogram, part: float) -> float:
    """The upper bound of the step in which it lies, as a board shows it."""
    wanted, seen = part * sum(latency.counts), 0
    for bound, count in zip((*BOUNDS_S, float("inf")), latency.counts, strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")


def test_a_batch_in_which_most_have_waited_for_long_is_late_though_its_newest_is_not():
    """Ten batches of a thousand changes each; in each of them 5 % have waited for 40 s, the newest for 20 ms."""
    newest_only, every = LatencyHistogram(), LatencyHistogram()
    for _ in range(10):
        now_s = 1_000.0
        newest_only.note(0.02)
        every.note_all({980 * 1000 + 19_980: 950, 960 * 1000: 50}, now_s)
    assert quantile(newest_only, 0.99) == 0.025, "what the newest alone would say"
    assert quantile(every, 0.99) == 60.0
    assert quantile(every, 0.5) == 0.025
    assert sum(every.counts) == 10_000
    assert every.numbers()["sum_s"] == 10 * (950 * 0.02 + 50 * 40)


def test_what_seems_to_come_before_its_cause_is_not_late():
    latency = LatencyHistogram()
    latency.note_all({2_000: 3}, 1.0)
    assert (latency.counts[0], latency.sum_s) == (3, 0.0)
