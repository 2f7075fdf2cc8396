"""Plain Delta tables as delta-rs reads them, which `make clients` installs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.lake.writer import LakeWriter

from tests import change_streams
from tests.conftest import REQUIRE_PARTS
from tests.contract import warehouses as contract

PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
READ = """
import json, sys
from deltalake import DeltaTable
table = DeltaTable(sys.argv[1])
rows = [[row[name] for name in ("id", "n", "a", "big")] for row in table.to_pyarrow_table().to_pylist()]
print(json.dumps({"version": table.version(), "rows": rows}))
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.delta,
    pytest.mark.timeout(900),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def read(path):
    done = subprocess.run(
        [str(PYTHON), "-c", READ, str(path)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_delta_rs_reads_the_rows_of_a_plain_table_and_its_checkpoint(spark, tmp_path):
    if not PYTHON.is_file():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part delta-rs: `make clients`")
    stream, place = change_streams.Stream(1), LakeName("public", "orders")
    tables = DeltaTables(str(tmp_path / "lake"), plain=True)
    writer = LakeWriter(tables, "sink")
    writer.attach(lambda: spark)
    writer.fence((1, 0))
    path = tmp_path / "lake" / "public" / "orders"
    for turn in range(2):
        for number in range(3000 * turn, 3000 * turn + 3000):
            stream.insert(change_streams.NARROW, (number, turn, f"a{number}", "x" * 50))
        for number in range(turn, 3000 * turn, 7):
            stream.update(change_streams.NARROW, (number, 9, "again", "y"))
            stream.delete(change_streams.NARROW, (number + 1,))
        contract.run(stream, writer)
        tables.tend(place)
        found = read(path)
        assert found["version"] == tables.load(place).version
        assert sorted(map(tuple, found["rows"])) == sorted(contract.rows(writer, "id", "n", "a", "big"))
        assert list((path / "_delta_log").glob("*.checkpoint.parquet"))
    writer.close()
