"""The file of a DuckDB warehouse as somebody else finds it, or leaves it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.connectors.warehouses.duckdb import connection as opening
from cdcworker.connectors.warehouses.duckdb.kind import DUCKDB
from cdcworker.connectors.warehouses.duckdb.verify_side import DuckDbTarget
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.change_streams import ID, NARROW, column, table
from tests.contract.warehouses import TOPIC, rows, run

HOLDS = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def held(path):
    """Somebody else has the file open."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "open\n"
        yield child.pid
    finally:
        child.stdin.close()
        assert child.wait(30) == 0
        child.stdout.close()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shop.duckdb")


@pytest.fixture
def writer(path):
    writer = DuckDbWriter(path, "sink")
    writer.fence((1, 0))
    return writer


def config(path):
    return CONFIG_DEF.parse({"name": "sink", "topics": TOPIC, "warehouse": "duckdb", "warehouse.path": path})


def test_a_batch_waits_for_somebody_who_has_the_file_open_and_says_who_it_is(path, writer, monkeypatch):
    monkeypatch.setattr(opening, "WAIT_S", 0.2)
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    with held(path) as pid:
        with pytest.raises(CdcError) as caught:
            run(stream, writer)
        assert (caught.value.code, caught.value.kind) == ("spark.target_locked", "transient")
        assert caught.value.where == {"file": path, "pid": pid}
        found = DUCKDB.probe(config(path))
        assert [(each.key, each.severity, each.code) for each in found] == [
            ("warehouse.path", "warning", "spark.target_locked")
        ]
    run(stream, writer)
    assert rows(writer, "id") == [(1,)]
    # Between two batches the file is free.
    with held(path):
        pass
    assert DUCKDB.probe(config(path)) == []


def test_a_file_that_is_gone_is_not_taken_for_a_first_start(path, writer):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    os.rename(path, f"{path}.away")
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert caught.value.code == "spark.target_gone"
    again = DuckDbWriter(path, "sink")
    again.expect([TOPIC])
    with pytest.raises(CdcError) as caught:
        again.fence((2, 0))
    assert caught.value.code == "spark.target_gone"
    assert not os.path.exists(path)
    os.rename(f"{path}.away", path)
    run(stream, writer)
    assert rows(writer, "id") == [(1,)]


def test_what_is_no_database_is_refused(path, tmp_path):
    with open(path, "wb") as file:
        file.write(b"something else " * 5000)
    with pytest.raises(CdcError) as caught:
        DuckDbWriter(path, "sink").fence((1, 0))
    assert caught.value.code == "spark.target_no_database"
    assert [each.code for each in DUCKDB.probe(config(path))] == ["spark.target_no_database"]
    for wrong in (str(tmp_path), str(tmp_path / "nowhere" / "shop.duckdb")):
        assert [each.code for each in DUCKDB.probe(config(wrong))] == ["spark.target_unreachable"]
    for wrong in ("", "s3://bucket/shop.duckdb"):
        with pytest.raises(CdcError) as caught:
            config(wrong)
        assert (caught.value.code, caught.value.where["key"]) == ("config.invalid", "warehouse.path")


def test_a_comparison_finds_tables_keys_and_positions(path, writer):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    with contextlib.closing(DuckDbTarget(path, "sink")) as side:
        side.prepare(VerifyLimits())
        table = side.table("public", "orders")
        assert (table.key, table.position, table.rows) == (("id",), "_cdc_position", 1)
        assert {column.name: column.type for column in table.columns} == {
            "id": "bigint",
            "n": "int",
            "a": "string",
            "big": "string",
            "_cdc_position": "binary",
        }
        assert side.table("public", "nothing") is None
        assert side.ledger() == writer.ledger()


@pytest.mark.parametrize("names", [("rowid",), ("RowId",), ("a", "A"), ("_CDC_POSITION",)])
def test_names_of_columns_that_duckdb_does_not_tell_apart_are_refused_by_name(path, writer, names):
    """A column of the name rowid would stand for the places of rows: others than those that change would be deleted."""
    of = table(ID, *(column(name, "int", "integer") for name in names))
    stream = change_streams.Stream(1)
    stream.insert(of, (1, *range(len(names))))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert caught.value.code == "spark.schema_refused"
    assert caught.value.where["column"] == names[-1]
    assert "index" not in caught.value.message


def test_a_column_of_a_table_that_hides_the_places_of_rows_is_refused(path, writer):
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    with opening.session(path) as connection:
        connection.do("alter table public.orders add column rowid integer default 7")
    stream.insert(NARROW, (2, 1, "a", "b"))
    with pytest.raises(CdcError) as caught:
        run(stream, writer)
    assert (caught.value.code, caught.value.where["column"]) == ("spark.schema_refused", "rowid")
    with opening.session(path) as connection:
        connection.do("alter table public.orders drop column rowid")
    run(stream, writer)
    assert rows(writer, "id") == [(1,), (2,)]
