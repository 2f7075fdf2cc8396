"""Which dead letters go together, and what becomes of the tombstones behind them."""

from __future__ import annotations

from types import SimpleNamespace

from cdcworker.connectors.warehouses.dead_letters import UNPLACED, RedriveResult, StoredLetter
from cdcworker.connectors.warehouses.sql.redrive import add_tombstones, whole_waves

FRAME = b"\x00\x00\x00\x00\x01"


def letter(offset, key=b"k", value=b"v", headers=()):
    return StoredLetter("t", 0, offset, FRAME + key, value, headers)


def test_a_tombstone_is_done_with_when_the_delete_before_it_is():
    letters = [letter(0, b"a"), letter(1, b"a", None), letter(2, b"b"), letter(3, b"b", None), letter(4, b"c", None)]
    done = RedriveResult(letters=[letters[0]])
    add_tombstones(done, letters)
    assert [each.offset for each in done.letters] == [0, 1]
    assert [(each.offset, error.code) for each, error in done.failed] == [(3, UNPLACED), (4, UNPLACED)]


def test_letters_without_headers_and_tombstones_are_in_no_wave():
    letters = [letter(0), letter(1, headers=None), letter(2, value=None), letter(3), letter(4, b"b")]
    found = [[each.offset for each in wave] for wave in whole_waves(SimpleNamespace(log=False), letters)]
    assert found == [[0], [3, 4]]
    assert [len(wave) for wave in whole_waves(SimpleNamespace(log=True), letters)] == [3]
