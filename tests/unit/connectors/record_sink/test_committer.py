"""The thread that commits: what fails for a moment is tried again, what fails for good ends the task."""

from __future__ import annotations

import threading

import pytest
from cdcworker.connectors.record_sink.committer import Committer
from cdcworker.connectors.record_sink.errors import COMMIT_FAILED, SINK_FENCED
from cdcworker.connectors.record_sink.group_offsets import Letter
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import Done, Progress
from cdcworker.schemas.errors import CdcError

WAIT_S = 30.0


class Offsets:
    """Offsets in memory, whose commits fail as they are told."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.committed: list[tuple[dict, list]] = []
        self.seen = threading.Event()
        self.closed = False
        self.gone: list = []

    def take_over(self, partitions):
        return dict.fromkeys(partitions, 3)

    def add(self, partitions):
        pass

    def commit(self, offsets, letters):
        if self.errors:
            raise CdcError(self.errors.pop(0), "as told")
        self.committed.append((dict(offsets), list(letters)))
        self.seen.set()
        return self.gone

    def close(self):
        self.closed = True


def world(*errors):
    offsets, progress, ownership, told = Offsets(*errors), Progress(), Ownership(), []
    return offsets, progress, ownership, told, Committer(offsets, progress, ownership, 0.01, told.append)


def test_what_is_done_is_committed_with_its_dead_letters_and_told():
    offsets, progress, ownership, told, committer = world()
    assert committer.take_over([("t", 0), ("t", 1)]) == {("t", 0): 3, ("t", 1): 3}
    committer.start()
    letter = Letter(None, b"x", ())
    progress.done(Done({("t", 0): 9}, [letter], 1, 5, {}, {"t": 77}))
    assert offsets.seen.wait(WAIT_S)
    committer.finish()
    committer.close()
    assert offsets.committed == [({("t", 0): 9}, [letter])]
    assert committer.applied() == {("t", 0): 9, ("t", 1): 3}
    assert told == [{"t": 77}]
    assert offsets.closed
    assert ownership.wait()


def test_a_commit_that_fails_for_a_moment_is_made_again_at_the_end():
    offsets, progress, _, _, committer = world(COMMIT_FAILED)
    committer.take_over([("t", 0)])
    progress.done(Done({("t", 0): 9}, [], 0, 5, {}, {}))
    committer.finish()
    assert offsets.committed == []
    assert committer.applied() == {("t", 0): 3}
    assert progress.numbers()["retrying"]["code"] == COMMIT_FAILED
    committer.finish()
    assert offsets.committed == [({("t", 0): 9}, [])]


def test_what_may_have_been_committed_is_committed_again_as_it_was_without_what_came_since():
    offsets, progress, _, _, committer = world(COMMIT_FAILED)
    committer.take_over([("t", 0)])
    first, later = Letter(None, b"1", ()), Letter(None, b"2", ())
    progress.done(Done({("t", 0): 9}, [first], 1, 5, {}, {}))
    committer.finish()
    progress.done(Done({("t", 0): 12}, [later], 1, 5, {}, {}))
    committer.finish()
    assert offsets.committed == [({("t", 0): 9}, [first]), ({("t", 0): 12}, [later])]
    assert committer.applied() == {("t", 0): 12}


def test_partitions_that_are_gone_are_committed_no_more():
    offsets, progress, _, _, committer = world()
    committer.take_over([("t", 0), ("gone", 0)])
    offsets.gone = [("gone", 0)]
    progress.done(Done({("t", 0): 9}, [], 0, 5, {}, {}))
    committer.finish()
    assert committer.applied() == {("t", 0): 9}


def test_a_task_that_has_lost_its_place_writes_no_more():
    offsets, progress, ownership, _, committer = world(SINK_FENCED)
    committer.take_over([("t", 0)])
    progress.done(Done({("t", 0): 9}, [], 0, 5, {}, {}))
    committer.start()
    committer._thread.join(WAIT_S)
    with pytest.raises(CdcError) as caught:
        progress.raise_failed()
    assert caught.value.code == SINK_FENCED
    assert not ownership.wait()
    assert offsets.committed == []


def test_a_thread_that_waits_for_a_proof_gets_one_although_nothing_is_done():
    offsets, _, ownership, _, committer = world()
    committer.take_over([("t", 0)])
    ownership.proven(float("-inf"))
    waiting = threading.Thread(target=ownership.wait)
    waiting.start()
    committer.start()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    committer.finish()
    committer.close()
    assert offsets.committed[0] == ({("t", 0): 3}, [])
