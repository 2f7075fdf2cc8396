"""What every warehouse has to do, as tests over a fixture `open_writer(**output)`; each kind of target runs them all."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass, replace

import pytest
from cdcworker.connectors.api.table_batch import DELETED, KEY, OP, POSITION, UNCHANGED
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.sink_engine.paused_tables import RETRY_S_MAX, PausedTables
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses import merge as merging
from cdcworker.connectors.warehouses.lake import statements as lakesql
from cdcworker.connectors.warehouses.output_config import output_of
from cdcworker.connectors.warehouses.schema_policy import pausing as pauses
from cdcworker.connectors.warehouses.sql import target_table
from cdcworker.schemas.errors import CdcError

from .. import change_streams
from ..change_streams import ID, NARROW, column, table

TOPIC = "shop.public.orders"
OTHER = "shop.public.other"
MIRRORED = "far.shop.public.orders"
ONE = column("id", "long", "bigint", False, column_id=1)
SINK = {"name": "sink", "topics": TOPIC, "warehouse": "parquet", "warehouse.path": "/lake"}
OWN = (KEY, POSITION, OP, UNCHANGED, DELETED)
ANYWHERE = (
    *OWN,
    *(target_table.KEPT, target_table.STAGE_KEY, target_table.ORIGIN_KEY, f"{target_table.ORIGIN}id"),
    *(lakesql.GONE, merging.ROW, "_cdc_moving_0"),
)
"""Names of the sink's columns, in tables or on the way there."""


def run(stream, writer, cuts=(), log=False, topic=TOPIC):
    """All records that the writer has not seen, cut into batches."""
    assembler = stream.assembler(log)
    writer.claim([topic])
    edges = [0, *sorted({min(cut, len(stream.records)) for cut in cuts}), len(stream.records)]
    counts = []
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        batch = assembler.build(change_streams.arrow(stream.records[start:end]), writer.ledger(), number)
        if batch.offsets:
            counts.append(writer.apply(batch))
    return counts


def mirrored(stream):
    for record in stream.records:
        record["topic"] = MIRRORED


def rows(writer, *names, topic=TOPIC):
    """Rows as a reader sees them: tuples of the named columns, sorted."""
    found = writer.rows(topic)
    if found is None:
        return []
    out = []
    for batch in found.batches:
        out += [tuple(row[name] for name in names) for row in batch.to_pylist()]
    found.close()
    return sorted(out, key=repr)


def columns(writer, topic=TOPIC):
    found = writer.rows(topic)
    names = [name for batch in found.batches for name in batch.schema.names if name not in OWN]
    found.close()
    return names


def shifted(stream, ends):
    """Its records behind these offsets."""
    for record in stream.records:
        record["offset"] += ends.get((record["topic"], record["partition"]), 0) + 1
    return stream


def passes_of(writer, name):
    """A list that grows with each call of a method from now on."""
    passes, method = [], getattr(writer, name)
    setattr(writer, name, lambda *args: passes.append(1) or method(*args))
    return passes


@dataclass
class TwoTables:
    """A driver's part of two topics: batches from the ledger on, through what pauses tables."""

    writer: object
    enabled: bool = True
    now: float = 0.0
    topics: tuple = (TOPIC, OTHER)

    def __post_init__(self):
        self.stream = change_streams.Stream(1)
        self.paused = PausedTables(self.enabled, lambda: self.now)

    def run(self):
        topics = self.paused.reading(self.topics)
        self.writer.claim(topics)
        records = [record for record in self.stream.records if record["topic"] in topics]
        batch = self.stream.assembler().build(change_streams.arrow(records), self.writer.ledger(), 1)
        return self.paused.apply(self.writer.apply, batch)


def of(*columns, key=(0,)):
    return table(ONE, *columns, key=key)


@dataclass(frozen=True)
class Change:
    """Of a table's columns between two rows, which are read as `rows` where the warehouse follows."""

    before: object
    first: tuple
    after: object
    second: tuple
    names: tuple = ()
    rows: tuple = ()


N = column("n", "int", "integer", column_id=2)
TEXT = column("s", "string", "text", column_id=3)
FOLLOWED = {
    "add": Change(of(N), (1, 5), of(N, TEXT), (2, 6, "x"), ("id", "n", "s"), ((1, 5, None), (2, 6, "x"))),
    "widen": Change(
        of(N),
        (1, 5),
        of(column("n", "long", "bigint", column_id=2)),
        (2, 2**40),
        ("id", "n"),
        ((1, 5), (2, 2**40)),
    ),
    "rename": Change(
        of(N), (1, 5), of(column("m", "int", "integer", column_id=2)), (2, 6), ("id", "m"), ((1, 5), (2, 6))
    ),
    "drop": Change(of(N, TEXT), (1, 5, "x"), of(N), (2, 6), ("id", "n", "s"), ((1, 5, "x"), (2, 6, None))),
    # What the column holds already may not fit the narrower type: it stays as wide as it is.
    "narrow": Change(
        of(column("n", "long", "bigint", column_id=2)), (1, 2**40), of(N), (2, 6), ("id", "n"), ((1, 2**40), (2, 6))
    ),
}
REFUSED = {
    "retype": Change(
        of(column("n", "boolean", "boolean", column_id=2)),
        (1, True),
        of(column("n", "double", "double precision", column_id=2)),
        (2, 5.5),
        ("id", "n"),
    ),
    "key": Change(of(N, TEXT), (1, 5, "x"), of(N, TEXT, key=(0, 2)), (1, 6, "y"), ("id", "n", "s")),
}


def under_each_policy(names, *policies):
    """Pairs of a change and a policy: in CI all changes under the last policy, and the first one under the others."""
    names = list(names)
    return [
        pytest.param(name, policy, marks=[pytest.mark.long] if name != names[0] and policy != policies[-1] else [])
        for policy in policies
        for name in names
    ]


DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
BY_HAND = {
    "double": (REFUSED["retype"], 5.5),
    "date": (Change(of(N), (1, 5), of(column("n", DATE, "date", column_id=2)), (2, 0)), dt.date(1970, 1, 1)),
}


class ByHand:
    """Of warehouses whose tables a person can change beside the sink: `retype(column, type)` empties a column."""

    @pytest.mark.parametrize("kind", BY_HAND)
    def test_a_paused_table_that_somebody_mends_catches_up_by_itself(self, open_writer, kind):
        (change, value), other = BY_HAND[kind], table(ID, name="other")
        world = TwoTables(open_writer())
        world.stream.insert(change.before, change.first)
        world.run()
        world.stream.insert(change.after, change.second)
        world.stream.insert(other, (7,))
        world.run()
        # More comes meanwhile, and the time for another try, in vain.
        world.stream.insert(change.after, (3, *change.second[1:]))
        world.stream.insert(other, (8,))
        world.now += RETRY_S_MAX
        world.run()
        assert world.paused.topics == {TOPIC}
        assert rows(world.writer, "id", topic=OTHER) == [(7,), (8,)]
        self.retype("n", kind)
        world.now += RETRY_S_MAX
        world.run()
        assert world.paused.topics == frozenset()
        assert rows(world.writer, "id", "n") == [(1, None), (2, value), (3, value)]


class Contract:
    """Tests of one kind of warehouse. `log` targets get `output` keys of the fixture."""

    def test_rows_are_inserted_updated_and_deleted(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        for number in range(5):
            stream.insert(NARROW, (number, 1, "a", "b"), "r")
        stream.update(NARROW, (1, None, "", "c"))
        stream.delete(NARROW, (2,))
        run(stream, writer, [3, 5])
        wanted = [(0, 1, "a", "b"), (1, None, "", "c"), (3, 1, "a", "b"), (4, 1, "a", "b")]
        assert rows(writer, "id", "n", "a", "big") == wanted

    def test_the_same_batch_twice_changes_nothing(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(NARROW, (1, 2, "a", "b"))
        stream.update(NARROW, (1, 3, "a", None), (3,))
        batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
        writer.claim([TOPIC])
        assert not writer.apply(batch)["replayed"]
        before = rows(writer, "id", "n", "big", POSITION)
        assert writer.apply(batch)["replayed"]
        assert rows(writer, "id", "n", "big", POSITION) == before

    def test_offsets_are_in_the_target_with_the_rows(self, open_writer):
        stream = change_streams.Stream()
        for number in range(6):
            stream.insert(NARROW, (number, 1, "a", "b"))
        run(stream, open_writer(), [2, 4])
        again = open_writer(epoch=(1, 1))
        again.claim([TOPIC])
        ends = {(r["topic"], r["partition"]): r["offset"] + 1 for r in stream.records}
        assert dict(again.ledger()) == ends

    def test_a_batch_that_begins_below_the_ledger_is_refused(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(NARROW, (1, 2, "a", "b"))
        run(stream, writer)
        stream.insert(NARROW, (2, 2, "a", "b"))
        with pytest.raises(CdcError) as caught:
            writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
        assert caught.value.code == "spark.ledger_moved"
        assert rows(writer, "id") == [(1,)]

    def test_a_newer_epoch_stops_the_older_writer(self, open_writer):
        stream, old = change_streams.Stream(1), open_writer()
        stream.insert(NARROW, (1, 2, "a", "b"))
        run(stream, old)
        new = open_writer(epoch=(2, 0))
        new.claim([TOPIC])
        stream.insert(NARROW, (2, 2, "a", "b"))
        batch = stream.assembler().build(change_streams.arrow(stream.records), new.ledger(), 1)
        with pytest.raises(CdcError) as caught:
            old.apply(batch)
        assert caught.value.kind == "fenced"
        new.apply(batch)
        assert rows(new, "id") == [(1,), (2,)]

    def test_unchanged_columns_stay_as_they_are_in_the_target(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(NARROW, (1, 1, "a", "large"))
        run(stream, writer)
        stream.update(NARROW, (1, 2, "b", None), (3,))
        stream.update(NARROW, (1, 3, None, None), (2, 3))
        run(stream, writer)
        assert rows(writer, "id", "n", "a", "big") == [(1, 3, "b", "large")]

    @pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 3)), 9])
    def test_a_row_that_changes_its_key_takes_its_unchanged_columns_along(self, open_writer, size):
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(NARROW, (1, 1, "a", "large"))
        stream.move(NARROW, (1,), (2, 2, "b", None), (3,))
        stream.move(NARROW, (2,), (1, 3, "c", None), (3,))
        stream.move(NARROW, (1,), (7, 4, "d", None), (3,))
        run(stream, writer, range(0, 20, size))
        assert rows(writer, "id", "n", "a", "big") == [(7, 4, "d", "large")]

    def test_a_truncate_takes_what_came_before_and_nothing_later(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (2, 1, "a", "b"))
        run(stream, writer, [1])
        assert rows(writer, "id") == [(2,)]

    @pytest.mark.parametrize(
        "cuts", [(1, 3), (), *(pytest.param(cuts, marks=pytest.mark.long) for cuts in ((1, 2, 3), (3, 4)))]
    )
    def test_a_truncate_in_a_topic_without_a_schema_of_its_key_leaves_the_table_its_key(self, open_writer, cuts):
        """Somebody mirrors the topic under another name."""
        stream, writer = change_streams.Stream(1), open_writer()
        stream.truncate(NARROW)
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.truncate(NARROW)
        for number in (2, 3, 3):
            stream.insert(NARROW, (number, 2, "a", "b"))
        mirrored(stream)
        run(stream, writer, [*cuts, 5, 6], topic=MIRRORED)
        assert rows(writer, "id", "n", topic=MIRRORED) == [(2, 2), (3, 2)]

    def test_such_a_truncate_finds_positions_under_the_name_that_they_still_have(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(position="seen_at")
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (2, 1, "a", "b"))
        mirrored(stream)
        later = stream.records[1:]
        del stream.records[1:]
        run(stream, writer, topic=MIRRORED)
        stream.records += later
        run(stream, open_writer(epoch=(2, 0), position="changed_at"), [2], topic=MIRRORED)
        assert rows(writer, "id", topic=MIRRORED) == [(2,)]

    def test_such_a_truncate_that_comes_late_leaves_the_rows_behind_it_where_they_are_found(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        stream.truncate(NARROW)
        for n in (1, 2):
            for id in range(9):
                stream.insert(NARROW, (id, n, "a", "b"))
        mirrored(stream)
        # The partition of the truncate is read after the others, and its rows after it.
        first, last = ([r for r in stream.records if (r["partition"] == 0) == late] for late in (False, True))
        stream.records = [*first[: len(first) // 2], *last[:1], *first[len(first) // 2 :], *last[1:]]
        half = len(first) // 2
        run(stream, writer, [half, half + 1, *range(half + 2, half + 6)], topic=MIRRORED)
        assert rows(writer, "id", "n", topic=MIRRORED) == [(id, 2) for id in range(9)]

    def test_keys_of_several_columns_and_keys_with_null(self, open_writer):
        wide = table(
            column("a", "int", "integer"), column("b", "string", "text"), column("v", "int", "integer"), key=(0, 1)
        )
        stream, writer = change_streams.Stream(), open_writer()
        for row in ((1, "x", 1), (1, "y", 2), (None, "x", 3), (1, "x", 4)):
            stream.insert(wide, row)
        stream.delete(wide, (1, "y"))
        stream.insert(wide, (None, "x", 5), "u")
        run(stream, writer, [2])
        assert rows(writer, "a", "b", "v") == [(1, "x", 4), (None, "x", 5)]

    def test_tables_without_a_key_are_appended_to(self, open_writer):
        log = table(column("n", "int", "integer"), key=())
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(log, (1,))
        stream.insert(log, (1,))
        stream.emit(stream.change("d", log, before=(1,)))
        run(stream, writer, [1])
        assert rows(writer, "n", OP) == [(1, "c"), (1, "c"), (1, "d")]

    def test_columns_are_added_with_their_default_and_widened(self, open_writer):
        then = table(
            ID,
            column("n", "long", "bigint"),
            column("note", "string", "text", default="none"),
            column("x", "int", "integer"),
        )
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(table(ID, column("n", "int", "integer")), (1, 5))
        stream.insert(table(ID, column("n", "int", "integer")), (2, 6))
        run(stream, writer)
        stream.insert(then, (1, 2**40, "new", 7), "u")
        run(stream, writer)
        assert rows(writer, "id", "n", "note", "x") == [(1, 2**40, "new", 7), (2, 6, "none", None)]

    def test_a_column_that_the_source_drops_stays(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(table(ID, column("n", "int", "integer")), (2, 2))
        run(stream, writer)
        assert rows(writer, "id", "n", "a") == [(1, 1, "a"), (2, 2, None)]

    def test_a_column_that_the_source_drops_goes_where_it_is_to(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        first = of(N, TEXT, column("t", "string", "text", column_id=4))
        stream.insert(first, (1, 5, "x", "y"))
        stream.insert(first, (2, 6, "x", "y"))
        run(stream, writer)
        # One of them gives its name to another column, in the same change.
        later = of(N, column("s", "string", "text", column_id=5, default="none"))
        stream.update(later, (1, 7, "new"))
        run(stream, writer)
        assert rows(writer, "id", "n", "s") == [(1, 7, "new"), (2, 6, "none")]
        assert {"t", "s_dropped_3"}.isdisjoint(columns(writer))
        # A new writer finds the columns as they are.
        writer = open_writer(epoch=(2, 0), drop=True)
        stream.insert(later, (3, 8, None))
        run(stream, writer)
        assert rows(writer, "id", "n", "s") == [(1, 7, "new"), (2, 6, "none"), (3, 8, None)]

    def test_a_column_that_takes_the_name_of_one_that_goes_brings_its_values(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        stream.insert(of(TEXT, column("s_new", "string", "text", column_id=4)), (1, "old", "new"))
        run(stream, writer)
        stream.insert(of(column("s", "string", "text", column_id=4)), (2, "newer"))
        run(stream, writer)
        assert rows(writer, "id", "s") == [(1, "new"), (2, "newer")]
        assert {"s_new", "s_dropped_3"}.isdisjoint(columns(writer))

    def test_only_what_the_newest_change_lacks_is_dropped_whatever_comes_late(self, open_writer):
        """Partitions are read at their own pace: the shape from before a column was added lacks it too."""
        stream, writer = change_streams.Stream(), open_writer(drop=True)
        writer.claim([TOPIC])
        early, wide, late = of(N), of(N, TEXT), of(TEXT)
        for at, (shape, values) in enumerate([(early, (1,)), (wide, (2, "x")), (late, ("y",))]):
            for number in range(20):
                stream.insert(shape, (20 * at + number, *values))
        assembler = stream.assembler()
        ages = [stream.records[start : start + 20] for start in (0, 20, 40)]
        parts = [[[r for r in age if r["partition"] == at] for age in ages] for at in range(change_streams.PARTITIONS)]
        assert all(all(part) for part in parts)

        def put(records):
            writer.apply(assembler.build(change_streams.arrow(records), writer.ledger(), 1))

        # One partition is read up to the middle shape, then another one from its beginning.
        put(parts[0][0] + parts[0][1])
        put(parts[1][0])
        assert {"n", "s"} <= set(columns(writer))
        put(parts[0][2])
        assert "n" not in columns(writer)
        put(parts[1][1] + parts[1][2])
        put([*parts[2][0], *parts[2][1], *parts[2][2]])
        assert "n" not in columns(writer)
        wanted = [(at, (None, "x", "y")[at // 20]) for at in range(60)]
        assert rows(writer, "id", "s") == sorted(wanted, key=repr)

    def test_rows_from_before_a_column_was_added_have_its_default_however_late_they_come(self, open_writer):
        """Partitions are read at their own pace."""
        stream, writer = change_streams.Stream(), open_writer()
        writer.claim([TOPIC])
        early, later = of(N), of(N, column("s", "string", "text", column_id=4, default="none"))
        for number in range(20):
            stream.insert(early, (number, 1))
        for number in range(20, 40):
            stream.insert(later, (number, 1, "x"))
        assembler = stream.assembler()
        of_partition = [[r for r in stream.records if r["partition"] == at] for at in range(change_streams.PARTITIONS)]
        for records in of_partition:
            writer.apply(assembler.build(change_streams.arrow(records), writer.ledger(), 1))
        assert rows(writer, "id", "s") == sorted(((at, "none" if at < 20 else "x") for at in range(40)), key=repr)

    def test_a_large_value_that_was_not_sent_stays_where_other_columns_go(self, open_writer):
        def shape(*more):
            return of(column("big", "string", "text", column_id=9), *more)

        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        stream.insert(shape(TEXT), (1, "large", "x"))
        run(stream, writer)
        stream.update(shape(TEXT), (1, None, None), (1, 2))
        stream.move(shape(TEXT), (1,), (2, None, None), (1, 2))
        stream.update(shape(), (2, None), (1,))
        run(stream, writer)
        assert rows(writer, "id", "big") == [(2, "large")]
        assert "s" not in columns(writer)

    @pytest.mark.parametrize("log", [False, True], ids=["without-a-key", "log"])
    def test_histories_keep_the_columns_that_the_source_drops(self, open_writer, log):
        stream, writer = change_streams.Stream(1), open_writer(drop=True, log=log)
        key = (0,) if log else ()
        stream.insert(table(ONE, N, TEXT, key=key), (1, 5, "x"))
        run(stream, writer, log=log)
        stream.insert(table(ONE, N, key=key), (2, 6))
        run(stream, writer, log=log)
        assert rows(writer, "id", "n", "s") == [(1, 5, "x"), (2, 6, None)]

    def test_a_renamed_column_keeps_its_values(self, open_writer):
        before = table(ID, column("old", "string", "text", column_id=2), column("n", "int", "integer", column_id=3))
        after = table(ID, column("new", "string", "text", column_id=2), column("n", "int", "integer", column_id=3))
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(before, (1, "a", 1))
        stream.insert(before, (2, "b", 1))
        run(stream, writer)
        stream.insert(after, (2, "c", 2), "u")
        run(stream, writer)
        assert rows(writer, "id", "new", "n") == [(1, "a", 1), (2, "c", 2)]
        assert "old" not in columns(writer)

    @pytest.mark.parametrize("log", [False, True], ids=["state", "log"])
    def test_a_column_that_is_dropped_and_added_again_is_another_one(self, open_writer, log):
        def shape(first, **more):
            some = column("s", "string", "text", column_id=first)
            return table(ONE, some, column("d", "string", "text", column_id=first + 1, **more))

        stream, writer = change_streams.Stream(1), open_writer(log=log)
        for number in (1, 2):
            stream.insert(shape(2), (number, "old", "old"))
        run(stream, writer, log=log)
        stream.insert(shape(4, default="none"), (3, "new", "new"))
        stream.insert(shape(6, default="other"), (4, "newer", "newer"))
        run(stream, writer, log=log)
        wanted = [(1, None, "other"), (2, None, "other"), (3, None, "other"), (4, "newer", "newer")]
        assert rows(writer, "id", "s", "d") == wanted
        wanted = [(1, "old", None, "none"), (2, "old", None, "none"), (3, None, "new", "new"), (4, None, None, None)]
        assert rows(writer, "id", "s_dropped_2", "s_dropped_4", "d_dropped_5") == wanted

    @pytest.mark.parametrize("log", [False, True], ids=["state", "log"])
    def test_a_column_that_takes_the_name_of_a_dropped_one_brings_its_values(self, open_writer, log):
        status, fresh = (column("status", "string", "text", column_id=id) for id in (2, 3))
        stream, writer = change_streams.Stream(1), open_writer(log=log)
        for number in (1, 2):
            stream.insert(table(ONE, status, column("status_new", "string", "text", column_id=3)), (number, "a", "b"))
        run(stream, writer, log=log)
        stream.insert(table(ONE, fresh), (3, "c"))
        run(stream, writer, log=log)
        assert rows(writer, "id", "status") == [(1, "b"), (2, "b"), (3, "c")]
        assert rows(writer, "id", "status_dropped_2") == [(1, "a"), (2, "a"), (3, None)]
        assert "status_new" not in columns(writer)

    @pytest.mark.parametrize("log", [False, True], ids=["state", "log"])
    def test_columns_that_exchange_their_names_keep_their_values(self, open_writer, log):
        def shape(names):
            return table(ONE, *(column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)))

        stream, writer = change_streams.Stream(1), open_writer(log=log)
        stream.insert(shape("abcde"), (1, "A", "B", "C", "D", "E"))
        run(stream, writer, log=log)
        # Two exchange, three go round.
        stream.insert(shape("badec"), (2, "A", "B", "C", "D", "E"))
        run(stream, writer, log=log)
        assert rows(writer, "id", *"badec") == [(number, "A", "B", "C", "D", "E") for number in (1, 2)]

    def test_a_key_that_another_column_becomes_is_refused(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(table(ONE, column("other", "long", "bigint", False, column_id=2)), (1, 2))
        run(stream, writer)
        stream.insert(table(column("id", "long", "bigint", False, column_id=2)), (3,))
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert (caught.value.code, caught.value.where["topic"]) == ("spark.schema_refused", TOPIC)
        assert rows(writer, "id", "other") == [(1, 2)]

    def test_a_row_that_waits_for_its_new_key_follows_its_columns(self, open_writer):
        def shape(*names):
            return table(ONE, *(column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)))

        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(shape("a", "b"), (1, "A", "B"))
        stream.emit(stream.change("d", shape("a", "b"), before=(1, None, None), other_key=(2,)))
        stream.insert(shape("b", "a"), (3, "A", "B"))
        come = {"after": (2, "A", None), "other_key": (1,), "unchanged": (2,)}
        stream.emit(stream.change("c", shape("b", "a"), **come))
        run(stream, writer, range(len(stream.records)))
        assert rows(writer, "id", "b", "a") == [(number, "A", "B") for number in (2, 3)]

    def test_a_type_that_cannot_be_widened_is_refused(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(table(ID, column("n", "boolean", "boolean")), (1, True))
        run(stream, writer)
        stream.insert(table(ID, column("n", "double", "double precision")), (1, 5.5), "u")
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert caught.value.code == "spark.schema_refused"

    def test_deleted_rows_can_stay_and_come_back(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer(soft=True)
        for number in (1, 2):
            stream.insert(NARROW, (number, 1, "a", "b"))
        stream.delete(NARROW, (1,))
        stream.delete(NARROW, (2,))
        run(stream, writer, [2, 3])
        assert rows(writer, "id", "a", DELETED) == [(1, "a", True), (2, "a", True)]
        stream.insert(NARROW, (2, 5, "again", "b"))
        run(stream, writer)
        assert rows(writer, "id", "a", DELETED) == [(1, "a", True), (2, "again", False)]

    def test_a_change_log_holds_every_change_in_order(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(log=True)
        stream.insert(NARROW, (1, 1, "a", "large"))
        stream.update(NARROW, (1, 2, "b", None), (3,))
        stream.move(NARROW, (1,), (2, 3, "c", "new"))
        stream.delete(NARROW, (2,))
        stream.truncate(NARROW)
        run(stream, writer, [1, 3], log=True)
        found = rows(writer, POSITION, OP, "id", "n", "big", UNCHANGED)
        assert [row[1:] for row in found] == [
            ("c", 1, 1, "large", None),
            ("u", 1, 2, None, "big"),
            ("d", 1, None, None, None),
            ("c", 2, 3, "new", None),
            ("d", 2, None, None, None),
            ("t", None, None, None, None),
        ]

    def test_a_column_says_when_a_row_was_written(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer(synced="_synced_at")
        stream.insert(NARROW, (1, 1, "a", "b"))
        run(stream, writer)
        first = rows(writer, "_synced_at")[0][0]
        assert first is not None
        stream.update(NARROW, (1, 2, "a", "b"))
        run(stream, writer)
        assert rows(writer, "_synced_at")[0][0] > first

    @pytest.mark.parametrize("before", ["_cdc_position", pytest.param("seen_at", marks=pytest.mark.long), "changed_at"])
    def test_the_column_of_positions_has_the_name_that_it_is_given(self, open_writer, before):
        """Also one that it is given later: it is renamed and the rows are as old as they were."""
        stream, writer = change_streams.Stream(), open_writer(position=before)
        for number in range(6):
            stream.insert(NARROW, (number, 1, "a", "large"))
        run(stream, writer)
        late = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
        stream.update(NARROW, (1, 2, "b", None), (3,))
        stream.delete(NARROW, (2,))
        stream.move(NARROW, (3,), (7, 3, "c", None), (3,))
        writer = open_writer(epoch=(2, 0), position="changed_at")
        run(stream, writer, [8, 9])
        wanted = [(0, 1, "a"), (1, 2, "b"), (4, 1, "a"), (5, 1, "a"), (7, 3, "c")]
        assert rows(writer, "id", "n", "a") == wanted
        assert {row[0] for row in rows(writer, "big")} == {"large"}
        assert POSITION not in columns(writer)
        assert "seen_at" not in columns(writer)
        at = [row[0] for row in rows(writer, "changed_at")]
        assert len(set(at)) == 5
        assert {len(position) for position in at} == {16}
        # What was applied before is older than what is there, whatever a ledger says of it.
        ends = writer.ledger()
        spans = {place: (end, end + 1) for place, end in ends.items()}
        writer.apply(replace(late, offsets=spans))
        assert rows(writer, "id", "n", "a") == wanted
        stream.records.clear()
        stream.truncate(NARROW)
        writer = open_writer(epoch=(3, 0), position="changed_at")
        run(shifted(stream, ends), writer)
        assert rows(writer, "id") == []

    def test_a_log_may_do_without_positions_or_give_them_another_name(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer(log=True, position="")
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.delete(NARROW, (1,))
        stream.truncate(NARROW)
        run(stream, writer, [1], log=True)
        assert rows(writer, OP, "id") == [("c", 1), ("d", 1), ("t", None)]
        found = writer.rows(TOPIC)
        names = {name for batch in found.batches for name in batch.schema.names}
        found.close()
        assert POSITION not in names
        writer = open_writer(epoch=(2, 0), log=True, position="at")
        stream.insert(NARROW, (2, 1, "a", "b"))
        run(stream, writer, log=True)
        assert [row[0] is None for row in rows(writer, "at", "id") if row[1] != 2] == [True] * 3
        assert [len(row[0]) for row in rows(writer, "at", "id") if row[1] == 2] == [16]

    @pytest.mark.parametrize("names", [{"position": "n"}, {"synced": "n"}])
    def test_a_column_of_the_sink_takes_no_name_of_the_source(self, open_writer, names):
        stream, writer = change_streams.Stream(1), open_writer(**names)
        stream.insert(NARROW, (1, 1, "a", "b"))
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", "n")
        assert rows(writer, "id") == []

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(("name", "log"), [(POSITION, False), (POSITION, True), (KEY, False)])
    def test_names_that_rows_have_on_their_way_are_refused_whatever_the_table_calls_positions(
        self, open_writer, name, log
    ):
        """A source that is a warehouse itself has such columns."""
        stream, writer = change_streams.Stream(1), open_writer(position="changed_at", log=log)
        of = change_streams.table(change_streams.ID, change_streams.column(name, "bytes", "bytea"))
        stream.insert(of, (1, b"\x00\x01"))
        with pytest.raises(CdcError) as caught:
            run(stream, writer, log=log)
        assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", name)
        assert "column.exclude.list" in caught.value.message
        assert rows(writer, "id") == []

    def test_names_that_the_sink_uses_anywhere_stop_their_tables_alone(self, open_writer):
        tables = [table(ID, column(name, "string", "text"), name=f"t{at}") for at, name in enumerate(ANYWHERE)]
        topics = [f"shop.public.{of.path[1]}" for of in tables]
        world, other = TwoTables(open_writer(), topics=(*topics, OTHER)), table(ID, name="other")
        for of in tables:
            world.stream.insert(of, (1, "a"))
        world.stream.insert(other, (7,))
        passes = passes_of(world.writer, "apply")
        _, counts = world.run()
        # All of them are found in the first one.
        assert len(passes) == 2
        assert (counts["rows"], sum(counts["tables"].values())) == (1, 1)
        assert world.paused.topics == set(topics)
        assert {error.where["column"] for error in world.paused._errors.values()} == set(ANYWHERE)
        assert {error.code for error in world.paused._errors.values()} == {"spark.schema_refused"}
        assert rows(world.writer, "id", topic=OTHER) == [(7,)]

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(("name", "pausing"), under_each_policy(FOLLOWED, False, True))
    def test_a_change_of_columns_is_followed_whatever_the_policy(self, open_writer, name, pausing):
        world, change = TwoTables(open_writer(), pausing), FOLLOWED[name]
        world.stream.insert(change.before, change.first)
        world.run()
        world.stream.insert(change.after, change.second)
        world.run()
        assert world.paused.topics == frozenset()
        assert rows(world.writer, *change.names) == sorted(change.rows, key=repr)

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        ("name", "policy"),
        under_each_policy(
            [name for name in FOLLOWED if name not in ("drop", "narrow")], "pause-table", "fail", "evolve-additive"
        ),
    )
    def test_what_the_policy_does_not_follow_changes_nothing_and_is_caught_up_under_another(
        self, open_writer, policy, name
    ):
        config = CONFIG_DEF.parse({**SINK, "schema.change.policy": policy})
        follows, adds = output_of(config).follows, policy == "evolve-additive" and name == "add"
        world, change = TwoTables(open_writer(follows=follows), pauses(config)), FOLLOWED[name]
        world.stream.insert(change.before, change.first)
        world.run()
        before, there = columns(world.writer), rows(world.writer, "id", "n")
        world.stream.insert(change.after, change.second)
        if policy == "fail":
            with pytest.raises(CdcError) as caught:
                world.run()
            assert caught.value.code == "spark.schema_refused"
        else:
            world.run()
            assert world.paused.topics == (frozenset() if adds else {TOPIC})
        if not adds:
            assert (columns(world.writer), rows(world.writer, "id", "n")) == (before, there)
        world.writer = open_writer(epoch=(2, 0))
        world.now += RETRY_S_MAX
        world.run()
        assert rows(world.writer, *change.names) == sorted(change.rows, key=repr)

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("pausing", [False, True], ids=["halt", "evolve"])
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_loses_data_stops_the_task_or_its_table_until_that_is_loaded_again(self, open_writer, name, pausing):
        world, change, other = TwoTables(open_writer(), pausing), REFUSED[name], table(ID, name="other")
        world.stream.insert(change.before, change.first)
        world.run()
        before = rows(world.writer, *change.names)
        at = world.writer.ledger()[TOPIC, 0]
        world.stream.insert(change.after, change.second)
        world.stream.insert(other, (7,))
        if not pausing:
            with pytest.raises(CdcError) as caught:
                world.run()
            assert (caught.value.code, caught.value.where["topic"]) == ("spark.schema_refused", TOPIC)
        else:
            for _ in range(2):
                world.run()
                world.now += RETRY_S_MAX
            assert world.paused.topics == {TOPIC}
            assert rows(world.writer, "id", topic=OTHER) == [(7,)]
        assert rows(world.writer, *change.names) == before
        assert world.writer.ledger()[TOPIC, 0] == at
        # As the error says: the table goes and is read again, in the shape that it has now.
        self.drop_table(world.writer)
        world.stream.records = [r for r in world.stream.records if r["topic"] == OTHER or r["offset"] >= at]
        world.writer = open_writer(epoch=(2, 0))
        world.run()
        assert world.paused.topics == frozenset()
        assert rows(world.writer, *change.names) == [change.second]
        assert rows(world.writer, "id", topic=OTHER) == [(7,)]

    def test_a_reader_learns_through_which_position_the_rows_hold_everything(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        run(stream, writer)
        found = writer.rows(TOPIC)
        found.close()
        assert found.key == ("id",)
        assert found.applied == {0: stream.lsn.to_bytes(8, "big") + (1 << 32).to_bytes(8, "big")}
        assert writer.rows("shop.public.nothing") is None

    def test_a_batch_may_hold_records_that_were_set_aside(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.records[1]["value"] = b"broken"
        assembler = Assembler(EnvelopeSchemas(stream.schemas, wait_s_max=0), tolerant=True)
        batch = assembler.build(change_streams.arrow(stream.records), {}, 1)
        assert len(batch.dead) == 1
        writer.claim([TOPIC])
        writer.apply(batch)
        assert rows(writer, "id") == [(1,)]
        assert dict(writer.ledger()) == {(TOPIC, 0): stream.records[1]["offset"] + 1}
        assert self.letters() == [(TOPIC, 0, stream.records[1]["offset"], "spark.undecodable", b"broken")]

    def test_offsets_move_past_records_that_leave_no_row(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        for number in range(2):
            stream.insert(NARROW, (number, 1, "a", "b"))
            stream.records[number]["value"] = b"broken"
        assembler = Assembler(EnvelopeSchemas(stream.schemas, wait_s_max=0), tolerant=True)
        writer.claim([TOPIC])
        for number in range(2):
            batch = assembler.build(change_streams.arrow(stream.records[number : number + 1]), writer.ledger(), number)
            assert (len(batch.tables), len(batch.dead)) == (0, 1)
            writer.apply(batch)
            assert dict(writer.ledger()) == {(TOPIC, 0): stream.records[number]["offset"] + 1}
        assert writer.apply(batch)["replayed"]
        stream.insert(NARROW, (7, 1, "a", "b"))
        run(stream, writer)
        assert rows(writer, "id") == [(7,)]
        assert len(self.letters()) == 2
