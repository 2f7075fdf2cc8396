"""Batches on their way through a task, in three threads."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import pytest
from cdcworker.connectors.sink_engine.batch_source import BATCH_BYTES_MAX, RECORDS_MIN, BatchLimit, ReadBatch
from cdcworker.connectors.sink_engine.kafka.lag import SinkLag
from cdcworker.connectors.sink_engine.pipeline import READ_AHEAD_BYTES_MAX, BuiltBatch, Pipeline
from cdcworker.connectors.sink_engine.stage_progress import APPLYING, BUILDING, READING, StageProgress

WAIT_S = 30
MOMENT_S = 0.2
"""Time enough for what must not come."""
END = "the end of a batch"


class Records:
    """Records without rows, to which a weak reference can be made."""

    num_rows = 0

    def __init__(self, number):
        self.number = number


def batch(number, size=1):
    return ReadBatch(Records(number), {}, 1, size, 0)


def built(number):
    return BuiltBatch([number], 1, 0, 0)


class Source:
    """A source with given batches; what is no batch is raised."""

    def __init__(self, *batches):
        self.batches, self.asked, self.halted = deque(batches), 0, threading.Event()

    def next(self, timeout_s):
        self.asked += 1
        if self.halted.is_set() or not self.batches:
            self.halted.wait(timeout_s)
            return None
        found = self.batches.popleft()
        if isinstance(found, ReadBatch):
            return found
        raise found

    def halt(self):
        self.halted.set()


class Steps:
    """Builds and applies; each step can be replaced."""

    def __init__(self, build=lambda found: built(found.take().number), apply=None):
        self.done = []
        self.build = build
        self.apply = apply or (lambda found: self.done.extend(found.batches))


def pipeline(source, steps, limit=None):
    return Pipeline(
        source, steps, steps, StageProgress(lambda *_: None), SinkLag(lambda _: {}), limit or BatchLimit(100_000)
    )


def run(source, steps, until, is_over):
    made = pipeline(source, steps)
    made.start()
    until(lambda: is_over() or made.error is not None)
    made.halt()
    assert made.wait(WAIT_S)
    return made


def test_all_batches_come_through_in_order(until):
    steps = Steps()
    made = run(Source(*map(batch, range(50))), steps, until, lambda: len(steps.done) == 50)
    assert not made.busy
    assert made.error is None
    assert steps.done == list(range(50))


def test_a_batch_is_read_while_the_one_before_is_built_and_the_one_before_that_applied(until):
    met, done = threading.Barrier(3), threading.Event()

    class Meeting(Source):
        def next(self, timeout_s):
            found = super().next(timeout_s)
            if found is not None and found.records.number == 2:
                met.wait(WAIT_S)
                done.set()
            return found

    def build(found):
        number = found.take().number
        if number == 1:
            met.wait(WAIT_S)
        return built(number)

    steps = Steps(build, lambda found: met.wait(WAIT_S) if found.batches[0] == 0 else None)
    assert run(Meeting(*map(batch, range(3))), steps, until, done.is_set).error is None


def test_nothing_is_read_behind_a_large_batch_until_it_is_built(until):
    source, asked = Source(batch(1, READ_AHEAD_BYTES_MAX + 1), batch(2)), []
    go = threading.Event()

    def build(found):
        if found.size > 1:
            go.wait(MOMENT_S)
            asked.append(source.asked)
        return built(found.take().number)

    steps = Steps(build)
    run(source, steps, until, lambda: steps.done == [1, 2])
    assert asked == [1]


def test_a_batch_with_large_records_makes_the_next_ones_smaller(until):
    limit, steps = BatchLimit(100_000), Steps()
    made = pipeline(Source(ReadBatch(Records(1), {}, 1000, 4 * BATCH_BYTES_MAX, 0)), steps, limit)
    made.start()
    until(lambda: steps.done == [1])
    made.halt()
    assert made.wait(WAIT_S)
    assert limit.records == 125


def test_the_number_of_records_shrinks_to_its_least_and_no_further():
    limit = BatchLimit(RECORDS_MIN * 8 * 8)
    assert [limit.shrink() for _ in range(3)] == [True, True, False]
    assert limit.records == RECORDS_MIN
    assert limit.configured == RECORDS_MIN * 64


def test_records_are_held_no_longer_once_they_are_built(until):
    found, go = [batch(0), batch(1)], threading.Event()
    gone = weakref.ref(found[1].records)
    steps = Steps(lambda read: built(read.take().number), lambda _: go.wait(WAIT_S))
    made = pipeline(Source(*found), steps)
    del found[:]
    made.start()
    # The second one is built, and waits for the first one to be applied.
    until(lambda: gone() is None)
    assert made.busy
    go.set()
    made.halt()
    assert made.wait(WAIT_S)


@pytest.mark.parametrize("stage", ["build", "apply"])
def test_a_batch_that_fails_is_told_of_and_nothing_behind_it_is_applied(until, stage):
    done = []

    def build(found):
        number = found.take().number
        if stage == "build" and number == 1:
            raise ValueError("build")
        return built(number)

    def apply(found):
        if stage == "apply" and found.batches[0] == 1:
            raise ValueError("apply")
        done.extend(found.batches)

    source = Source(*map(batch, range(5)))
    made = run(source, Steps(build, apply), until, lambda: False)
    assert done == [0]
    assert str(made.error) == stage
    source.batches, source.halted = deque([batch(7)]), threading.Event()
    made.start()
    until(lambda: done == [0, 7])
    assert made.error is None
    made.halt()
    assert made.wait(WAIT_S)


def test_of_two_batches_that_fail_the_older_one_is_told_of(until):
    go = threading.Event()

    def build(found):
        number = found.take().number
        if number == 1:
            go.set()
            raise ValueError("newer")
        return built(number)

    def apply(_):
        go.wait(WAIT_S)
        raise ValueError("older")

    made = run(Source(batch(0), batch(1)), Steps(build, apply), until, lambda: False)
    assert str(made.error) == "older"


def test_what_cannot_be_read_is_told_of_and_goes_no_further(until):
    steps = Steps()
    made = run(Source(ValueError("read"), batch(1)), steps, until, lambda: False)
    assert str(made.error) == "read"
    assert not steps.done


def test_a_wait_ends_at_its_deadline_whichever_stage_takes_long(until):
    go, begun = threading.Event(), threading.Event()

    def apply(_):
        begun.set()
        go.wait(WAIT_S)

    made = pipeline(Source(batch(0), batch(1)), Steps(apply=apply))
    made.start()
    assert begun.wait(WAIT_S)
    made.halt()
    assert not made.wait(0.01)
    assert made.busy
    go.set()
    assert made.wait(WAIT_S)


def test_a_pipeline_that_is_halted_applies_no_batch_that_it_has_not_begun_to_apply(until):
    go, begun, done = threading.Event(), threading.Event(), []

    def apply(found):
        begun.set()
        go.wait(WAIT_S)
        done.extend(found.batches)

    made = pipeline(Source(*map(batch, range(3))), Steps(apply=apply))
    made.start()
    assert begun.wait(WAIT_S)
    made.halt()
    go.set()
    assert made.wait(WAIT_S)
    assert done == [0]
    assert made.error is None


def test_a_stage_that_hangs_is_told_of_alone_in_the_end_by_what_its_writer_is_at():
    said = []
    progress = StageProgress(lambda doing, allow_s: said.append((doing, allow_s > 0)))
    progress.step("the start")
    with progress.one(APPLYING):
        with progress.one(READING):
            progress.step("table a")
        with progress.one(BUILDING):
            pass
        assert progress.busy
    with progress.one(APPLYING):
        pass
    assert not progress.busy
    assert said == [
        ("the start", True), (APPLYING, True), (f"{APPLYING}, {READING}", True), (f"table a, {READING}", True),
        ("table a", True), (f"table a, {BUILDING}", True), ("table a", True), (END, False),
        (APPLYING, True), (END, False),
    ]  # fmt: skip
