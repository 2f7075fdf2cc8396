"""The snapshot's rules without a server: what leaves a window, what is read again, when a read must wait."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.snapshot import chunk_scheduler as loading
from cdcworker.connectors.capture.snapshot import watermark_snapshot as snapshot
from cdcworker.connectors.capture.snapshot import whole_table
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler, ReadLimits
from cdcworker.connectors.capture.snapshot.chunks import NotVisibleYet, ReadView, RequiredVisibility, TableSurvey
from cdcworker.connectors.capture.snapshot.observer import RowEvent
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.connectors.postgres.decode.moved_key import new_key_texts
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.server.catalog import TypeNames
from cdcworker.connectors.postgres.snapshot.chunk_reader import CopiedChunk
from cdcworker.connectors.postgres.snapshot.row_emitter import RowEmitter
from cdcworker.connectors.postgres.snapshot.tx_snapshot import TransactionSnapshot
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.schemas.change import Position

from .. import messages

RELATION = Relation(1, "public", "t", "d", (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, False)))
KNOWN = TypeNames({23: PgType(23, "int4"), 25: PgType(25, "text")}, {})
PLANNER = TableDecodePlanner(None, HandlingModes(), TableFilters())  # type: ignore[arg-type]
PLAN = build_plan(RELATION, None, KNOWN, key_of(RELATION, None), PLANNER)
HW = 500


class FakeReader:
    """Gives prepared chunks, one for each read that sees all it must."""

    def __init__(self, *chunks: list[tuple[int, str]], snap: str = "10:20:12") -> None:
        self.chunks = list(chunks)
        self.snap = snap
        self.plan = PLAN
        self.asked: list = []

    def chunk(self, want):
        snap = TransactionSnapshot.parse(self.snap)
        if not want.must_see.met(snap):
            raise NotVisibleYet
        self.asked.append((want.after, want.keys))
        rows = {(n,): (f"{n}\t{text}\n".encode(), (str(n),)) for n, text in self.chunks.pop(0)}
        last = list(rows.values())[-1][1] if rows else None
        size = sum(len(line) for line, _ in rows.values())
        ended = not self.chunks and not want.keys
        return CopiedChunk(ReadView(snap, HW, 0), self.plan, rows, last, size, len(rows), ended)


class FakeReaderPool:
    """Reads when it is told to."""

    def __init__(self, reader: FakeReader) -> None:
        self.reader = reader
        self.orders: list = []
        self.done: list = []
        self.free = 4
        self.bounds: tuple = ()
        self.size: int | None = None

    def give(self, token, order) -> None:
        self.orders.append((token, order))

    def take(self):
        done, self.done = self.done, []
        return done

    def work(self) -> None:
        orders, self.orders = self.orders, []
        for token, order in orders:
            try:
                result = (
                    TableSurvey(False, self.bounds, self.size) if isinstance(token, TableLoad) else order(self.reader)
                )
            except NotVisibleYet as exc:
                result = exc
            self.done.append((token, result))

    def close(self) -> None: ...


class One:
    """A snapshot with its pool and a clock."""

    def __init__(self, *chunks, snap: str = "10:20:12", progress: SnapshotProgress | None = None, **load) -> None:
        self.reader = FakeReader(*chunks, snap=snap)
        self.pool = FakeReaderPool(self.reader)
        self.now = 0.0
        table = TableLoad(1, "public", "t")
        self.progress = progress or SnapshotProgress(loads=[SnapshotLoad("initial", "start", [table], **load)])
        self.floor = 0
        limits = ReadLimits(threads=4)
        self.loader = ChunkScheduler(self.progress, self.pool, limits, CAPTURE, clock=lambda: self.now, bind=self._bind)
        current = lambda: TransactionSnapshot.parse(self.reader.snap)  # noqa: E731
        self.emitter = RowEmitter(self.progress, source_template("p", "d"), current)
        self.snapshot = WatermarkSnapshot(self.loader, self.emitter)

    def _bind(self, load: SnapshotLoad) -> None:
        load.floor = self.floor

    @property
    def table(self) -> TableLoad:
        return self.progress.loads[0].tables[0]

    def boundary(self, lsn: int = 1) -> list:
        changes = self.snapshot.passed(lsn)
        self.loader.order_reads()
        return changes

    def order(self) -> None:
        """Until a chunk has been asked for and not been read yet."""
        for _ in range(5):
            if any(not isinstance(token, TableLoad) for token, _ in self.pool.orders):
                return
            self.pool.work()
            self.now += 1.0
            self.boundary()

    def open(self) -> None:
        """Until a chunk has been read."""
        self.order()
        self.pool.work()
        self.snapshot.passed(1)

    def touch(self, xid: int, after=None, before=None, unchanged=(), op="u", emitted=True, plan=PLAN) -> bool:
        self.snapshot.began(xid)
        event = RowEvent(op, b"")
        event.after, event.before, event.unchanged, event.emitted = after, before, unchanged, emitted
        return self.snapshot.event(plan, event)


def rows_of(changes) -> list:
    return [change.after for change in changes]


def test_rows_wait_for_the_boundary_and_stand_behind_everything_before_it():
    one = One([(1, "a"), (2, "b")])
    one.open()
    assert one.boundary(HW - 1) == []
    changes = one.boundary(HW)
    assert [change.position for change in changes] == [Position(HW - 1, 2**31 - 1, n) for n in (0, 1)]
    assert one.snapshot.finished
    assert [(done["id"], done["state"], done["rows"]) for done in one.progress.done] == [("initial", "COMPLETED", 2)]


@pytest.mark.parametrize("when", ["while it is read", "afterwards"])
def test_a_key_touched_by_an_unseen_transaction_leaves_the_window(when):
    one = One([(1, "a"), (2, "b"), (3, "c")])
    one.order() if when == "while it is read" else one.open()
    assert one.touch(12, after=(1, "new"))
    assert one.touch(25, before=(2, None), op="d")
    assert one.touch(11, after=(3, "c"))
    one.pool.work()
    assert rows_of(one.boundary(600)) == [(3, "c")]


def test_a_row_whose_newer_event_left_a_value_out_is_read_again():
    one = One([(1, "a"), (2, "b")])
    one.open()
    one.touch(25, after=(1, None), unchanged=(1,))
    assert rows_of(one.boundary(600)) == [(2, "b")]
    assert one.snapshot.active
    one.reader.chunks = [[(1, "a2")]]
    one.open()
    assert rows_of(one.boundary(700)) == [(1, "a2")]
    assert one.reader.asked[-1] == (None, (("1",),))
    assert one.snapshot.finished


def test_a_row_that_a_skipped_operation_touched_is_read_again():
    one = One([(1, "a")])
    one.open()
    one.touch(25, after=(1, "a2"), emitted=False)
    assert one.boundary(600) == []
    assert one.table.again == [["1"]]


def test_a_truncate_that_the_chunk_does_not_see_empties_it():
    one = One([(1, "a")])
    one.order()
    one.touch(25, op="t")
    one.pool.work()
    assert one.boundary(600) == []


@pytest.mark.parametrize("when", ["while it is read", "afterwards"])
def test_another_shape_of_the_table_has_the_chunk_read_again(when):
    one = One([(1, "a")], [(1, "a")])
    one.order() if when == "while it is read" else one.open()
    one.snapshot.reshaped(PLAN)
    assert not one.loader.windows[0].void
    column = replace(PLAN.table.columns[1], name="w")
    one.snapshot.reshaped(replace(PLAN, table=replace(PLAN.table, columns=(PLAN.table.columns[0], column))))
    one.pool.work()
    assert one.boundary(600) == []
    assert one.table.parts[0].last is None
    assert len(one.pool.orders) == 1


def test_positions_at_one_boundary_never_repeat_also_after_a_restart():
    one = One([(1, "a")], [(2, "b")])
    one.open()
    first = one.boundary(600)
    again = One([(2, "b")], progress=SnapshotProgress.from_json(one.snapshot.to_json()))
    again.open()
    second = again.boundary(600)
    assert (first[0].position.part, second[0].position.part) == (0, 1)
    assert again.reader.asked == [(("1",), ())]
    assert again.snapshot.finished


def test_chunks_are_read_ahead_and_handed_on_in_their_order():
    one = One([(1, "a")], [(2, "b")], [(3, "c")])
    one.open()
    one.order()
    one.pool.work()
    one.snapshot.passed(1)
    first, second = one.loader.windows
    first.void = True
    assert one.boundary(600) == []
    assert second not in one.loader.windows
    one.reader.chunks = [[(1, "a")], [(2, "b")]]
    one.pool.work()
    assert rows_of(one.boundary(600)) == [(1, "a")]
    assert one.reader.asked[-1] == (None, ())


def many(
    count: int, size: int | None, **limits: int
) -> tuple[SnapshotProgress, ChunkScheduler, FakeReaderPool, FakeReader]:
    """Tables whose chunks hold one row each, behind a look at each."""
    progress = SnapshotProgress(
        loads=[SnapshotLoad("initial", "start", [TableLoad(n, "public", f"t{n}") for n in range(1, count + 1)])]
    )
    reader = FakeReader(*[[(1, "a")]] * count)
    pool = FakeReaderPool(reader)
    pool.free, pool.size = 1000, size
    return progress, ChunkScheduler(progress, pool, ReadLimits(**limits), CAPTURE), pool, reader


@pytest.mark.parametrize(
    ("size", "at_once"), [(8192, 2 + loading.SMALL_AHEAD), (loading.SMALL_BYTES + 1, 2), (None, 2)]
)
def test_little_tables_are_read_ahead_of_their_turn_and_others_are_not(size, at_once):
    _, loader, pool, _ = many(100, size, threads=2, inflight_bytes=1 << 30)
    loader.order_reads()
    assert len(pool.orders) == 2 + loading.SMALL_AHEAD, "a look at each"
    pool.work()
    loader.take_results()
    loader.order_reads()
    assert len(loader.windows) == at_once


def test_a_locked_table_is_left_alone_until_its_turn():
    progress, loader, pool, _ = many(10, 8192, threads=2)
    tables = progress.loads[0].tables
    for table in (tables[0], tables[5]):
        loader.wait(table, loading.LOCKED)
        table.retry_at = 0.0
    loader.order_reads()
    assert len(pool.orders) == 9
    assert tables[0].busy
    assert not tables[5].busy


def test_little_tables_wait_where_what_was_read_takes_all_the_room():
    _, loader, pool, _ = many(100, 8192, threads=2, inflight_bytes=10 * loading.SMALL_BYTES)
    loader.order_reads()
    pool.work()
    loader.take_results()
    loader.order_reads()
    assert len(loader.windows) == 10


def test_a_table_that_is_not_as_little_as_was_thought_is_none_of_those_any_more():
    progress, loader, pool, reader = many(2, 8192, threads=1)
    reader.chunks = [[(1, "a")], [(1, "a")], [(2, "b")]]
    for _ in range(2):
        loader.order_reads()
        pool.work()
        loader.take_results()
    assert [table.is_small for table in progress.loads[0].tables] == [False, False]


def test_a_large_table_is_read_in_ranges_at_the_same_time():
    one = One([(1, "a")], [(8, "b")])
    one.pool.bounds = (("5",),)
    one.open()
    assert [part.to_json() for part in one.table.parts] == [[None, ["5"], False], [["5"], None, False]]
    assert one.reader.asked == [(None, ()), (("5",), ())]
    assert sorted(rows_of(one.boundary(600))) == [(1, "a"), (8, "b")]


def test_chunks_that_weigh_much_are_handed_on_at_different_boundaries(monkeypatch):
    one = One([(1, "a")], [(8, "b")])
    one.pool.bounds = (("5",),)
    one.open()
    monkeypatch.setattr(snapshot, "PASSED_BYTES_MAX", snapshot.ROW_BYTES)
    assert rows_of(one.boundary(600)) == [(1, "a")]
    one.touch(12, after=(8, "newer"), before=(8, "b"))
    assert one.boundary(600) == []
    assert one.table.rows == 1


def test_a_load_that_may_read_so_many_rows_a_second_waits_for_the_next():
    one = One([(1, "a"), (2, "b")], [(3, "c")], rows_per_s=2)
    one.open()
    one.boundary(600)
    assert one.pool.orders == []
    one.now += 1.0
    one.boundary(600)
    assert len(one.pool.orders) == 1


def test_a_paused_load_orders_nothing_and_gives_what_was_read():
    one = One([(1, "a")], [(2, "b")])
    one.open()
    one.progress.loads[0].paused = True
    assert rows_of(one.boundary(600)) == [(1, "a")]
    assert one.pool.orders == []
    assert not one.snapshot.active


def test_a_delivered_transaction_must_be_visible_before_a_chunk_is_read():
    one = One([(1, "a")])
    one.snapshot.committed(12)
    one.open()
    assert one.reader.asked == []
    assert (one.progress.unseen, one.snapshot.waits_for) == ([12], "older transactions")
    one.reader.snap = "13:20:"
    one.open()
    assert one.progress.unseen == []
    assert rows_of(one.boundary(600)) == [(1, "a")]


@pytest.mark.parametrize(
    ("snap", "met"),
    [
        ("10:20:12", True),
        ("11:20:", True),
        ("10:20:10", False),
        ("9:20:9", True),
        ("8:20:8,9", False),
        ("5:9:5", False),
        # A standby's, which does not tell who runs.
        ("11:20:*", True),
        ("10:20:*", False),
    ],
)
def test_transactions_from_before_the_load_must_have_ended_but_for_those_that_had_not_committed(snap, met):
    assert RequiredVisibility(floor=10, exempt=frozenset({9})).met(TransactionSnapshot.parse(snap)) is (
        met and snap != "10:20:10"
    )


def test_events_that_a_keyless_table_holds_already_are_left_out():
    one = One()
    keyless = replace(PLAN, table=replace(PLAN.table, key=()))
    assert not one.touch(25, op="c", plan=keyless)
    view = ReadView(TransactionSnapshot.parse("10:20:12"), HW, 0)
    one.snapshot.read_keyless(view, one.progress.loads[0], one.table)
    for xid, kept in ((11, False), (12, True), (25, True)):
        assert one.touch(xid, op="c", plan=keyless) is kept
    assert not one.snapshot.finished
    one.boundary(HW)
    assert one.snapshot.finished


def test_progress_is_the_same_after_it_was_stored():
    parts = [KeyRange(["1"], ["5"], True), KeyRange(["5"])]
    table = TableLoad(7, "s", "t", parts, ["id"], [["3"]], 2, "a > 1", False, 9, 90, 100)
    load = SnapshotLoad("x", "request", [table], True, 50, 12, [3], 1, 4, 40, 1000)
    stored = SnapshotProgress([load], [1, 2], [{"id": "y"}], [11], 5, 6, 7, {"7": ["1:2:", 3]}, 8).to_json()
    assert SnapshotProgress.from_json(stored).to_json() == stored
    assert SnapshotProgress.from_json(stored).loads[0].tables[0].parts[1] == KeyRange(["5"])


def test_tables_that_were_not_begun_are_stored_as_numbers_and_named_again():
    begun = TableLoad(7, "s", "t", [KeyRange(["1"])], ["id"], rows=1)
    others = [TableLoad(oid, "s", f"t{oid}", estimate=5) for oid in range(20_000, 30_000)]
    chosen = TableLoad(8, "s", "u", filter="a > 1")
    progress = SnapshotProgress([SnapshotLoad("initial", "start", [others[0], begun, chosen, *others[1:]], floor=9)])
    stored = json.loads(json.dumps(progress.to_json(), separators=(",", ":")))
    assert len(json.dumps(stored, separators=(",", ":"))) < 7 * len(others)
    again = SnapshotProgress.from_json(stored)
    again.named({oid: ("s", f"t{oid}", 5) for oid in range(20_000, 29_999)})
    (load,) = again.loads
    assert [(t.table_id, t.full_name, t.estimate) for t in load.tables[:3]] == [
        (7, "s.t", -1), (8, "s.u", -1), (20_000, "s.t20000", 5),
    ]  # fmt: skip
    assert (load.floor, load.tables[-1].name, len(load.tables)) == (9, "", 10_002)
    assert again.known() == {7, 8, *range(20_000, 30_000)}


def test_a_position_of_the_first_form_goes_on_where_it_was():
    old = {"floor": 4, "todo": [[1, "public", "t"], [2, "public", "u"]], "loaded": [3], "last": ["9"], "again": [["2"]]}
    progress = SnapshotProgress.from_json(old)
    (load,) = progress.loads
    assert [table.table_id for table in load.tables] == [1, 2]
    assert (load.floor, load.tables[0].parts, load.tables[0].again) == (4, [KeyRange(["9"])], [["2"]])


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
        ("10:20:*", 9, True),
        ("10:20:*", 10, False),
        ("10:20:*", 15, False),
        ("10:20:*", 20, False),
        ("4294967290:4294967310:*", 4294967289, True),
        ("4294967290:4294967310:*", 5, False),
    ],
)
def test_visibility_goes_by_transaction_id_across_epochs(text, xid, seen):
    snap = TransactionSnapshot.parse(text)
    assert snap.sees(xid) is seen
    assert str(snap) == text


def test_on_a_standby_an_event_that_may_be_the_newer_one_takes_its_row_out():
    one = One([(1, "a"), (2, "b"), (3, "c")], snap="10:20:*")
    one.open()
    # Nobody says whether 15 had ended when the rows were read; 9 certainly had.
    one.touch(15, after=(1, "new"))
    one.touch(9, after=(2, "b"))
    assert rows_of(one.boundary(HW)) == [(2, "b"), (3, "c")]


def test_on_a_standby_what_was_delivered_is_visible_however_long_an_older_transaction_runs():
    assert RequiredVisibility(before=(15, 19)).met(TransactionSnapshot.parse("10:20:*"))
    assert not RequiredVisibility(before=(15, 20)).met(TransactionSnapshot.parse("10:20:*")), (
        "of a server that is behind"
    )
    one = One([(1, "a")], snap="10:20:*")
    one.progress.unseen = [15, 19]
    one.open()
    assert one.progress.unseen == []


@pytest.mark.parametrize(("snap", "begins"), [("20:20:", True), ("10:20:15", True), ("10:20:*", False)])
def test_rows_without_a_key_are_read_in_a_snapshot_that_tells_who_runs(snap, begins):
    one = One(snap=snap)
    load, table = one.progress.loads[0], one.table
    one.loader.keyless = (load, table)
    ended: list[bool] = []
    whole = SimpleNamespace(view=ReadView(TransactionSnapshot.parse(snap), HW, 0), has_key=False)
    tables = SimpleNamespace(begin=lambda oid: whole, end=lambda: ended.append(True))
    assert (whole_table.begin(tables, one.loader, load, table) is not None) is begins  # type: ignore[arg-type]
    assert bool(ended) is not begins
    assert (table.waits_for == "") is begins


def test_rows_that_moved_are_asked_for_once_until_they_are_being_read_and_in_whatever_order_they_fit():
    one = One(progress=SnapshotProgress(loaded=[1]))
    move = messages.update(1, [b"2", "u"], [b"1", None])
    for _ in range(3):
        assert one.snapshot.moved(PLAN, move)
    assert one.snapshot.active
    assert one.table.again == [["2"]]
    one.reader.chunks = [[(2, "b")], [(2, "b")]]
    one.boundary()
    # It is being read, and whether what was read will do is not known.
    assert one.snapshot.moved(PLAN, move)
    assert one.table.again == [["2"], ["2"]]
    one.pool.work()
    assert rows_of(one.boundary(600)) == [(2, "b")]
    stored = one.snapshot.to_json()
    again = One([(2, "c")], progress=SnapshotProgress.from_json(stored))
    again.open()
    assert rows_of(again.boundary(700)) == [(2, "c")]
    assert again.snapshot.finished
    assert not again.progress.done


@pytest.mark.parametrize("loaded", [[], [2]])
def test_rows_that_moved_in_a_table_that_is_still_to_be_read_are_read_with_it(loaded):
    one = One(progress=SnapshotProgress(loaded=loaded))
    assert not one.snapshot.moved(PLAN, messages.update(1, [b"2", "u"], [b"1", None]))
    assert one.snapshot.finished


def test_a_table_that_is_read_because_too_many_rows_moved_waits_for_older_transactions(monkeypatch):
    monkeypatch.setattr(loading, "AGAIN_ROWS_MAX", 1)
    one = One([(2, "b"), (3, "c")], progress=SnapshotProgress(loaded=[1]))
    one.floor = 25
    for number in (b"2", b"3"):
        assert one.snapshot.moved(PLAN, messages.update(1, [number, "u"], [b"1", None]))
    assert (one.table.again, one.table.parts) == ([], [])
    one.open()
    assert one.reader.asked == []
    one.reader.snap = "30:30:"
    one.open()
    assert rows_of(one.boundary(600)) == [(2, "b"), (3, "c")]
    assert one.snapshot.finished


def test_keys_that_would_make_the_position_too_large_have_their_table_read_instead(monkeypatch):
    monkeypatch.setattr(loading, "AGAIN_BYTES_MAX", 100)
    one = One([(2, "b")], progress=SnapshotProgress(loaded=[1]))
    for number in range(100):
        one.snapshot.moved(PLAN, messages.update(1, [str(number).encode(), "u"], [b"1", None]))
        assert one.progress.again_bytes() <= 100
    assert (one.table.again, one.table.parts) == ([], [])


def test_a_transaction_is_told_with_each_part_and_kept_once():
    one = One(progress=SnapshotProgress(loaded=[1]))
    one.snapshot.committed(700)
    assert one.progress.unseen == []
    one.snapshot.moved(PLAN, messages.update(1, [b"2", "u"], [b"1", None]))
    for _ in range(3):
        one.snapshot.committed(700)
    assert one.progress.unseen == [700]


def test_a_request_may_have_the_word_for_moved_rows_as_its_id():
    one = One(progress=SnapshotProgress(loaded=[1]))
    one.progress.loads.append(SnapshotLoad("moved", "signal"))
    one.snapshot.moved(PLAN, messages.update(1, [b"2", "u"], [b"1", None]))
    assert [(load.id, load.origin, len(load.tables)) for load in one.progress.loads] == [
        ("moved", "signal", 0),
        ("cdcworker.moved", "moved", 1),
    ]


def test_keys_that_a_chunk_had_no_room_for_are_read_next():
    one = One([(2, "b")], progress=SnapshotProgress(loaded=[1]))
    for number in (b"2", b"3"):
        one.snapshot.moved(PLAN, messages.update(1, [number, "u"], [b"1", None]))
    one.open()
    one.loader.windows[0].chunk.unread = [["3"]]
    assert rows_of(one.boundary(600)) == [(2, "b")]
    assert one.table.again == [["3"]]


def test_a_key_that_was_not_sent_is_in_the_old_tuple():
    wide = Relation(1, "public", "t", "d", (RelationColumn("id", 25, -1, True), RelationColumn("v", 25, -1, False)))
    plan = build_plan(wide, None, KNOWN, key_of(wide, None), PLANNER)
    assert new_key_texts(plan, messages.update(1, ["u", "u"], [b"long", None])) == ["long"]
    assert new_key_texts(plan, messages.update(1, [b"a", "u"])) == ["a"]
    assert new_key_texts(plan, messages.update(1, ["u", "u"])) is None


def test_skips_that_are_over_are_a_step_that_has_to_be_stored():
    one = One(progress=SnapshotProgress(skips={"7": ("10:20:12", 5)}))
    before = one.snapshot.moves
    one.snapshot.passed(4)
    assert (one.snapshot.moves, one.snapshot.finished) == (before, False)
    one.snapshot.passed(5)
    assert (one.snapshot.moves, one.snapshot.finished) == (before + 1, True)
