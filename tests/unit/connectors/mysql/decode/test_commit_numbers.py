"""Numbers of commits rise, and are the same when a transaction is read again."""

from __future__ import annotations

from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers


def test_numbers_rise_whatever_the_clocks_say():
    numbers = CommitNumbers(100)
    assert [numbers.next(time) for time in (150, 150, 90, 200)] == [150, 151, 152, 200]


def test_a_transaction_that_was_handed_on_in_part_keeps_its_number():
    numbers = CommitNumbers(100, 160)
    assert [numbers.next(time) for time in (150, 150)] == [160, 161]


def test_a_stream_that_begins_anew_begins_behind_all_numbers():
    numbers = CommitNumbers(100)
    assert numbers.begin_anew(50) == 101
    assert numbers.begin_anew(500) == 500
    assert numbers.next(400) == 501
