"""The comparison and the reader of positions see each kind of mistake."""

from __future__ import annotations

from pathlib import Path

from tests.soak.checks import Positions, difference
from tests.soak.faults import Faults
from tests.soak.schedule import KINDS

SOURCE = (["id", "n", "new"], [(1, 10, None), (2, 20, 5), (3, 30, None)])


def test_columns_of_the_target_alone_and_orders_do_not_count() -> None:
    target = (
        ["_cdc_position", "new", "n", "gone", "id"],
        [(b"", 5, 20, 1, 2), (b"", None, 30, 1, 3), (b"", None, 10, 1, 1)],
    )
    assert difference("t", SOURCE, target) is None


def test_a_new_column_without_values_may_be_missing_yet() -> None:
    rows = [(1, 10), (2, 20), (3, 30)]
    assert difference("t", (["id", "n", "new"], [(*row, None) for row in rows]), (["id", "n"], rows)) is None
    assert difference("t", SOURCE, (["id", "n"], rows)).other == (2,)


def test_lost_doubled_and_different_rows_are_told_by_their_keys() -> None:
    found = difference("t", SOURCE, (["id", "n", "new"], [(2, 20, 6), (3, 30, None), (3, 30, None), (4, 0, None)]))
    assert (found.missing, found.unexpected, found.other) == ((1,), (3, 4), (2,))
    assert str(found) == "t: 1 missing (keys 1), 2 unexpected (keys 3, 4), 1 different (keys 2)"


def test_a_table_that_is_not_there_lacks_all_rows() -> None:
    assert difference("t", SOURCE, ([], [])).missing == (1, 2, 3)


def test_positions_have_to_rise_across_parts(tmp_path: Path) -> None:
    seen = Positions()
    for offset, place in enumerate([(5, 0, 0), (5, 1, 0), (7, 0, 0)]):
        seen.take("t", offset, place)
    assert seen.wrong == []
    seen.save(tmp_path / "positions.json")
    again = Positions.load(tmp_path / "positions.json")
    assert again.next == {"t": 3}
    again.take("t", 3, (7, 0, 0))
    again.take("t", 4, (6, 9, 9))
    again.take("u", 4, (1, 0, 0))
    assert [word in text for word, text in zip(("twice", "after a later one"), again.wrong, strict=True)] == [
        True,
        True,
    ]


def test_each_kind_of_fault_can_be_made() -> None:
    class NoStack:
        """Is not asked before a fault is made."""

        kafka = None

    assert Faults(NoStack()).kinds == frozenset(KINDS)
