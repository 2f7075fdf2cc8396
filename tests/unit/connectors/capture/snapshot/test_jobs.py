"""What is said of a load that is under way: how fast it goes, and when it will have ended."""

from __future__ import annotations

import pytest
from cdcworker.connectors.capture.snapshot.jobs import RATE_S, SnapshotJobs
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, SnapshotProgress, TableLoad


class Watched:
    """One load of a table of which the server guesses `estimate` rows, by a clock that is set."""

    def __init__(self, estimate: int = 1000, **more) -> None:
        self.now = 100.0
        self.table = TableLoad(1, "public", "t", estimate=estimate, **more)
        self.load = SnapshotLoad("one", "request", [self.table])
        self._jobs = SnapshotJobs(tuple, lambda: self.now)
        self._progress = SnapshotProgress(loads=[self.load])

    def told(self, *, after_s: float, rows: int) -> tuple[float, float | None]:
        """Rows a second, and the seconds that are left, when so much more has been read."""
        self.now += after_s
        self.table.rows += rows
        (report,) = self._jobs.report(self._progress)
        assert (report["rows"], report["state"]) == (self.load.rows_total, "PAUSED" if self.load.paused else "RUNNING")
        return report["rows_per_s"], report["eta_s"]


def test_the_rate_is_that_of_the_last_seconds_and_the_end_is_what_is_left_by_it():
    one = Watched()
    assert one.told(after_s=0, rows=0) == (0.0, None)
    assert one.told(after_s=5, rows=50) == (10.0, 95.0)
    assert one.told(after_s=5, rows=150) == (20.0, 40.0)
    # What was before the last seconds is forgotten.
    for _ in range(int(RATE_S)):
        told = one.told(after_s=2, rows=4)
    assert told == (2.0, (1000 - 260) / 2)
    # It stands still.
    for _ in range(int(RATE_S)):
        told = one.told(after_s=2, rows=0)
    assert told == (0.0, None)


@pytest.mark.parametrize("more", [{"estimate": -1}, {"filter": "id > 5"}])
def test_without_a_guess_of_the_rows_there_is_a_rate_and_no_end(more):
    one = Watched(**more)
    one.told(after_s=0, rows=0)
    assert one.told(after_s=10, rows=100) == (10.0, None)


def test_a_table_that_is_larger_than_was_guessed_is_about_to_end():
    one = Watched(estimate=100)
    one.told(after_s=0, rows=0)
    assert one.told(after_s=10, rows=300) == (30.0, 0.0)


def test_a_load_that_is_paused_has_no_end_in_sight():
    one = Watched()
    one.told(after_s=0, rows=0)
    one.load.paused = True
    assert one.told(after_s=10, rows=100) == (10.0, None)


def test_tables_that_are_done_and_those_that_wait_count_as_well():
    one = Watched()
    other = TableLoad(2, "public", "u", estimate=500)
    one.load.tables.append(other)
    one.told(after_s=0, rows=0)
    assert one.told(after_s=10, rows=100) == (10.0, 140.0)
    one.load.drop(one.table)
    one.table = other
    assert one.told(after_s=10, rows=100) == (10.0, 40.0)
