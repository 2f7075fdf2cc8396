"""What every warehouse that keeps versions has to do, as tests over a fixture `open_writer(**output)`."""

from __future__ import annotations

import itertools
import random

import pytest
from cdcworker.connectors.api.table_batch import IS_CURRENT, OP, VALID_FROM, VALID_TO
from cdcworker.schemas.errors import CdcError

from .. import change_streams
from ..change_streams import ID, NARROW, column, table
from ..version_model import RandomChanges, VersionedStream, assert_equal, versions
from .warehouses import MIRRORED, TOPIC, mirrored, rows

CHANGES = 60
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40))]
LETTER_SEEDS = [15, *SEEDS[:15], *SEEDS[16:]]
"""In the first, a tombstone ends a version while the next one still lies in a letter."""


def run(stream, writer, cuts=(), topic=TOPIC):
    """All records that the writer has not seen, cut into batches."""
    writer.claim([topic])
    edges = [0, *sorted({min(cut, len(stream.records)) for cut in cuts}), len(stream.records)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        apply(stream, writer, stream.records[start:end], number)


def apply(stream, writer, records, number=1):
    batch = stream.assembler(keeps_versions=True).build(change_streams.arrow(records), writer.ledger(), number)
    return writer.apply(batch) if batch.offsets else None


def unevenly(stream, chance):
    """The records in batches to which the partitions come at their own pace."""
    left = {number: [] for number in range(stream.partitions)}
    for record in stream.records:
        left[record["partition"]].append(record)
    while any(left.values()):
        batch = []
        for number, records in left.items():
            taken = chance.choice([0, 1, 5, len(records)])
            batch += records[:taken]
            left[number] = records[taken:]
        if batch:
            yield batch


class Versions:
    """`rewind(writer, partition)` of the class resets the offset of a partition as a person does."""

    def rewind(self, partition):
        raise NotImplementedError

    def test_each_change_of_a_row_is_a_version(self, open_writer):
        stream, writer = VersionedStream(), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.update(NARROW, (1, 2, "a", "b"))
        stream.update(NARROW, (1, 3, "a", "b"))
        stream.delete(NARROW, (1,))
        stream.insert(NARROW, (1, 4, "a", "b"))
        for cuts in ((2, 4), ()):
            run(stream, writer, cuts)
        assert_equal(versions(writer, TOPIC), stream.wanted())
        found = rows(writer, "id", "n", OP, IS_CURRENT)
        wanted = [(1, 1, "c", False), (1, 2, "u", False), (1, 3, "u", False), (1, 4, "c", True), (2, 1, "c", True)]
        assert found == wanted

    def test_changes_of_one_transaction_are_versions_in_their_order_and_only_the_last_one_lasts(self, open_writer):
        stream, writer = VersionedStream(), open_writer()
        with stream.transaction():
            stream.insert(NARROW, (1, 1, "a", "b"))
            stream.update(NARROW, (1, 2, "a", "b"))
            stream.update(NARROW, (1, 3, "a", "b"))
        run(stream, writer, [1])
        assert_equal(versions(writer, TOPIC), stream.wanted())
        lasting = [n for n, begun, ended in rows(writer, "n", VALID_FROM, VALID_TO) if begun != ended]
        assert lasting == [3]

    @pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 3)), 99])
    def test_a_changed_key_ends_the_version_of_the_old_one_and_takes_its_columns_along(self, open_writer, size):
        stream, writer = VersionedStream(), open_writer()
        stream.insert(NARROW, (1, 1, "a", "large"))
        stream.move(NARROW, (1,), (2, 2, "b", None), (3,))
        stream.move(NARROW, (2,), (1, 3, "c", None), (3,))
        stream.update(NARROW, (1, 4, "d", None), (3,))
        stream.move(NARROW, (1,), (7, 5, "e", None), (3,))
        run(stream, writer, range(0, 20, size))
        assert_equal(versions(writer, TOPIC), stream.wanted())
        assert {row[3] for row in versions(writer, TOPIC)} == {"large"}

    @pytest.mark.parametrize("cuts", [(), (2,), pytest.param((1, 2, 3, 4), marks=pytest.mark.long)])
    def test_a_truncate_ends_every_version(self, open_writer, cuts):
        stream, writer = VersionedStream(partitions=1), open_writer()
        for id in (1, 2):
            stream.insert(NARROW, (id, 1, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (2, 2, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (3, 1, "a", "b"))
        run(stream, writer, cuts)
        assert_equal(versions(writer, TOPIC), stream.wanted())
        assert rows(writer, "id", "n", IS_CURRENT) == [(1, 1, False), (2, 1, False), (2, 2, False), (3, 1, True)]

    @pytest.mark.parametrize("cuts", [(1, 2, 3), ()])
    def test_a_truncate_in_a_topic_without_a_schema_of_its_key_ends_them_too(self, open_writer, cuts):
        stream, writer = VersionedStream(partitions=1), open_writer()
        stream.truncate(NARROW)
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (2, 1, "a", "b"))
        mirrored(stream)
        run(stream, writer, cuts, MIRRORED)
        assert_equal(versions(writer, MIRRORED), stream.wanted())

    def test_rows_of_a_snapshot_make_versions_where_they_differ(self, open_writer):
        stream, writer = VersionedStream(), open_writer()
        for id in (1, 2, 3):
            stream.insert(NARROW, (id, 1, "a", None), "r")
        run(stream, writer)
        stream.update(NARROW, (3, 2, "a", "b"))
        for id in (1, 2, 3, 4):
            stream.insert(NARROW, (id, 2 if id > 1 else 1, "a", None if id < 3 else "b"), "r")
        stream.update(NARROW, (2, 9, "a", "b"))
        run(stream, writer)
        assert_equal(versions(writer, TOPIC), stream.wanted())
        found = [(1, 1), (2, 1), (2, 2), (2, 9), (3, 1), (3, 2), (4, 2)]
        assert rows(writer, "id", "n") == found

    def test_a_tombstone_without_its_delete_ends_the_version_when_it_is_read(self, open_writer):
        stream, writer = VersionedStream(partitions=1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.delete(NARROW, (1,))
        del stream.records[2]
        run(stream, writer)
        assert rows(writer, "id", IS_CURRENT) == [(1, False), (2, True)]
        assert all(ended is not None for id, ended in rows(writer, "id", VALID_TO) if id == 1)

    @pytest.mark.parametrize("again", [False, True])
    def test_a_version_that_such_a_tombstone_ended_ends_where_the_next_one_begins(self, open_writer, again):
        """Else a query for a time between its commit and the tombstone's reading would find both."""
        stream, writer = VersionedStream(partitions=1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.delete(NARROW, (1,))
        del stream.records[1]
        run(stream, writer)
        if again:
            writer = open_writer((2, 0))
        stream.insert(NARROW, (1, 2, "a", "b"))
        run(stream, writer)
        (_, begun, ended), (_, next_one, _) = rows(writer, "n", VALID_FROM, VALID_TO)
        assert begun < ended == next_one

    def test_columns_are_added_and_widened_and_older_versions_stay(self, open_writer):
        then = table(
            ID, column("n", "long", "bigint"), column("note", "string", "text", default="none"), column("x", "int", "integer")
        )  # fmt: skip
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(table(ID, column("n", "int", "integer")), (1, 5))
        stream.insert(table(ID, column("n", "int", "integer")), (2, 6))
        run(stream, writer)
        stream.update(then, (1, 2**40, "new", 7))
        run(stream, writer)
        found = rows(writer, "id", "n", "note", "x", IS_CURRENT)
        assert found == [(1, 2**40, "new", 7, True), (1, 5, "none", None, False), (2, 6, "none", None, True)]

    def test_schemas_that_follow_each_other_in_one_batch_make_one_history(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(table(ID, column("n", "int", "integer")), (1, 5))
        stream.update(table(ID, column("n", "long", "bigint")), (1, 2**40))
        stream.delete(table(ID, column("n", "long", "bigint")), (1,))
        run(stream, writer)
        assert rows(writer, "n", IS_CURRENT) == [(2**40, False), (5, False)]

    def test_keys_of_several_columns_and_keys_with_null(self, open_writer):
        wide = table(
            column("a", "int", "integer"), column("b", "string", "text"), column("v", "int", "integer"), key=(0, 1)
        )
        stream, writer = change_streams.Stream(), open_writer()
        for row in ((1, "x", 1), (1, "y", 2), (None, "x", 3)):
            stream.insert(wide, row)
        stream.update(wide, (1, "x", 4))
        stream.delete(wide, (1, "y"))
        stream.update(wide, (None, "x", 5))
        run(stream, writer, [2])
        wanted = [
            (1, "x", 1, False),
            (1, "x", 4, True),
            (1, "y", 2, False),
            (None, "x", 3, False),
            (None, "x", 5, True),
        ]
        assert rows(writer, "a", "b", "v", IS_CURRENT) == wanted

    def test_a_table_without_a_key_has_each_change_as_a_row(self, open_writer):
        log = table(column("n", "int", "integer"), key=())
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(log, (1,))
        stream.emit(stream.change("d", log, before=(1,)))
        run(stream, writer, [1])
        assert rows(writer, "n", OP) == [(1, "c"), (1, "d")]

    def test_a_table_of_another_mode_is_refused(self, open_writer):
        stream = change_streams.Stream(1)
        stream.insert(NARROW, (1, 1, "a", "b"))
        for number, (first, second) in enumerate(((False, True), (True, False))):
            writer = open_writer((2 * number, 0), versions=first)
            writer.claim([TOPIC])
            batch = stream.assembler(keeps_versions=first).build(change_streams.arrow(stream.records), {}, 1)
            writer.apply(batch)
            stream.update(NARROW, (1, 2, "a", "b"))
            other = open_writer((2 * number + 1, 0), versions=second)
            other.claim([TOPIC])
            later = stream.assembler(keeps_versions=second)
            with pytest.raises(CdcError) as caught:
                other.apply(later.build(change_streams.arrow(stream.records), other.ledger(), 2))
            assert caught.value.code == "spark.schema_refused"
            self.drop_table(other)
            stream = change_streams.Stream(1)
            stream.insert(NARROW, (1, 1, "a", "b"))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_history_is_the_models_after_random_changes(self, open_writer, seed):
        stream, writer, chance = VersionedStream(), open_writer(), random.Random(seed)
        RandomChanges(stream, seed).run(CHANGES)
        size = chance.choice([1, 3, 17])
        run(stream, writer, range(0, len(stream.records), size))
        assert_equal(versions(writer, TOPIC), stream.wanted())

    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_is_so_when_partitions_come_unevenly_and_offsets_are_reset(self, open_writer, seed):
        stream, writer, chance = VersionedStream(), open_writer(), random.Random(seed)
        # What a changed key leaves out is looked for under the old one, whose partition may be behind.
        RandomChanges(stream, seed, keeps=False).run(CHANGES)
        writer.claim([TOPIC])
        for number in range(1, 4):
            for batch in unevenly(stream, chance):
                apply(stream, writer, batch, number)
                if chance.random() < 0.1:
                    writer = self.again(open_writer, writer, chance.randrange(stream.partitions), batch)
            writer = self.again(open_writer, writer, number - 1, [])
        run(stream, writer)
        assert_equal(versions(writer, TOPIC), stream.wanted())

    def again(self, open_writer, writer, partition, batch):
        """A new task reads a partition from its beginning; what it skips of the batch before is no concern of the ledger."""
        self.rewind(partition)
        self.epoch = getattr(self, "epoch", 1) + 1
        writer = open_writer((self.epoch, 0))
        writer.claim([TOPIC])
        return writer


class Letters:
    """Of a fixture `open_sink(**output)` of `tests.contract.dead_letters`."""

    @pytest.mark.parametrize("seed", LETTER_SEEDS)
    def test_letters_that_are_sent_again_find_their_places_in_the_history(self, open_sink, seed):
        sink, chance = open_sink(versions=True), random.Random(seed)
        sink.stream = stream = VersionedStream(partitions=1)
        # What a letter holds of a column is not carried into the versions behind it, which have come before.
        changes = RandomChanges(stream, seed, keeps=False, reads=False)
        for _ in range(4):
            changes.run(15)
            sink.spoil(
                *(
                    at
                    for at in range(sink.sent, len(stream.records))
                    if chance.random() < 0.25 and is_change(stream, at)
                )
            )
            sink.apply()
        sink.mend()
        assert (sink.redrive().failed, sink.left) == (0, [])
        assert_equal(versions(sink.writer, TOPIC), stream.wanted())


def is_change(stream, at):
    return stream.records[at]["value"] is not None
