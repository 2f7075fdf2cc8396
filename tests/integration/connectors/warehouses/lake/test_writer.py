"""The contract of warehouses for tables of a lake, over one Spark session; and what is their own."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import shutil
import signal
import threading
import types
from decimal import Decimal

import pytest
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.iceberg import CATALOG, IcebergTables
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import warehouses as contract
from tests.integration.connectors.spark_world import await_end_of_group, eventually, load

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

LAKE_S_MAX = 600
"""A first batch loads most of Spark and of the lake's library: ten seconds on a free machine."""


QUICK = (
    "test_rows_are_inserted_updated_and_deleted",
    "test_the_same_batch_twice_changes_nothing",
    "test_a_newer_epoch_stops_the_older_writer",
    "test_unchanged_columns_stay_as_they_are_in_the_target",
    "test_a_truncate_takes_what_came_before_and_nothing_later",
    "test_columns_are_added_with_their_default_and_widened",
    "test_a_batch_may_hold_records_that_were_set_aside",
)
"""Of the contract; the rest takes minutes."""
QUICK_DELTA = (
    "test_rows_are_inserted_updated_and_deleted",
    "test_of_two_writers_with_one_epoch_the_second_notices",
)


def long_but_for(quick, *contracts):
    """The same tests as functions of their own, since a mark stays with its function."""

    def marked(cls):
        for name, function in itertools.chain.from_iterable(vars(one).items() for one in contracts):
            if name.startswith("test_") and name not in quick:
                own = functools.wraps(function)(lambda *args, _function=function, **more: _function(*args, **more))
                setattr(cls, name, pytest.mark.long(own))
        return cls

    return marked


def exchanged(names):
    columns = (change_streams.column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names))
    return change_streams.table(change_streams.column("id", "long", "bigint", False, column_id=1), *columns)


def died_and_started_again(stream, writer, died_at, open_writer, **output):
    """A writer that has applied what another one died of: at its n-th statement, at the first state, or when it looked for the
    rows."""
    batch, steps = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1), []

    def step(statement):
        steps.append(statement)
        if len(steps) == died_at or (died_at == "rows" and statement.startswith("SELECT")):
            raise KeyboardInterrupt
        return session.sql(statement)

    def die(*_):
        raise KeyboardInterrupt

    session = writer._spark()
    writer._session = types.SimpleNamespace(sql=step, read=session.read)
    if died_at == "state":
        writer._tables.commit = die
    if died_at == "rows":
        writer._tables.current = die
    with pytest.raises(KeyboardInterrupt):
        writer.apply(batch)
    again = open_writer((1, 1), **output)
    again.claim([contract.TOPIC])
    again.apply(batch)
    return again


class Lake(contract.ByHand, contract.Contract):
    """`self.tables()` opens a new view of the one lake of a test."""

    @pytest.fixture
    def open_writer(self, spark, tmp_path):
        self._root = tmp_path / "lake"
        writers = []

        def make(epoch=(1, 0), sink="sink", parallel_tables=1, **output):
            writers.append(
                LakeWriter(self.tables(), sink, output=OutputForm(**output), parallel_tables=parallel_tables)
            )
            writers[-1].attach(lambda: spark)
            writers[-1].fence(epoch)
            self._writer = writers[-1]
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()

    def drop_table(self, writer):
        self.alter_in_sql("DROP TABLE {table}")

    def retype(self, column, kind):
        self.alter_in_sql(f"ALTER TABLE {{table}} DROP COLUMN {column}")
        self.alter_in_sql(f"ALTER TABLE {{table}} ADD COLUMN {column} {kind}")

    def letters(self):
        table = self._writer._tables.name(LakeName("_cdcworker", "dead_letter"))
        found = self._writer._spark().sql(f"SELECT topic, partition, offset, code, value FROM {table}").collect()
        return [(row[0], row[1], row[2], row[3], bytes(row[4])) for row in found]

    def made_in_advance(self, writer, columns, partitioned):
        """An empty table that somebody made."""
        session, name = writer._spark(), writer._tables.name(LakeName("public", "orders"))
        kind = "iceberg" if name.startswith(CATALOG) else "delta"
        if kind == "iceberg":
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.public")
        session.sql(f"CREATE TABLE {name} ({columns}) USING {kind} PARTITIONED BY ({partitioned})")

    def alter_in_sql(self, text):
        """As somebody who is no sink does; `{table}` is the table of the tests."""
        self._writer._spark().sql(text.format(table=self._writer._tables.name(LakeName("public", "orders"))))

    @pytest.mark.long
    def test_columns_of_the_destination_are_left_alone(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer(soft=True, synced="_synced_at")
        stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
        contract.run(stream, writer)
        self.alter_in_sql("ALTER TABLE {table} ADD COLUMN mine string")
        self.alter_in_sql("UPDATE {table} SET mine = 'kept'")
        stream.update(change_streams.NARROW, (1, 2, "c", "b"))
        stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "a", "mine") == [(1, "c", "kept"), (2, "a", None)]

    @pytest.mark.long
    def test_a_column_of_the_destination_gives_its_name_to_no_other(self, open_writer):
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(exchanged("ab"), (1, "a", "b"))
        contract.run(stream, writer)
        self.alter_in_sql("ALTER TABLE {table} ADD COLUMN mine string")
        self.alter_in_sql("UPDATE {table} SET mine = 'kept'")
        stream.insert(exchanged(["mine", "b"]), (2, "a", "b"))
        with pytest.raises(CdcError) as caught:
            contract.run(stream, writer)
        assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", "mine")
        assert contract.rows(writer, "id", "a", "mine") == [(1, "a", "kept")]

    @pytest.mark.long
    @pytest.mark.parametrize("died_at", [2, "state", 3, 4, "rows"], ids=lambda at: f"at-{at}")
    def test_names_are_exchanged_once_by_a_run_that_died_and_the_next_one(self, open_writer, died_at):
        """Two statements make room, a state follows, two give the names, and the rows are asked for."""
        stream, writer = change_streams.Stream(), open_writer()
        stream.insert(exchanged("ab"), (1, "A", "B"))
        contract.run(stream, writer)
        stream.insert(exchanged("ba"), (2, "A", "B"))
        again = died_and_started_again(stream, writer, died_at, open_writer)
        assert contract.rows(again, "id", "b", "a") == [(1, "A", "B"), (2, "A", "B")]

    @pytest.mark.long
    @pytest.mark.parametrize("died_at", [1, "state", 2, "rows"], ids=lambda at: f"at-{at}")
    def test_a_column_goes_once_and_none_of_the_destination_with_it(self, open_writer, died_at):
        """One statement drops it, a state follows, the next gives another column its name, and the rows are asked for."""
        stream, writer = change_streams.Stream(), open_writer(drop=True)
        stream.insert(exchanged("ab"), (1, "A", "B"))
        contract.run(stream, writer)
        self.alter_in_sql("ALTER TABLE {table} ADD COLUMN mine string")
        self.alter_in_sql("UPDATE {table} SET mine = 'kept'")
        left = change_streams.table(exchanged("").columns[0], change_streams.column("a", "string", "text", column_id=3))
        stream.insert(left, (2, "C"))
        again = died_and_started_again(stream, writer, died_at, open_writer, drop=True)
        assert contract.rows(again, "id", "a", "mine") == [(1, "B", "kept"), (2, "C", None)]
        assert set(contract.columns(again)) == {"a", "id", "mine"}

    @pytest.mark.long
    def test_a_column_that_the_lake_needs_stops_its_table_alone(self, open_writer):
        """Files are laid out by it."""
        stream, writer = change_streams.Stream(1), open_writer(drop=True)
        self.made_in_advance(writer, "id bigint, a string, b string", "a")
        world = contract.TwoTables(writer)
        world.stream = stream
        stream.insert(exchanged("ab"), (1, "A", "B"))
        world.run()
        stream.insert(change_streams.table(*exchanged("b").columns[:1]), (2,))
        world.run()
        assert world.paused.topics == {contract.TOPIC}
        assert contract.rows(writer, "id", "a") == [(1, "A")]

    def test_of_two_writers_with_one_epoch_the_second_notices(self, open_writer):
        stream = change_streams.Stream(1)
        stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
        one, other = open_writer(), open_writer()
        contract.run(stream, one)
        other.claim([contract.TOPIC])
        stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
        batch = stream.assembler().build(change_streams.arrow(stream.records), one.ledger(), 1)
        # Both have looked, and nothing was wrong: the step that commits decides.
        place = other._place(contract.TOPIC, ())
        found = other._found(contract.TOPIC, place)
        one.apply(batch)
        with pytest.raises(CdcError) as caught:
            other._write(other._spark(), place, found, batch.tables, batch)
        assert caught.value.code == "spark.ledger_moved"
        with pytest.raises(CdcError) as caught:
            other.apply(batch)
        assert caught.value.code == "spark.ledger_moved"
        assert contract.rows(one, "id") == [(1,), (2,)]

    @pytest.mark.long
    def test_several_tables_are_written_at_once_and_each_is_told_of(self, open_writer, spark):
        stream, writer, barrier = change_streams.Stream(1), open_writer(parallel_tables=3), threading.Barrier(3)
        tables = [change_streams.table(change_streams.ID, name=f"t{number}") for number in range(3)]
        topics, steps = [f"{change_streams.PREFIX}.public.{of.path[1]}" for of in tables], []
        writer.attach(lambda: spark, steps.append)

        def apply(id):
            for of in tables:
                stream.insert(of, (id,))
            writer.apply(stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), id))

        writer.claim(topics)
        # Nobody goes on before all have begun.
        failpoints.listen(lambda name: barrier.wait(LAKE_S_MAX) if name == "sink.before_commit" else None)
        try:
            apply(1)
            apply(2)
        finally:
            failpoints.listen(None)
        assert len(steps) == 12
        assert sum(len(said.split(", ")) == 3 for said in steps) >= 2
        assert [contract.rows(writer, "id", topic=topic) for topic in topics] == [[(1,), (2,)]] * 3
        again = open_writer((2, 0), parallel_tables=2)
        again.claim(topics)
        assert again.ledger() == writer.ledger()
        # Each table holds the new owner's epoch.
        for of in tables:
            with pytest.raises(CdcError) as caught:
                writer._found(f"{change_streams.PREFIX}.public.{of.path[1]}", LakeName(*of.path))
            assert caught.value.kind == "fenced"

    def test_offsets_can_be_altered_which_fences_off_tasks_from_before(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
        contract.run(stream, writer)
        open_writer((0, 0)).alter((1, 5), {(contract.TOPIC, 0): 0})
        assert dict(open_writer(epoch=(2, 0)).ledger()) == {(contract.TOPIC, 0): 0}
        with pytest.raises(CdcError) as caught:
            writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
        assert caught.value.kind == "fenced"
        with pytest.raises(CdcError):
            open_writer((0, 0)).alter((1, 4), None)

    @pytest.mark.long
    def test_a_table_with_rows_that_no_sink_has_made_is_left_alone(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
        writer._spark()
        writer._tables.create(LakeName("public", "orders"), "id bigint", None)
        self.alter_in_sql("INSERT INTO {table} VALUES (7)")
        with pytest.raises(CdcError) as caught:
            contract.run(stream, writer)
        assert caught.value.code == "spark.target_collision"

    def test_columns_have_the_types_of_the_source(self, open_writer):
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
        days = {"type": "int", "connect.name": "io.debezium.time.Date"}
        micros = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
        zoned = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
        wide = change_streams.table(
            change_streams.ID,
            change_streams.column("m", decimal, "numeric(9,2)"),
            change_streams.column("d", days, "date"),
            change_streams.column("t", micros, "timestamp without time zone"),
            change_streams.column("z", zoned, "timestamp with time zone"),
            change_streams.column("raw", "bytes", "bytea"),
            change_streams.column("f", "double", "double precision"),
            change_streams.column("b", "boolean", "boolean"),
            change_streams.column("tags", {"type": "array", "items": ["null", "string"]}, "text[]"),
            change_streams.column("we`ird. name", "int", "integer"),
        )
        row = (
            1,
            (-12345).to_bytes(3, "big", signed=True),
            -719_162,
            -1,
            "0001-01-01T00:00:00Z",
            b"\0\xff",
            0.1,
            True,
            ["a", None],
            5,
        )
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(wide, row)
        contract.run(stream, writer)
        columns = writer._tables.load(LakeName("public", "orders")).columns
        names = [column.name for column in wide.columns]
        assert [columns[name] for name in names] == [
            *("bigint", "decimal(9,2)", "date", "timestamp_ntz", "timestamp", "binary", "double", "boolean"),
            *("array<string>", "int"),
        ]
        utc = dt.UTC
        assert contract.rows(writer, *names) == [
            (
                *(1, Decimal("-123.45"), dt.date(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
                *(dt.datetime(1, 1, 1, tzinfo=utc), b"\0\xff", 0.1, True, ["a", None], 5),
            )
        ]


@pytest.mark.sampled(3, "Iceberg")
@long_but_for(QUICK, contract.Contract, contract.ByHand)
class TestIceberg(Lake):
    by_files = True

    def tables(self):
        return IcebergTables({"type": "hadoop", "warehouse": str(self._root)}, by_files=self.by_files)

    def identifiers(self):
        """The names of the fields that other engines take for the rows' key."""
        tables = self._writer._tables
        schema = tables._catalog.loadTable(tables._id(LakeName("public", "orders"))).schema()
        return set(schema.identifierFieldNames())

    def test_a_table_carries_its_key_as_identifier_fields(self, open_writer, monkeypatch):
        """One that a sink made before says it from its next batch on; rows go on coming, changing and leaving."""
        stream = change_streams.Stream(1)
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTables, "identify", lambda *_: None)
            writer = open_writer()
            stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
            contract.run(stream, writer)
            assert self.identifiers() == set()
        stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
        contract.run(stream, open_writer((1, 1)))
        assert self.identifiers() == {"id"}
        writer = self._writer
        stream.update(change_streams.NARROW, (1, 2, "c", "b"))
        stream.delete(change_streams.NARROW, (2,))
        stream.insert(change_streams.NARROW, (3, 3, "a", "b"))
        contract.run(stream, writer)
        assert contract.rows(writer, "id", "n") == [(1, 2), (3, 3)]
        assert self.identifiers() == {"id"}

    @pytest.mark.parametrize(
        ("before", "kind", "found"), [("2.5", "double", set()), ("7", "int", {"id"})], ids=["float", "int"]
    )
    def test_a_key_of_floating_point_numbers_is_none_to_iceberg(self, open_writer, before, kind, found):
        writer = open_writer()
        writer._spark()
        writer._tables.create(LakeName("public", "orders"), f"id {kind}, v string", None)
        place = LakeName("public", "orders")
        self.alter_in_sql(f"INSERT INTO {{table}} VALUES ({before}, 'x')")
        writer._tables.identify(place, writer._tables.load(place), ("id",))
        assert self.identifiers() == found

    def test_rows_without_a_key_keep_a_table_from_having_one(self, open_writer):
        writer, place = open_writer(), LakeName("public", "orders")
        writer._spark()
        writer._tables.create(place, "id int, v string", None)
        tables = writer._tables
        tables.identify(place, tables.load(place), ("id",))
        assert self.identifiers() == {"id"}
        tables.identify(place, tables.load(place), ())
        assert self.identifiers() == set()
        self.alter_in_sql("INSERT INTO {table} VALUES (NULL, 'x')")
        tables.identify(place, tables.load(place), ("id",))
        assert self.identifiers() == set()

    @pytest.mark.long
    def test_a_table_that_is_compacted_meanwhile_is_merged_into_again(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
        contract.run(stream, writer)
        found, load = [], writer._tables.load

        def moving(place):
            """Somebody commits between our look at the table and our commit, once."""
            found.append(load(place))
            if len(found) == 1:
                writer._tables._catalog.loadTable(writer._tables._id(place)).newAppend().commit()
            return found[-1]

        writer._tables.load = moving
        stream.update(change_streams.NARROW, (1, 2, "c", "d"))
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1))
        assert len(found) > 2
        assert contract.rows(writer, "id", "n") == [(1, 2)]

    def test_a_snapshot_that_was_staged_by_a_run_that_died_is_seen_by_nobody(self, open_writer, monkeypatch):
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
        contract.run(stream, writer)
        stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
        batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)

        def died(point):
            if point == "sink.before_commit":
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("cdcworker.connectors.warehouses.lake.iceberg.hit", died)
            with pytest.raises(KeyboardInterrupt):
                writer.apply(batch)
        assert contract.rows(writer, "id") == [(1,)]
        again = open_writer((1, 1))
        again.claim([contract.TOPIC])
        again.apply(batch)
        assert contract.rows(again, "id") == [(1,), (2,)]


@long_but_for((), contract.Contract, contract.ByHand, Lake, TestIceberg)
class TestIcebergInSql(TestIceberg):
    """Tables whose form leaves the writing of rows to Spark."""

    by_files = False


@long_but_for(QUICK_DELTA, contract.Contract, contract.ByHand, Lake)
class TestDelta(Lake):
    pytestmark = pytest.mark.delta

    def tables(self):
        return DeltaTables(str(self._root))

    def drop_table(self, writer):
        """No catalog holds it: the folder is all there is."""
        shutil.rmtree(self._root / "public" / "orders")

    @pytest.mark.long
    def test_a_table_that_is_compacted_meanwhile_is_merged_into_all_the_same(self, open_writer):
        stream, writer = change_streams.Stream(1), open_writer()
        for number in range(2):
            stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
            contract.run(stream, writer)
        found, load = [], writer._tables.load

        def moving(place):
            found.append(load(place))
            if len(found) == 1:
                self.alter_in_sql("OPTIMIZE {table}")
            return found[-1]

        writer._tables.load = moving
        stream.update(change_streams.NARROW, (1, 2, "c", "d"))
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1))
        assert load(LakeName("public", "orders")).version > found[0].version + 1
        assert contract.rows(writer, "id", "n") == [(0, 1), (1, 2)]
        # The newest commit is somebody else's; the offsets are in one before it.
        self.alter_in_sql("OPTIMIZE {table}")
        again = open_writer((1, 1))
        again.claim([contract.TOPIC])
        assert dict(again.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}

    @pytest.mark.long
    def test_offsets_outlive_the_log_that_held_them(self, open_writer):
        place = LakeName("public", "orders")
        stream, writer = change_streams.Stream(1), open_writer()
        stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
        contract.run(stream, writer)
        writer._tables.tend(place)
        writer._tables._log(place)[0].checkpoint()
        # The newest commit stays, as it does when Delta cleans its log.
        for path in sorted((self._root / "public" / "orders" / "_delta_log").glob("*.json"))[:-1]:
            path.unlink()
        again = open_writer((1, 1))
        assert dict(again.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}


class BySql(DeltaTables):
    """All that a batch does goes through Spark."""

    def writes_rows(self, place, found, schema):
        return False

    def another(self):
        return BySql(self._root, self._roots, self._plain, self._file_tables)


@long_but_for((), contract.Contract, contract.ByHand, Lake)
class TestDeltaBySql(Lake):
    pytestmark = pytest.mark.delta

    def tables(self):
        return BySql(str(self._root))

    def drop_table(self, writer):
        shutil.rmtree(self._root / "public" / "orders")


def files(writer):
    table = writer._tables._file_tables.table(LakeName("public", "orders"))
    return list(table.log.snapshot().files.values())


@pytest.mark.delta
@pytest.mark.long
@pytest.mark.parametrize("plain", [pytest.param(False, id="vectors"), pytest.param(True, id="plain")])
def test_spark_and_files_of_our_own_write_one_table_in_turn(spark, tmp_path, plain):
    """Rows, deletion vectors and checkpoints of each are the other's; every commit is seen."""

    def opened(kind, epoch):
        writer = LakeWriter(kind(str(tmp_path / "lake"), plain=plain), "sink")
        writer.attach(lambda: spark)
        writer.fence((1, epoch))
        return writer

    stream, model = change_streams.Stream(1), change_streams.Model()
    for turn in range(4):
        for number in range(turn * 3000, turn * 3000 + 3000):
            row = (number, turn, f"a{number}", "x" * 50)
            stream.insert(change_streams.NARROW, row)
            model.insert((number,), row)
        for number in range(turn, turn * 3000, 7):
            stream.update(change_streams.NARROW, (number, 99 + turn, "again", None), (3,))
            model.update((number,), (number, 99 + turn, "again", None), (3,))
        writer = opened(DeltaTables if turn % 2 == 0 else BySql, turn)
        contract.run(stream, writer)
        writer._tables.tend(LakeName("public", "orders"))
        assert bool([add for add in files(writer) if "deletionVector" in add]) is (turn > 0 and not plain)
        found = contract.rows(writer, "id", "n", "a", "big")
        writer.close()
        assert {(row[0],): list(row) for row in found} == model.rows
    protocol = writer._tables._file_tables.table(LakeName("public", "orders")).log.snapshot().protocol
    assert (protocol["minReaderVersion"] < 3) is plain


@pytest.mark.delta
@pytest.mark.long
def test_a_plain_table_is_held_back_for_a_renamed_column_with_what_to_do(spark, tmp_path):
    def of(name):
        return exchanged([name])

    stream, writer = change_streams.Stream(1), LakeWriter(DeltaTables(str(tmp_path / "lake"), plain=True), "sink")
    writer.attach(lambda: spark)
    writer.fence((1, 0))
    stream.insert(of("a"), (1, "A"))
    contract.run(stream, writer)
    stream.insert(of("b"), (2, "B"))
    with pytest.raises(CdcError, match="columnMapping") as caught:
        contract.run(stream, writer)
    assert caught.value.code == "spark.schema_refused"
    features = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    name = writer._tables.name(LakeName("public", "orders"))
    writer._spark().sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({features})")
    contract.run(stream, writer)
    assert contract.rows(writer, "id", "b") == [(1, "A"), (2, "B")]
    writer.close()


def lake_rows(spark, world, kind, table=change_streams.NARROW):
    root = str(world.tmp_path / "lake")
    tables = DeltaTables(root) if kind == "delta" else IcebergTables({"type": "hadoop", "warehouse": root})
    writer = LakeWriter(tables, world.name)
    writer.attach(lambda: spark)
    found = writer.rows(world.topic(table))
    names = ("id", "n", "a", "big")
    rows = [] if found is None else [row for batch in found.batches for row in batch.to_pylist()]
    writer.close()
    assert len({row["id"] for row in rows}) == len(rows)
    return {(row["id"],): [row[name] for name in names] for row in rows}


def killed_and_started_again(world, spark, points, kind="iceberg", config=None, rows=None):
    """`config` says where the lake is, and `rows` reads it; by default it is a folder."""
    world.create(world.topic(change_streams.NARROW))
    lake = config or {"warehouse": kind, "warehouse.path": str(world.tmp_path / "lake")}
    rows = rows or (lambda: lake_rows(spark, world, kind))
    for number, point in enumerate(points):
        load(world, number * 100, 100)
        world.stream.update(change_streams.NARROW, (number * 100 + 1, 5, "again", None), (3,))
        world.model.update((number * 100 + 1,), (number * 100 + 1, 5, "again", None), (3,))
        world.stream.delete(change_streams.NARROW, (number * 100,))
        del world.model.rows[number * 100,]
        world.send()
        process = world.start([world.topic(change_streams.NARROW)], point, **lake)
        assert process.wait(LAKE_S_MAX) == -signal.SIGKILL
        await_end_of_group(process.pid)
    process = world.start([world.topic(change_streams.NARROW)], **lake)
    eventually(lambda: rows() == world.model.rows, "the rows after the kills", LAKE_S_MAX)
    world.stop(process)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
def test_a_driver_killed_between_its_rows_and_its_commit_loses_and_doubles_nothing(world, spark):
    killed_and_started_again(world, spark, ["sink.before_commit=kill@1"])


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["iceberg", pytest.param("delta", marks=pytest.mark.delta)])
def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(world, spark, kind):
    # Of a table that is there a new driver raises the epoch first, which is a commit too.
    points = ("sink.batch_start", "sink.staged", "sink.before_commit", "sink.before_commit", "sink.after_commit")
    numbers = (1, 1, 1, 2, 1)
    points = [f"{point}=kill@{number}" for point, number in zip(points, numbers, strict=True)]
    if kind == "delta":
        points.insert(3, "sink.files_written=kill@2")
    killed_and_started_again(world, spark, points, kind)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["iceberg", pytest.param("delta", marks=pytest.mark.delta)])
def test_a_driver_killed_in_its_maintenance_loses_and_doubles_nothing(world, spark, kind):
    # Three files of like size are worth it.
    points = ["sink.after_commit=kill@1"] * 2
    points += [f"maintenance.{name}=kill@1" for name in ("files_written", "before_commit", "after_commit")]
    lake = {"warehouse": kind, "warehouse.path": str(world.tmp_path / "lake"), "maintenance.interval.ms": "10000"}
    killed_and_started_again(world, spark, points, kind, lake)


def test_text_in_a_statement_reads_no_variable_of_java(spark):
    """Defaults of columns come from the tables of others."""
    text = "${env:PATH} ${system:user.name} ${spark:spark.app.id} ${spark.app.name}"
    assert spark.sql(f"SELECT '{text}' AS v").first().v == text
