"""The notes of offsets, the age of a proof, and what waits for a commit."""

from __future__ import annotations

import pytest
from cdcworker.connectors.record_sink.group_offsets import Letter, Owner, note_of, parse_note
from cdcworker.connectors.record_sink.ownership import PROVEN_S, Ownership
from cdcworker.connectors.record_sink.progress import LETTER_BYTES_MAX, Done, Progress


def test_a_note_is_read_as_it_was_written():
    assert parse_note(note_of(Owner((7, 2), "g:c a:0:sink"))) == ((7, 2), "g:c a:0:sink")


@pytest.mark.parametrize("text", ["", "x", "1", "1.", ".1 x", "-1.2 x", "1.2.3 x", "consumer-1"])
def test_a_note_of_somebody_else_is_nobodys(text):
    assert parse_note(text) == ((-1, -1), "")


def test_a_proof_grows_old():
    now = [100.0]
    ownership = Ownership(lambda: now[0])
    ownership.proven(100.0)
    now[0] += PROVEN_S
    assert ownership.wait()
    assert not ownership.is_wanted
    now[0] += 0.1
    ownership.end()
    assert not ownership.wait()


def test_what_a_commit_could_not_take_is_taken_by_the_next_behind_what_came_since():
    progress, letter, later = Progress(), Letter(b"k", b"x" * LETTER_BYTES_MAX, ()), Letter(None, None, ())
    progress.done(Done({("t", 0): 5, ("t", 1): 1}, [letter], 1, 4, {}, {}))
    assert progress.is_urgent
    taken = progress.take()
    assert progress.take() == ({}, [])
    progress.done(Done({("t", 0): 9}, [later], 1, 4, {}, {}))
    assert not progress.is_urgent
    progress.put_back(*taken)
    assert progress.is_urgent
    assert progress.take() == ({("t", 0): 9, ("t", 1): 1}, [letter, later])
