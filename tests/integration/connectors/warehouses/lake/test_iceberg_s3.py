"""Iceberg tables in a bucket, on a real server, with Spark: what every warehouse has to do, for catalogs of each kind, dead letters,
faults of the store, and readers of others."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.conftest import serving
from tests.contract import dead_letters
from tests.contract import warehouses as contract
from tests.genuine import parts
from tests.object_stores.nessie_server import NessieServer

from . import test_writer as lakes
from .test_dead_letters import Lake as LettersOfLake

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


@pytest.fixture
def rest(s3, files, tmp_path):
    """The settings of a catalog that a server of its own keeps."""
    with serving(NessieServer(tmp_path, s3.endpoint, files.place(""))) as server:
        yield {"type": "rest", "uri": server.uri}


@lakes.long_but_for((), contract.Contract, contract.ByHand, lakes.Lake)
class TestRestCatalog(Bucket):
    @pytest.fixture
    def settings(self, rest):
        return rest


@lakes.long_but_for((), dead_letters.Rows, dead_letters.Contract)
class TestDeadLetters(LettersOfLake):
    @pytest.fixture(autouse=True)
    def _bucket(self, files):
        self._files = files

    def tables(self, root):
        return lake_of(self._files)
