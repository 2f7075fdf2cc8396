"""What every warehouse has to do, as tests over a fixture `open_writer(**output)`; each kind of target runs them all."""

from __future__ import annotations

import itertools

import pytest
from cdcworker.connectors.api import DELETED, KEY, OP, POSITION, UNCHANGED
from cdcworker.connectors.spark.records import Assembler
from cdcworker.connectors.spark.schemas import Shapes
from cdcworker.schemas.errors import CdcError

from . import support
from .support import ID, NARROW, column, table

TOPIC = "shop.public.orders"
MIRRORED = "far.shop.public.orders"
ONE = column("id", "long", "bigint", False, column_id=1)
OWN = (KEY, POSITION, OP, UNCHANGED, DELETED)


def run(stream, writer, cuts=(), log=False, topic=TOPIC):
    """All records that the writer has not seen, cut into batches."""
    assembler = stream.assembler(log)
    writer.claim([topic])
    edges = [0, *sorted({min(cut, len(stream.records)) for cut in cuts}), len(stream.records)]
    counts = []
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        batch = assembler.build(support.arrow(stream.records[start:end]), writer.ledger(), number)
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


class Contract:
    """Tests of one kind of warehouse. `log` targets get `output` keys of the fixture."""

    def test_rows_are_inserted_updated_and_deleted(self, open_writer):
        stream, writer = support.Stream(), open_writer()
        for number in range(5):
            stream.insert(NARROW, (number, 1, "a", "b"), "r")
        stream.update(NARROW, (1, None, "", "c"))
        stream.delete(NARROW, (2,))
        run(stream, writer, [3, 5])
        wanted = [(0, 1, "a", "b"), (1, None, "", "c"), (3, 1, "a", "b"), (4, 1, "a", "b")]
        assert rows(writer, "id", "n", "a", "big") == wanted

    def test_the_same_batch_twice_changes_nothing(self, open_writer):
        stream, writer = support.Stream(), open_writer()
        stream.insert(NARROW, (1, 2, "a", "b"))
        stream.update(NARROW, (1, 3, "a", None), (3,))
        batch = stream.assembler().build(support.arrow(stream.records), {}, 1)
        writer.claim([TOPIC])
        assert not writer.apply(batch)["replayed"]
        before = rows(writer, "id", "n", "big", POSITION)
        assert writer.apply(batch)["replayed"]
        assert rows(writer, "id", "n", "big", POSITION) == before

    def test_offsets_are_in_the_target_with_the_rows(self, open_writer):
        stream = support.Stream()
        for number in range(6):
            stream.insert(NARROW, (number, 1, "a", "b"))
        run(stream, open_writer(), [2, 4])
        again = open_writer(epoch=(1, 1))
        again.claim([TOPIC])
        ends = {(r["topic"], r["partition"]): r["offset"] + 1 for r in stream.records}
        assert dict(again.ledger()) == ends

    def test_a_batch_that_begins_below_the_ledger_is_refused(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        stream.insert(NARROW, (1, 2, "a", "b"))
        run(stream, writer)
        stream.insert(NARROW, (2, 2, "a", "b"))
        with pytest.raises(CdcError) as caught:
            writer.apply(stream.assembler().build(support.arrow(stream.records), {}, 1))
        assert caught.value.code == "spark.ledger_moved"
        assert rows(writer, "id") == [(1,)]

    def test_a_newer_epoch_stops_the_older_writer(self, open_writer):
        stream, old = support.Stream(1), open_writer()
        stream.insert(NARROW, (1, 2, "a", "b"))
        run(stream, old)
        new = open_writer(epoch=(2, 0))
        new.claim([TOPIC])
        stream.insert(NARROW, (2, 2, "a", "b"))
        batch = stream.assembler().build(support.arrow(stream.records), new.ledger(), 1)
        with pytest.raises(CdcError) as caught:
            old.apply(batch)
        assert caught.value.kind == "fenced"
        new.apply(batch)
        assert rows(new, "id") == [(1,), (2,)]

    def test_unchanged_columns_stay_as_they_are_in_the_target(self, open_writer):
        stream, writer = support.Stream(), open_writer()
        stream.insert(NARROW, (1, 1, "a", "large"))
        run(stream, writer)
        stream.update(NARROW, (1, 2, "b", None), (3,))
        stream.update(NARROW, (1, 3, None, None), (2, 3))
        run(stream, writer)
        assert rows(writer, "id", "n", "a", "big") == [(1, 3, "b", "large")]

    @pytest.mark.parametrize("size", [1, 2, 3, 9])
    def test_a_row_that_changes_its_key_takes_its_unchanged_columns_along(self, open_writer, size):
        stream, writer = support.Stream(), open_writer()
        stream.insert(NARROW, (1, 1, "a", "large"))
        stream.move(NARROW, (1,), (2, 2, "b", None), (3,))
        stream.move(NARROW, (2,), (1, 3, "c", None), (3,))
        stream.move(NARROW, (1,), (7, 4, "d", None), (3,))
        run(stream, writer, range(0, 20, size))
        assert rows(writer, "id", "n", "a", "big") == [(7, 4, "d", "large")]

    def test_a_truncate_takes_what_came_before_and_nothing_later(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (2, 1, "a", "b"))
        run(stream, writer, [1])
        assert rows(writer, "id") == [(2,)]

    @pytest.mark.parametrize("cuts", [(1, 2, 3), (1, 3), (3, 4), ()])
    def test_a_truncate_in_a_topic_without_a_schema_of_its_key_leaves_the_table_its_key(self, open_writer, cuts):
        """Somebody mirrors the topic under another name."""
        stream, writer = support.Stream(1), open_writer()
        stream.truncate(NARROW)
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.truncate(NARROW)
        for number in (2, 3, 3):
            stream.insert(NARROW, (number, 2, "a", "b"))
        mirrored(stream)
        run(stream, writer, [*cuts, 5, 6], topic=MIRRORED)
        assert rows(writer, "id", "n", topic=MIRRORED) == [(2, 2), (3, 2)]

    def test_such_a_truncate_that_comes_late_leaves_the_rows_behind_it_where_they_are_found(self, open_writer):
        stream, writer = support.Stream(), open_writer()
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
        stream, writer = support.Stream(), open_writer()
        for row in ((1, "x", 1), (1, "y", 2), (None, "x", 3), (1, "x", 4)):
            stream.insert(wide, row)
        stream.delete(wide, (1, "y"))
        stream.insert(wide, (None, "x", 5), "u")
        run(stream, writer, [2])
        assert rows(writer, "a", "b", "v") == [(1, "x", 4), (None, "x", 5)]

    def test_tables_without_a_key_are_appended_to(self, open_writer):
        log = table(column("n", "int", "integer"), key=())
        stream, writer = support.Stream(1), open_writer()
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
        stream, writer = support.Stream(1), open_writer()
        stream.insert(table(ID, column("n", "int", "integer")), (1, 5))
        stream.insert(table(ID, column("n", "int", "integer")), (2, 6))
        run(stream, writer)
        stream.insert(then, (1, 2**40, "new", 7), "u")
        run(stream, writer)
        assert rows(writer, "id", "n", "note", "x") == [(1, 2**40, "new", 7), (2, 6, "none", None)]

    def test_a_column_that_the_source_drops_stays(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(table(ID, column("n", "int", "integer")), (2, 2))
        run(stream, writer)
        assert rows(writer, "id", "n", "a") == [(1, 1, "a"), (2, 2, None)]

    def test_a_renamed_column_keeps_its_values(self, open_writer):
        before = table(ID, column("old", "string", "text", column_id=2), column("n", "int", "integer", column_id=3))
        after = table(ID, column("new", "string", "text", column_id=2), column("n", "int", "integer", column_id=3))
        stream, writer = support.Stream(1), open_writer()
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

        stream, writer = support.Stream(1), open_writer(log=log)
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
        stream, writer = support.Stream(1), open_writer(log=log)
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

        stream, writer = support.Stream(1), open_writer(log=log)
        stream.insert(shape("abcde"), (1, "A", "B", "C", "D", "E"))
        run(stream, writer, log=log)
        # Two exchange, three go round.
        stream.insert(shape("badec"), (2, "A", "B", "C", "D", "E"))
        run(stream, writer, log=log)
        assert rows(writer, "id", *"badec") == [(number, "A", "B", "C", "D", "E") for number in (1, 2)]

    def test_a_key_that_another_column_becomes_is_refused(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
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

        stream, writer = support.Stream(1), open_writer()
        stream.insert(shape("a", "b"), (1, "A", "B"))
        stream.emit(stream.change("d", shape("a", "b"), before=(1, None, None), other_key=(2,)))
        stream.insert(shape("b", "a"), (3, "A", "B"))
        come = {"after": (2, "A", None), "other_key": (1,), "unchanged": (2,)}
        stream.emit(stream.change("c", shape("b", "a"), **come))
        run(stream, writer, range(len(stream.records)))
        assert rows(writer, "id", "b", "a") == [(number, "A", "B") for number in (2, 3)]

    def test_a_type_that_cannot_be_widened_is_refused(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        stream.insert(table(ID, column("n", "boolean", "boolean")), (1, True))
        run(stream, writer)
        stream.insert(table(ID, column("n", "double", "double precision")), (1, 5.5), "u")
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert caught.value.code == "spark.schema_refused"

    def test_deleted_rows_can_stay_and_come_back(self, open_writer):
        stream, writer = support.Stream(), open_writer(soft=True)
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
        stream, writer = support.Stream(1), open_writer(log=True)
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
        stream, writer = support.Stream(), open_writer(synced="_synced_at")
        stream.insert(NARROW, (1, 1, "a", "b"))
        run(stream, writer)
        first = rows(writer, "_synced_at")[0][0]
        assert first is not None
        stream.update(NARROW, (1, 2, "a", "b"))
        run(stream, writer)
        assert rows(writer, "_synced_at")[0][0] > first

    def test_a_reader_learns_through_which_position_the_rows_hold_everything(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        run(stream, writer)
        found = writer.rows(TOPIC)
        found.close()
        assert found.key == ("id",)
        assert found.applied == {0: stream.lsn.to_bytes(8, "big") + (1 << 32).to_bytes(8, "big")}
        assert writer.rows("shop.public.nothing") is None

    def test_a_batch_may_hold_records_that_were_set_aside(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.records[1]["value"] = b"broken"
        assembler = Assembler(Shapes(stream.schemas, wait_s_max=0), tolerant=True)
        batch = assembler.build(support.arrow(stream.records), {}, 1)
        assert len(batch.dead) == 1
        writer.claim([TOPIC])
        writer.apply(batch)
        assert rows(writer, "id") == [(1,)]
        assert dict(writer.ledger()) == {(TOPIC, 0): stream.records[1]["offset"] + 1}
        assert self.letters() == [(TOPIC, 0, stream.records[1]["offset"], "spark.undecodable", b"broken")]

    def test_offsets_move_past_records_that_leave_no_row(self, open_writer):
        stream, writer = support.Stream(1), open_writer()
        for number in range(2):
            stream.insert(NARROW, (number, 1, "a", "b"))
            stream.records[number]["value"] = b"broken"
        assembler = Assembler(Shapes(stream.schemas, wait_s_max=0), tolerant=True)
        writer.claim([TOPIC])
        for number in range(2):
            batch = assembler.build(support.arrow(stream.records[number : number + 1]), writer.ledger(), number)
            assert (len(batch.tables), len(batch.dead)) == (0, 1)
            writer.apply(batch)
            assert dict(writer.ledger()) == {(TOPIC, 0): stream.records[number]["offset"] + 1}
        assert writer.apply(batch)["replayed"]
        stream.insert(NARROW, (7, 1, "a", "b"))
        run(stream, writer)
        assert rows(writer, "id") == [(7,)]
        assert len(self.letters()) == 2
