"""Versions of rows in tables of a lake (`output.mode=scd2`), over one Spark session: written as files and by SQL."""

from __future__ import annotations

import shutil

import pytest
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC
from tests.version_model import RandomChanges, VersionedStream

from .test_dead_letters import Sink
from .test_writer import BySql, long_but_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
QUICK = ("test_an_as_of_query_has_the_rows_of_that_time",)
"""The rest takes minutes."""
FEW_SEEDS = contract.SEEDS[:5]


class Lake(contract.Versions):
    """`self.tables()` opens a new view of the one lake of a test."""

    @pytest.fixture
    def open_writer(self, spark, tmp_path):
        self._root = tmp_path / "lake"
        writers = []

        def make(epoch=(1, 0), **output):
            writers.append(LakeWriter(self.tables(), "sink", output=OutputForm(**{"versions": True, **output})))
            writers[-1].attach(lambda: spark)
            writers[-1].fence(epoch)
            self._writer = writers[-1]
            return writers[-1]

        yield make
        for writer in writers:
            writer.close()

    def rewind(self, partition):
        self._writer.alter((getattr(self, "epoch", 1), 5), {(TOPIC, partition): 0})

    def drop_table(self, writer):
        shutil.rmtree(self._root / "public" / "orders")

    @pytest.mark.parametrize("seed", FEW_SEEDS)
    def test_a_history_is_the_models_after_random_changes(self, open_writer, seed):
        super().test_a_history_is_the_models_after_random_changes(open_writer, seed)

    @pytest.mark.parametrize("seed", FEW_SEEDS)
    def test_it_is_so_when_partitions_come_unevenly_and_offsets_are_reset(self, open_writer, seed):
        super().test_it_is_so_when_partitions_come_unevenly_and_offsets_are_reset(open_writer, seed)

    def test_an_as_of_query_has_the_rows_of_that_time(self, open_writer, spark):
        """As the documentation has it."""
        stream, writer = VersionedStream(), open_writer()
        RandomChanges(stream, 5, reads=False).run(30)
        then, wanted = stream.events[-1].at, sorted(stream.rows.values())
        RandomChanges(stream, 6, reads=False).run(30)
        contract.run(stream, writer)
        ((place, _),) = writer.found()
        at = f"TIMESTAMP '{then:%Y-%m-%d %H:%M:%S.%f}+00:00'"
        found = writer._spark().sql(
            f"SELECT id, n, a, big FROM {writer._tables.name(place)}"
            f" WHERE _cdc_valid_from <= {at} AND (_cdc_valid_to > {at} OR _cdc_valid_to IS NULL)"
        )
        assert sorted(tuple(row) for row in found.collect()) == wanted


@long_but_for(QUICK, contract.Versions, Lake)
class TestIceberg(Lake):
    by_files = True

    def tables(self):
        return IcebergTables({"type": "hadoop", "warehouse": str(self._root)}, by_files=self.by_files)


@long_but_for((), contract.Versions, Lake)
class TestIcebergInSql(TestIceberg):
    by_files = False


@long_but_for(QUICK, contract.Versions, Lake)
class TestDelta(Lake):
    pytestmark = pytest.mark.delta

    def tables(self):
        return DeltaTables(str(self._root))


@long_but_for((), contract.Versions, Lake)
class TestDeltaBySql(TestDelta):
    def tables(self):
        return BySql(str(self._root))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
@pytest.mark.parametrize("seed", contract.LETTER_SEEDS[:4])
def test_letters_that_are_sent_again_find_their_places_in_the_history(spark, tmp_path, kind, seed):
    root, made = str(tmp_path / "lake"), []

    def tables():
        return IcebergTables({"type": "hadoop", "warehouse": root}) if kind == "iceberg" else DeltaTables(root)

    def open_sink(**output):
        made.append(Sink(spark, tables, **output))
        return made[-1]

    try:
        contract.Letters().test_letters_that_are_sent_again_find_their_places_in_the_history(open_sink, seed)
    finally:
        for sink in made:
            sink.close()
