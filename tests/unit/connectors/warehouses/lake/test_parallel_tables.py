"""Tables of a lake written at once."""

from __future__ import annotations

import threading

import pytest
from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses.lake import parallel_tables
from cdcworker.connectors.warehouses.lake.parallel_tables import ParallelTables, TablesInProgress
from cdcworker.schemas.errors import CdcError

WAIT_S_MAX = 30


class Writer:
    """Fails where two threads have it."""

    def __init__(self, made=None):
        self.made = [] if made is None else made
        self.made.append(self)
        self.busy, self.released = threading.Lock(), False

    def thread_copy(self):
        return Writer(self.made)

    def release(self):
        self.released = True

    def used(self, work):
        assert self.busy.acquire(blocking=False)
        try:
            return work()
        finally:
            self.busy.release()


def test_as_many_as_may_run_at_once_each_with_a_writer_of_its_own():
    first, tables, met = Writer(), ParallelTables(3), threading.Barrier(3)

    def work(writer, number):
        return writer.used(lambda: (met.wait(WAIT_S_MAX) >= 0, number))

    assert tables.run_all(first, work, range(9)) == [(True, number) for number in range(9)]
    assert len(first.made) == 3
    tables.close()
    assert [writer.released for writer in first.made] == [False, True, True]


@pytest.mark.parametrize(("count", "items"), [(1, 5), (4, 1), (4, 0)])
def test_nothing_is_made_for_what_runs_one_by_one(count, items):
    first, tables = Writer(), ParallelTables(count)
    threads = tables.run_all(first, lambda *_: threading.current_thread(), range(items))
    assert threads == [threading.current_thread()] * items
    assert first.made == [first]


@pytest.mark.parametrize("failing", [0, 1])
def test_when_one_fails_those_that_run_end_and_the_others_do_not_begin(monkeypatch, failing):
    tables, begun, waiting, wait = ParallelTables(2), [], threading.Event(), parallel_tables.wait

    def work(_, number):
        if number == failing:
            raise KeyError("one")
        begun.append(waiting.wait(WAIT_S_MAX))

    def waited(futures, return_when=None):
        if return_when is None:
            waiting.set()
            return wait(futures)
        return wait(futures, return_when=return_when)

    monkeypatch.setattr(parallel_tables, "wait", waited)
    with pytest.raises(KeyError, match="one"):
        tables.run_all(Writer(), work, range(50))
    assert begun in ([True], [True, True])
    assert tables.run_all(Writer(), lambda _, number: number, (1, 2)) == [1, 2]
    tables.close()


def test_of_several_failures_the_one_of_who_is_fenced_is_raised_and_the_others_are_told(caplog):
    tables, both = ParallelTables(2), threading.Barrier(2)

    def work(_, number):
        both.wait(WAIT_S_MAX)
        raise CdcError(FENCED, "newer") if number else KeyError("a value")

    with pytest.raises(CdcError, match="newer"):
        tables.run_all(Writer(), work, (0, 1))
    assert "newer" in caplog.text
    assert "a value" not in caplog.text
    tables.close()


def test_a_table_that_hangs_is_told_of_alone_when_all_others_are_done():
    said, alone, tables = [], threading.Event(), ParallelTables(3)

    def step(names):
        said.append(names)
        # Four have begun, and three are done.
        if len(said) == 7:
            alone.set()

    under_way = TablesInProgress(step)

    def work(_, name):
        with under_way.writing(name):
            return name != "hangs" or alone.wait(WAIT_S_MAX)

    assert tables.run_all(Writer(), work, ("a", "hangs", "b", "c")) == [True] * 4
    assert said[6:] == ["table hangs", "the next table"]
    tables.close()


def test_a_table_that_failed_is_under_way_no_more():
    said = []
    with pytest.raises(KeyError), TablesInProgress(said.append).writing("a"):
        raise KeyError
    assert said == ["table a", "the next table"]
