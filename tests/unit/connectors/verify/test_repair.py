"""What of a comparison's differences is repaired, and what is refused, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.verify import plan, repair
from cdcworker.connectors.verify.canonical_text import SourceModes, VerifiedColumn
from cdcworker.connectors.verify.convergence import SuspectKey
from cdcworker.connectors.verify.databases import KeyState
from cdcworker.connectors.verify.report import KEPT_MAX, KeyRoom, TableVerdict

INT, TEXT = VerifiedColumn("id", "int8", declared="bigint"), VerifiedColumn("v", "text", declared="text")
ROW, OTHER, TWICE = KeyState(1, 5, "1"), KeyState(1, 6, "1"), KeyState(2, 5, "1")
PAIRS = {"missing": (ROW, None), "extra": (None, ROW), "different": (ROW, OTHER), "duplicate": (ROW, TWICE)}


def side(columns=(INT, TEXT), key=("id",), **more):
    return plan.SideTable("public", "t", columns, key, 10, **more)


def compared(*kinds, source=None, target=None, hands_on_deletions=True, **state):
    """A table of which one key after the other differs in this way."""
    source = source or side()
    made = plan.plan("p.public.t", source, target or replace(source, record_key=()), SourceModes())
    state.setdefault("kept", repair.repaired_kinds(made, hands_on_deletions=hands_on_deletions))
    verdict = TableVerdict(made, **state)
    for number, kind in enumerate(kinds):
        verdict.report((str(number),), SuspectKey(*PAIRS[kind]))
    return verdict


def repaired(verdict, *, hands_on_deletions=True):
    return repair.table_repair(verdict, hands_on_deletions=hands_on_deletions)


def refusals(found):
    return [(item.rows, item.why) for item in found.refused]


def test_missing_and_different_rows_and_those_of_the_warehouse_alone_are_repaired():
    found = repaired(compared("missing", "extra", "different"))
    assert (found.keys, found.refused) == ([("missing", ("0",)), ("extra", ("1",)), ("different", ("2",))], [])
    assert found.is_complete
    assert found.deletes


def test_where_nothing_differs_or_rows_never_stand_still_there_is_nothing_to_repair():
    assert repaired(compared()) is None
    assert repaired(compared(undecided=3)) is None


def test_keys_are_kept_only_for_a_repair_and_no_more_than_a_bound():
    assert compared("missing", kept=()).keys == []
    verdict = compared(*["missing"] * (KEPT_MAX + 2))
    assert (len(verdict.keys), verdict.left_keys, repaired(verdict).is_complete) == (KEPT_MAX, 2, False)
    assert not repaired(compared("missing", is_full=True)).is_complete


def test_the_tables_of_a_comparison_share_the_room_and_what_is_refused_takes_none():
    room = KeyRoom(rows=3)
    first = compared("duplicate", "extra", "missing", "missing", room=room, hands_on_deletions=False)
    second = compared("different", "different", room=room)
    assert [len(one.keys) for one in (first, second)] == [2, 1]
    assert (first.left_keys, second.left_keys) == (0, 1)
    assert repaired(first, hands_on_deletions=False).is_complete
    assert not repaired(second).is_complete
    # Keys of three characters in a room of seven.
    room = KeyRoom(chars=7)
    assert [room.take(("ab", None, "c")) for _ in range(3)] == [True, True, False]


def test_keys_that_the_warehouse_has_twice_are_refused_and_the_others_are_repaired():
    found = repaired(compared("duplicate", "missing", "duplicate"))
    assert (found.keys, refusals(found)) == ([("missing", ("1",))], [(2, repair.MORE_THAN_ONCE)])


def test_a_source_without_deletions_repairs_the_other_rows():
    found = repaired(compared("extra", "missing", hands_on_deletions=False), hands_on_deletions=False)
    assert (found.keys, refusals(found)) == ([("missing", ("1",))], [(1, repair.NO_DELETIONS)])
    assert not found.deletes


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (VerifiedColumn("id", "int4"), True),
        (VerifiedColumn("id", "numeric", declared="numeric(10,2)"), True),
        (VerifiedColumn("id", "numeric", declared="numeric"), False),
        (VerifiedColumn("id", "bpchar", declared="character(3)"), True),
        (VerifiedColumn("id", "bpchar", declared="bpchar"), False),
        (VerifiedColumn("id", "mood", "e"), True),
        (VerifiedColumn("id", "float8"), False),
        (VerifiedColumn("id", "citext"), False),
        (VerifiedColumn("id", "timetz"), False),
        (VerifiedColumn("id", "timestamptz"), True),
    ],
)
def test_rows_are_deleted_only_where_equal_keys_have_one_text(column, expected):
    assert repair.has_one_text(column) is expected
    if not expected:
        verdict = compared("extra", "missing", source=side((column, TEXT)), target=side((column, TEXT)))
        found = repaired(verdict)
        if verdict.plan.reason == "":
            # A row that goes meanwhile is deleted by the stream, not by the repair.
            assert (found.keys, found.deletes) == ([("missing", ("1",))], False)
            assert refusals(found) == [(1, "equal values of the key column id may have different texts")]


def test_tables_are_refused_whole_with_their_reason():
    absent = TableVerdict(plan.plan("p.public.t", side(), None, SourceModes()))
    absent.reason = absent.plan.reason
    assert refusals(repaired(absent)) == [(0, f"the table is not in the warehouse: {repair.NO_TABLE}")]
    keyless = compared(source=side(key=()))
    keyless.reason = keyless.plan.reason
    assert refusals(repaired(keyless)) == [(0, keyless.plan.reason)]
    held = TableVerdict(plan.ComparisonPlan("t", side(), None, reason="the sink holds it back", is_held=True))
    held.reason = held.plan.reason
    assert refusals(repaired(held)) == [(0, "the sink holds it back")]


@pytest.mark.parametrize("record_key", [("v",), ("id", "v")])
def test_a_table_whose_records_have_another_key_is_refused(record_key):
    found = repaired(compared("missing", "extra", source=side(record_key=record_key)))
    assert (found.keys, refusals(found)) == ([], [(2, repair.OTHER_KEY)])
    assert repaired(compared("missing", source=side(record_key=("id",)))).keys == [("missing", ("0",))]


def test_missing_columns_are_named_and_rows_repaired():
    verdict = compared("missing")
    verdict.plan = replace(verdict.plan, lacking=("w", "x"))
    found = repaired(verdict)
    assert (len(found.keys), refusals(found)) == (1, [(0, "columns are not in the warehouse: w, x")])
