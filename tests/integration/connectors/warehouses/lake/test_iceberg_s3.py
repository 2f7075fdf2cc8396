"""Iceberg tables in a bucket, on a real server, with Spark: what every warehouse has to do, for catalogs of each kind, dead letters,
faults of the store, and readers of others."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.storage import object_store, s3_client
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import dead_letters
from tests.contract import warehouses as contract
from tests.genuine import parts
from tests.s3_faults import FaultProxy, put_of
from tests.s3_server import ACCESS_KEY, HOST, SECRET_KEY, bucket_at

from . import test_writer as lakes
from .test_dead_letters import Lake as LettersOfLake
from .test_delta_s3 import once_each

pytestmark = [
    pytest.mark.s3,
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def lake_of(files, by_files=True, **settings):
    """A new view of the lake below a prefix."""
    settings = {"type": "hadoop", "warehouse": files.place("").rstrip("/"), **settings}
    return IcebergTables(settings, store=files, by_files=by_files)


@pytest.fixture
def files(s3):
    return s3.files(uuid.uuid4().hex)


def opened(spark, files, epoch=(1, 0), **more):
    writer = LakeWriter(lake_of(files, **more), "sink")
    writer.attach(lambda: spark)
    writer.fence(epoch)
    return writer


class Bucket(lakes.Lake):
    by_files = True

    @pytest.fixture
    def settings(self):
        return {}

    @pytest.fixture
    def open_writer(self, spark, files, settings):
        self._files, self._settings, writers = files, settings, []

        def make(epoch=(1, 0), sink="sink", parallel_tables=1, **output):
            writer = LakeWriter(self.tables(), sink, output=OutputForm(**output), parallel_tables=parallel_tables)
            writers.append(writer)
            writer.attach(lambda: spark)
            writer.fence(epoch)
            self._writer = writer
            return writer

        yield make
        for writer in writers:
            writer.close()

    def tables(self):
        return lake_of(self._files, self.by_files, **self._settings)


QUICK = ("test_rows_are_inserted_updated_and_deleted", "test_of_two_writers_with_one_epoch_the_second_notices")


@lakes.long_but_for(QUICK, contract.Contract, contract.ByHand, lakes.Lake)
class TestIceberg(Bucket):
    """Rows by files of the sink's own."""


@lakes.long_but_for((), contract.Contract, contract.ByHand, lakes.Lake)
class TestIcebergBySql(Bucket):
    by_files = False


@pytest.fixture
def jdbc(postgres):
    """The settings of a catalog in a database of PostgreSQL."""
    parts.libraries("catalog")
    database = postgres.create_database()
    told = psycopg.conninfo.conninfo_to_dict(postgres.dsn(database))
    yield {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://{told['host']}:{told['port']}/{database}",
        "jdbc.user": told["user"],
        "jdbc.password": told.get("password", ""),
        "jdbc.schema-version": "V1",
    }
    postgres.drop_database(database)


@pytest.mark.postgres
@lakes.long_but_for(QUICK[:1], contract.Contract, contract.ByHand, lakes.Lake)
class TestJdbcCatalog(Bucket):
    @pytest.fixture
    def settings(self, jdbc):
        return jdbc


@lakes.long_but_for((), dead_letters.Rows, dead_letters.Contract)
class TestDeadLetters(LettersOfLake):
    @pytest.fixture(autouse=True)
    def _bucket(self, files):
        self._files = files

    def tables(self, root):
        return lake_of(self._files)


# -- faults -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(s3):
    with FaultProxy(HOST, s3.port) as proxy:
        yield proxy


def apply(writer, stream):
    """What a driver does: it claims its topics, reads the ledger, and applies what lies behind."""
    writer.claim([contract.TOPIC])
    writer.apply(stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1))


@pytest.mark.parametrize("how", ["lost", *(pytest.param(how, marks=pytest.mark.long) for how in ("cut", "busy"))])
def test_whichever_put_fails_each_row_is_there_once(spark, s3, proxy, how):
    """Each object of a table is put with an answer that fails the first time: data, deletes, manifests and versions of metadata."""
    prefix, stream = uuid.uuid4().hex, change_streams.Stream(1)
    writer = opened(spark, bucket_at(proxy.endpoint, prefix))
    fault = proxy.plan(how, once_each(put_of("/public/orders/")), times=10_000)
    for number in range(3):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        if number:
            stream.update(change_streams.NARROW, (number - 1, 2, "c", "d"))
        apply(writer, stream)
    kinds = ("-deletes.parquet", ".parquet", ".avro", ".metadata.json")
    for kind in kinds:
        assert any(path.partition("?")[0].endswith(kind) for path in fault.seen), kind
    writer.close()
    reader = opened(spark, s3.files(prefix), (1, 1))
    assert contract.rows(reader, "id", "n") == [(0, 2), (1, 2), (2, 1)]
    assert dict(reader.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}
    reader.close()


@pytest.mark.long
def test_a_version_that_arrives_late_is_found_and_kept(spark, s3, proxy, monkeypatch):
    """The writer gave the put of a table's metadata up; it arrives before the next try."""
    prefix, stream = uuid.uuid4().hex, change_streams.Stream(1)
    writer = opened(spark, bucket_at(proxy.endpoint, prefix))
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    apply(writer, stream)
    monkeypatch.setattr(s3_client, "READ_S_MAX", 0.5)
    monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.0)
    store = writer._tables._store
    store._opened = store._open()
    stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
    # The version itself, not the file of which it is a copy.
    held = proxy.plan("held", lambda method, path: method == "PUT" and "/orders/metadata/v" in path)
    with pytest.raises(CdcError) as caught:
        apply(writer, stream)
    assert caught.value.code == "spark.target_unreachable"
    writer.claim([contract.TOPIC])
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    held.release.set()
    assert held.done.wait(30)
    with pytest.raises(CdcError) as caught:
        writer.apply(batch)
    assert (caught.value.code, caught.value.kind) == ("spark.target_unreachable", "transient")
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,), (2,)]
    writer.close()


@pytest.mark.long
def test_a_staged_snapshot_whose_answer_is_lost_is_in_a_log_once(spark, s3, proxy, monkeypatch):
    """The commit is Spark's own. It must not be tried again by Iceberg, which makes a snapshot current that it finds in the table."""
    prefix, stream = uuid.uuid4().hex, change_streams.Stream(1)
    writer = LakeWriter(lake_of(bucket_at(proxy.endpoint, prefix), by_files=False), "sink", output=OutputForm(log=True))
    writer.attach(lambda: spark)
    writer.fence((1, 0))

    def apply_log():
        writer.claim([contract.TOPIC])
        writer.apply(stream.assembler(log=True).build(change_streams.arrow(stream.records), writer.ledger(), 1))

    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    apply_log()
    stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
    with monkeypatch.context() as patched:
        patched.setattr(object_store, "RETRY_S_MAX", 0.0)
        lost = proxy.plan("lost", lambda method, path: method == "PUT" and "/orders/metadata/v" in path)
        with pytest.raises(CdcError) as caught:
            apply_log()
    assert lost.seen
    assert (caught.value.code, caught.value.kind) == ("spark.target_unreachable", "transient")
    assert contract.rows(writer, "id") == [(1,)]
    apply_log()
    assert contract.rows(writer, "id") == [(1,), (2,)]
    writer.close()


@pytest.mark.long
def test_what_the_store_refuses_while_a_task_runs_has_its_code(spark, s3):
    writer, stream = opened(spark, bucket_at(s3.endpoint, uuid.uuid4().hex)), change_streams.Stream(1)
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    apply(writer, stream)
    wrong = bucket_at(s3.endpoint, "x", **{"warehouse.s3.secret.key": "wrong"})._client
    writer._tables._store._opened = wrong
    stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
    with pytest.raises(CdcError) as caught:
        apply(writer, stream)
    assert caught.value.code == "spark.target_auth"
    assert "wrong" not in str(caught.value)
    writer.close()


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
def test_a_sink_that_is_killed_again_and_again_loses_and_doubles_nothing(world, spark, s3, files):
    points = ("sink.before_commit=kill@1", "sink.staged=kill@2", "sink.after_commit=kill@1")
    login = {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY, "endpoint": s3.endpoint, "path.style.access": "true"}
    lake = {"warehouse": "iceberg", "warehouse.path": files.place("").rstrip("/")}
    lake.update({f"warehouse.s3.{name}": value for name, value in login.items()})

    def rows():
        writer = LakeWriter(lake_of(files), world.name)
        writer.attach(lambda: spark)
        found = contract.rows(writer, "id", "n", "a", "big", topic=world.topic(change_streams.NARROW))
        writer.close()
        assert len({row[0] for row in found}) == len(found)
        return {(row[0],): list(row) for row in found}

    lakes.killed_and_started_again(world, spark, points, config=lake, rows=rows)
