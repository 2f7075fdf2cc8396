"""Records cut where transactions of the source end, against a broker whose partitions show a commit at different moments."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.transactions.record_spool import RecordSpool
from cdcworker.connectors.transactions.transaction_cutter import PositionedRecords, SourceWatermark, TransactionCutter

PLACES = [("s.public.a", 0), ("s.public.a", 1), ("s.public.b", 0), ("s.public.quiet", 0)]
MARKS = ("s.watermark", 0)


class Log:
    """Partitions with control records: what was written, up to where it may be read, where commits have still to come."""

    def __init__(self, chance):
        self.chance = chance
        self.written = defaultdict(list)
        self.stable = defaultdict(int)
        self.coming = []
        self.read = defaultdict(int)
        self.positions = []

    def transact(self, transactions, watermark):
        touched = set()
        for position, places in transactions:
            self.positions.append(position)
            for place in places:
                self.written[place].append(position)
                touched.add(place)
        if watermark is not None:
            self.written[MARKS].append(watermark)
            touched.add(MARKS)
        return touched

    def commit(self, touched):
        for place in touched:
            self.written[place].append(None)
            self.coming.append((place, len(self.written[place])))

    def settle(self, everything=False):
        """Commits show in some partitions, in the order in which they were made there."""
        left, blocked = [], set()
        for place, end in self.coming:
            if place not in blocked and (everything or self.chance.random() < 0.5):
                self.stable[place] = end
            else:
                blocked.add(place)
                left.append((place, end))
        self.coming = left

    def fetch(self, everything=False):
        rows, marks, ends = [], [], {}
        for place in [*PLACES, MARKS]:
            start, limit = self.read[place], self.stable[place]
            end = limit if everything else self.chance.randint(start, limit)
            for offset in range(start, end):
                position = self.written[place][offset]
                if position is not None and place == MARKS:
                    marks.append(SourceWatermark(place, offset, "c", 0, position, position))
                elif position is not None:
                    rows.append((*place, offset, position))
            self.read[place] = ends[place] = end
        return records(rows), marks, ends

    def ends(self):
        return {place: len(self.written[place]) for place in PLACES}


def records(rows):
    names = ("topic", "partition", "offset")
    table = pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)} or None)
    types = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    positions = np.array([row[3] for row in rows], np.int64)
    return PositionedRecords(table.cast(types), positions, positions)


def taken(cut):
    return [tuple(row.values()) for piece in cut.pieces for row in piece.take().to_pylist()] if cut else []


def play(seed, tmp_path, memory_max):
    """The positions after which cuts were made, each found to hold exactly what lies before it."""
    chance = random.Random(seed)
    log, cutter = Log(chance), TransactionCutter({}, RecordSpool(tmp_path, memory_max))
    shown, seen, position, cuts = 0, set(), 0, []

    def look(everything=False):
        nonlocal shown
        cutter.add(*log.fetch(everything))
        cutter.claim(log.ends)
        cut = cutter.cut()
        seen.update(taken(cut))
        if cut is not None and "s" in cut.through:
            assert cut.through["s"].position >= shown
            shown = cut.through["s"].position
            cuts.append(shown)
        wanted = {
            (*place, offset)
            for place in PLACES
            for offset, at in enumerate(log.written[place])
            if at is not None and at < shown
        }
        assert seen == wanted

    for _ in range(chance.randint(1, 25)):
        transactions = []
        for _ in range(chance.randint(1, 3)):
            position += chance.randint(1, 5)
            transactions.append((position, [chance.choice(PLACES[:3]) for _ in range(chance.randint(1, 5))]))
        touched = log.transact(transactions, position + 1 if chance.random() < 0.7 else None)
        if chance.random() < 0.3:
            look()
        log.commit(touched)
        for _ in range(chance.randint(0, 3)):
            log.settle()
            look()
    log.commit(log.transact([], position + 1))
    log.settle(everything=True)
    look(everything=True)
    assert shown == position + 1
    return cuts


@pytest.mark.parametrize("memory_max", [1 << 20, 0])
def test_every_cut_holds_all_transactions_before_it_and_nothing_behind_it(tmp_path, memory_max):
    cuts = [len(play(seed, tmp_path, memory_max)) for seed in range(25)]
    assert sum(cuts) > 100
    assert not list(tmp_path.iterdir())


def test_what_stands_there_goes_on_before_the_last_of_it_is_read(tmp_path):
    """A backlog is not taken at once: watermarks far ahead of it are not waited for."""
    cutter = TransactionCutter({}, RecordSpool(tmp_path))
    ends = {("s.public.a", 0): 100, ("s.public.b", 0): 100}
    rows = [(topic, 0, offset, offset * 10) for topic in ("s.public.a", "s.public.b") for offset in range(50)]
    cutter.add(records(rows), [SourceWatermark(MARKS, 0, "c", 0, 5000, 1)], dict.fromkeys(ends, 50))
    cutter.claim(lambda: ends)
    cut = cutter.cut()
    assert cut.through["s"].position == 490
    assert len(taken(cut)) == 98


def test_a_partition_out_of_order_is_cut_only_where_it_is_clean(tmp_path):
    cutter = TransactionCutter({}, RecordSpool(tmp_path))
    place = ("s.public.a", 0)
    cutter.add(
        records([(*place, 0, 10), (*place, 1, 30), (*place, 2, 20)]),
        [SourceWatermark(MARKS, 0, "c", 0, 25, 1)],
        {place: 3},
    )
    cutter.claim(lambda: {place: 3})
    assert taken(cutter.cut()) == []
    cutter.add(records([]), [SourceWatermark(MARKS, 1, "c", 0, 40, 1)], {place: 3})
    cutter.claim(lambda: {place: 3})
    assert len(taken(cutter.cut())) == 3


def test_of_several_tasks_the_last_one_counts_and_a_new_connector_replaces_the_old(tmp_path):
    cutter = TransactionCutter({}, RecordSpool(tmp_path))
    place = ("s.public.a", 0)
    marks = [SourceWatermark(MARKS, n, "c", n, 100 + n, 1, tasks=2) for n in range(2)]
    cutter.add(records([(*place, 0, 50), (*place, 1, 100)]), marks[:1], {place: 2})
    cutter.claim(lambda: {place: 2})
    assert cutter.cut() is None, "the other one has not said anything yet"
    cutter.add(records([]), marks[1:], {place: 2})
    cutter.claim(lambda: {place: 2})
    assert cutter.cut().through["s"].position == 100
    cutter.add(records([]), [SourceWatermark(MARKS, 2, "new", 0, 200, 7)], {place: 2})
    cutter.claim(lambda: {place: 2})
    cut = cutter.cut()
    assert (cut.through["s"].position, cut.through["s"].ts_ms) == (200, 100)
    assert cut.marks == {MARKS: (1, 3)}


def test_tables_that_are_loading_are_named_and_two_sources_are_cut_apart(tmp_path):
    cutter = TransactionCutter({"t": 70}, RecordSpool(tmp_path))
    ours, theirs = ("s.public.a", 0), ("t.public.a", 0)
    marks = [
        SourceWatermark(MARKS, 0, "c", 0, 11, 5, ("public.a",)),
        SourceWatermark(("t.watermark", 0), 0, "d", 0, 60, 6),
    ]
    cutter.add(records([(*ours, 0, 10), (*theirs, 0, 65), (*theirs, 1, 75)]), marks, {ours: 1, theirs: 2})
    cutter.claim(lambda: {ours: 1, theirs: 9})
    cut = cutter.cut()
    assert cut.through["s"].left_out == ("public.a",)
    assert cut.through["t"].position == 75
    assert sorted(taken(cut)) == [("s.public.a", 0, 0), ("t.public.a", 0, 0)]


def test_there_is_no_cut_before_what_a_part_of_the_target_shows_already(tmp_path):
    cutter = TransactionCutter({"s": 10}, RecordSpool(tmp_path), {"s": 31})
    place, other = ("s.public.a", 0), ("s.public.b", 0)
    ends = {place: 3, other: 1}
    cutter.add(
        records([(*place, 0, 20), (*place, 1, 30)]), [SourceWatermark(MARKS, 0, "c", 0, 30, 1)], {place: 2, other: 0}
    )
    cutter.claim(lambda: {place: 2, other: 0})
    assert cutter.cut() is None
    cutter.add(records([(*place, 2, 40)]), [SourceWatermark(MARKS, 1, "c", 0, 31, 1)], {place: 3, other: 0})
    cutter.claim(lambda: ends)
    assert cutter.cut() is None
    cutter.add(records([(*other, 0, 30)]), [], ends)
    cut = cutter.cut()
    assert cut.through["s"].position == 40
    assert sorted(taken(cut)) == [(*place, 0), (*place, 1), (*other, 0)]


def test_nothing_is_said_while_a_part_of_the_target_is_ahead_of_what_readers_see(tmp_path):
    """Not even that old watermarks are done with: it would be said of tables that have gone on."""
    cutter = TransactionCutter({"s": 100}, RecordSpool(tmp_path), {"s": 131})
    place = ("s.public.a", 0)
    cutter.add(records([(*place, 0, 110)]), [SourceWatermark(MARKS, 0, "c", 0, 90, 1)], {place: 1})
    cutter.claim(lambda: {place: 2})
    assert cutter.cut() is None
    cutter.add(records([(*place, 1, 130)]), [SourceWatermark(MARKS, 1, "c", 0, 140, 1)], {place: 2})
    cutter.claim(lambda: {place: 2})
    cut = cutter.cut()
    assert (cut.through["s"].position, cut.marks[MARKS], len(taken(cut))) == (140, (0, 2), 2)


def test_nothing_is_told_while_a_table_that_was_paused_is_behind_what_is_shown(tmp_path):
    """An idle source says the same position again; what the table lacks comes in more than one batch."""
    cutter, behind, ends = TransactionCutter({"s": 1000}, RecordSpool(tmp_path, 1 << 20)), ("s.public.b", 0), {}
    ends = {("s.public.a", 0): 50, behind: 90}

    def batch(offsets, marks):
        rows = [(*behind, offset, 100 + offset) for offset in offsets]
        told = [SourceWatermark(MARKS, offset, "c", 0, 1000, 7) for offset in marks]
        cutter.add(records(rows), told, {("s.public.a", 0): 50, behind: offsets.stop})
        cutter.claim(lambda: ends)
        return cutter.cut()

    first = batch(range(10), [0])
    assert len(taken(first)) == 10
    assert (first.through, first.marks) == ({}, {})
    assert batch(range(10, 89), [1]).through == {}
    last = batch(range(89, 90), [2])
    assert last.through["s"].position == 1000
    assert last.marks == {MARKS: (0, 3)}
