"""Batches on their way through a task, in three threads."""

from __future__ import annotations

import threading
import weakref

import pytest
from cdcworker.connectors.spark.stages import AHEAD_BYTES_MAX, APPLYING, BUILDING, READING, Built, Raw, Stages, Steps

WAIT_S = 30
MOMENT_S = 0.2
"""Time enough for what must not come."""
END = "the end of a batch"


class Records:
    """What a weak reference can be made to."""


def raw(number, size=1):
    return Raw(number, {}, 1, size, 0)


def built(number):
    return Built([number], 1, 0, 0)


def stages(build=lambda found: built(found.take()), apply=lambda _: None, beat=lambda *_: None):
    return Stages(build, apply, beat)


def test_all_batches_come_through_in_order():
    done = []
    made = stages(apply=lambda found: done.extend(found.batches))
    for number in range(50):
        made.read(lambda number=number: raw(number))
    assert made.wait(WAIT_S)
    assert not made.busy
    assert done == list(range(50))


def test_a_batch_is_read_while_the_one_before_is_built_and_the_one_before_that_applied():
    met = threading.Barrier(3)

    def at(number, wanted):
        return met.wait(WAIT_S) if number == wanted else None

    def build(found):
        at(found.records, 1)
        return built(found.take())

    made = stages(build, lambda found: at(found.batches[0], 0))
    for number in range(3):
        made.read(lambda number=number: (at(number, 2), raw(number))[1])
    assert made.wait(WAIT_S)
    assert made.error is None


def test_nothing_is_read_behind_a_large_batch_until_it_is_built():
    read, ahead = threading.Event(), []

    def build(found):
        ahead.append(read.wait(MOMENT_S))

    made = stages(build)
    made.read(lambda: raw(1, AHEAD_BYTES_MAX + 1))
    read.set()
    assert ahead == [False]


def test_records_are_held_no_longer_once_they_are_built(until):
    held, go = [Records()], threading.Event()
    gone = weakref.ref(held[0])
    made = stages(lambda found: built(len(str(found.take()))), lambda _: go.wait(WAIT_S))
    made.read(lambda: raw(None))
    # It is built, and waits for the one before to be applied.
    made.read(lambda: raw(held.pop()))
    until(lambda: gone() is None)
    assert made.busy
    go.set()
    assert made.wait(WAIT_S)


@pytest.mark.parametrize("stage", ["build", "apply"])
def test_a_batch_that_fails_is_told_of_and_nothing_behind_it_is_applied(stage):
    done = []

    def build(found):
        if stage == "build" and found.records == 1:
            raise ValueError("build")
        return built(found.take())

    def apply(found):
        if stage == "apply" and found.batches[0] == 1:
            raise ValueError("apply")
        done.extend(found.batches)

    made = stages(build, apply)
    for number in range(5):
        made.read(lambda number=number: raw(number))
    assert made.wait(WAIT_S)
    assert done == [0]
    assert str(made.error) == stage
    made.reset()
    assert made.error is None
    made.read(lambda: raw(7))
    assert made.wait(WAIT_S)
    assert done == [0, 7]


def test_of_two_batches_that_fail_the_older_one_is_told_of():
    go = threading.Event()

    def build(found):
        if found.records == 1:
            go.set()
            raise ValueError("newer")
        return built(found.take())

    def apply(_):
        go.wait(WAIT_S)
        raise ValueError("older")

    made = stages(build, apply)
    for number in range(2):
        made.read(lambda number=number: raw(number))
    assert made.wait(WAIT_S)
    assert str(made.error) == "older"


def test_what_cannot_be_read_is_raised_and_goes_no_further():
    done = []
    made = stages(apply=done.append)
    with pytest.raises(ValueError, match="read"):
        made.read(lambda: (_ for _ in ()).throw(ValueError("read")))
    assert made.wait(WAIT_S)
    assert not done
    assert made.error is None


def test_a_wait_ends_at_its_deadline_whichever_stage_takes_long():
    go = threading.Event()
    made = stages(apply=lambda _: go.wait(WAIT_S))
    for number in range(2):
        made.read(lambda number=number: raw(number))
    assert not made.wait(0.01)
    assert made.busy
    go.set()
    assert made.wait(WAIT_S)


def test_a_stage_that_hangs_is_told_of_alone_in_the_end_by_what_its_writer_is_at():
    said = []
    steps = Steps(lambda doing, allow_s: said.append((doing, allow_s > 0)))
    steps.within("the start")
    with steps.one(APPLYING):
        with steps.one(READING):
            steps.within("table a")
        with steps.one(BUILDING):
            pass
    with steps.one(APPLYING):
        pass
    assert said == [
        ("the start", True), (APPLYING, True), (f"{APPLYING}, {READING}", True), (f"table a, {READING}", True),
        ("table a", True), (f"table a, {BUILDING}", True), ("table a", True), (END, False),
        (APPLYING, True), (END, False),
    ]  # fmt: skip
