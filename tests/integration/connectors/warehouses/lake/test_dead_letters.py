"""Dead letters of a lake, sent again beside its sink."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.lake.dead_letters import LakeOfflineTables
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.maintenance.policy import MaintenancePolicy
from cdcworker.connectors.warehouses.lake.maintenance_run import LakeMaintenance
from cdcworker.connectors.warehouses.lake.side_tables import letters_place
from cdcworker.connectors.warehouses.lake.writer import LakeWriter

from tests.contract import dead_letters as contract
from tests.contract.warehouses import TOPIC

from .test_writer import long_but_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
QUICK = ("test_the_sink_goes_on_from_what_letters_made_of_a_table",)


class Sink(contract.Sink):
    def __init__(self, spark, tables, **output):
        self.spark, self.tables, self.opened = spark, tables, []
        super().__init__(**output)

    def _attached(self, made):
        made.attach(lambda: self.spark)
        self.opened.append(made)
        return made

    def open_writer(self, epoch):
        writer = self._attached(LakeWriter(self.tables(), "sink", output=self.output))
        writer.fence(epoch)
        writer.claim([TOPIC])
        return writer

    def open_letters(self):
        return self._attached(LakeOfflineTables(self.tables(), "sink", output=self.output)).letters

    def sql(self, text):
        self.writer._spark().sql(text.format(letters=self.writer._tables.name(letters_place())))

    def mend(self):
        for (partition, offset, part), content in self.bad.items():
            where = f"partition = {partition} AND offset = {offset}"
            self.sql(f"UPDATE {{letters}} SET {part} = X'{content.hex()}' WHERE {where}")

    def strip(self):
        self.sql("UPDATE {letters} SET headers = NULL")

    def forget(self):
        LakeMaintenance(self.writer, MaintenancePolicy(), "sink").maintain(lambda: False)

    def rewind(self):
        self.writer.alter((1, 5), {(TOPIC, 0): 0})

    def close(self):
        for writer in self.opened:
            writer.close()


class Lake(contract.Contract):
    @pytest.fixture
    def open_sink(self, spark, tmp_path):
        sinks = []

        def make(**output):
            sinks.append(Sink(spark, lambda: self.tables(str(tmp_path / "lake")), **output))
            return sinks[-1]

        yield make
        for sink in sinks:
            sink.close()


@long_but_for(QUICK, contract.Rows, contract.Contract)
class TestIceberg(Lake):
    def tables(self, root):
        return IcebergTables({"type": "hadoop", "warehouse": root})


@long_but_for((), contract.Rows, contract.Contract)
class TestDelta(Lake):
    pytestmark = pytest.mark.delta

    def tables(self, root):
        return DeltaTables(root)
