"""The snapshot's rules without a server: what leaves a window, what is read again, when a read must wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.postgres.catalog import TypeNames
from cdcworker.connectors.postgres.changes import Event
from cdcworker.connectors.postgres.chunks import Chunk, View
from cdcworker.connectors.postgres.config import Filters
from cdcworker.connectors.postgres.relations import Planner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.snapshot import Progress, Snapshot
from cdcworker.connectors.postgres.types import Modes, PgType
from cdcworker.connectors.postgres.visibility import TxSnapshot
from cdcworker.connectors.postgres.wire import Relation, RelationColumn
from cdcworker.schemas.change import Position

RELATION = Relation(1, "public", "t", "d", (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, False)))
KNOWN = TypeNames({23: PgType(23, "int4"), 25: PgType(25, "text")}, {})
PLANNER = Planner(None, Modes(), Filters())  # type: ignore[arg-type]
PLAN = build_plan(RELATION, None, KNOWN, key_of(RELATION, None), PLANNER)
HW = 500


class FakeReader:
    def __init__(self, *chunks: list[tuple[int, str]], snap: str = "10:20:12") -> None:
        self.chunks = list(chunks)
        self.snap = snap
        self.asked: list = []

    def begin(self, oid):
        return View(TxSnapshot.parse(self.snap), HW, 0), PLAN

    def end(self) -> None: ...

    def table_changed(self) -> None: ...

    def current_snapshot(self) -> TxSnapshot:
        return TxSnapshot.parse(self.snap)

    def read(self, view, plan, after, keys):
        self.asked.append((after, keys))
        rows = [((number, text), (str(number),)) for number, text in self.chunks.pop(0)]
        return Chunk(view, plan, rows, ended=not self.chunks and keys is None)


def snapshot(*chunks: list[tuple[int, str]], snap: str = "10:20:12", floor: int = 0) -> Snapshot:
    progress = Progress(floor=floor, todo=[[1, "public", "t"]])
    return Snapshot(progress, FakeReader(*chunks, snap=snap), source_template("p", "d"))  # type: ignore[arg-type]


def touched(xid: int, after=None, before=None, unchanged=(), op="u", emitted=True):
    def apply(one: Snapshot) -> None:
        one.began(xid)
        event = Event(op, b"")
        event.after, event.before, event.unchanged, event.emitted = after, before, unchanged, emitted
        assert one.event(PLAN, event)

    return apply


def rows_of(changes) -> list:
    return [change.after for change in changes]


def test_rows_wait_for_the_boundary_and_stand_behind_everything_before_it():
    one = snapshot([(1, "a"), (2, "b")])
    assert one.open_window()
    assert not one.ripe(HW - 1)
    assert one.ripe(HW)
    changes = one.close_window(600)
    assert [change.position for change in changes] == [Position(599, 2**31 - 1, 0), Position(599, 2**31 - 1, 1)]
    assert one.finished


def test_a_key_touched_by_an_unseen_transaction_leaves_the_window():
    one = snapshot([(1, "a"), (2, "b"), (3, "c")])
    one.open_window()
    touched(12, after=(1, "new"))(one)
    touched(25, before=(2, None), op="d")(one)
    touched(11, after=(3, "c"))(one)
    assert rows_of(one.close_window(600)) == [(3, "c")]


def test_a_row_whose_newer_event_left_a_value_out_is_read_again():
    one = snapshot([(1, "a"), (2, "b")], [(1, "a2")])
    one.open_window()
    touched(25, after=(1, None), unchanged=(1,))(one)
    assert rows_of(one.close_window(600)) == [(2, "b")]
    assert one.active
    one.open_window()
    assert rows_of(one.close_window(700)) == [(1, "a2")]


def test_a_row_that_a_skipped_operation_touched_is_read_again():
    one = snapshot([(1, "a")], [(1, "a2")], [])
    one.open_window()
    touched(25, after=(1, "a2"), emitted=False)(one)
    assert one.close_window(600) == []
    assert one.progress.again == [["1"]]


def test_a_truncate_that_the_chunk_does_not_see_empties_it():
    one = snapshot([(1, "a")])
    one.open_window()
    touched(25, op="t")(one)
    assert one.close_window(600) == []


def test_another_shape_of_the_table_has_the_chunk_read_again():
    one = snapshot([(1, "a")], [(1, "a")])
    one.open_window()
    one.reshaped(PLAN)
    assert not one.window.void
    column = replace(PLAN.table.columns[1], name="w")
    one.reshaped(replace(PLAN, table=replace(PLAN.table, columns=(PLAN.table.columns[0], column))))
    assert one.close_window(600) == []
    assert one.progress.last is None


def test_positions_at_one_boundary_never_repeat_also_after_a_restart():
    one = snapshot([(1, "a")], [(2, "b")])
    one.open_window()
    first = one.close_window(600)
    again = Snapshot(Progress.from_json(one.to_json()), FakeReader([(2, "b")]), source_template("p", "d"))  # type: ignore[arg-type]
    again.open_window()
    second = again.close_window(600)
    assert (first[0].position.tx_sub, second[0].position.tx_sub) == (0, 1)
    assert again._reader.asked == [(("1",), None)]  # type: ignore[attr-defined]


def test_a_delivered_transaction_must_be_visible_before_a_chunk_is_read():
    one = snapshot([(1, "a")])
    one.committed(12)
    assert not one.open_window()
    assert one.progress.unseen == [12]
    one._reader.snap = "13:20:"  # type: ignore[attr-defined]
    assert one.open_window()
    assert one.progress.unseen == []


def test_transactions_from_before_the_slot_must_have_ended():
    one = snapshot([(1, "a")], floor=10)
    assert not one.open_window()
    one._reader.snap = "11:20:"  # type: ignore[attr-defined]
    assert one.open_window()


def test_events_that_a_keyless_table_holds_already_are_left_out():
    one = snapshot()
    keyless = replace(PLAN, table=replace(PLAN.table, key=()))
    one.began(25)
    assert not one.event(keyless, Event("c", b""))
    one.read_keyless(View(TxSnapshot.parse("10:20:12"), HW, 0), keyless)
    for xid, kept in ((11, False), (12, True), (25, True)):
        one.began(xid)
        assert one.event(keyless, Event("c", b"")) is kept
    assert not one.finished
    one.passed(HW)
    assert one.finished


@pytest.mark.parametrize(
    ("text", "xid", "seen"),
    [
        ("10:20:12,15", 9, True),
        ("10:20:12,15", 12, False),
        ("10:20:12,15", 20, False),
        ("4294967290:4294967310:", 4294967295, True),
        ("4294967290:4294967310:", 5, True),
        ("4294967290:4294967310:4294967301", 5, False),
        ("4294967290:4294967310:", 20, False),
    ],
)
def test_visibility_goes_by_transaction_id_across_epochs(text, xid, seen):
    snap = TxSnapshot.parse(text)
    assert snap.sees(xid) is seen
    assert str(snap) == text
