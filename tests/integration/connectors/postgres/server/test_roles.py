"""The roles that the scripts make: enough for a source and for a sink, and nothing besides."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.checks import examine
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.server import publication_operations as operations
from cdcworker.connectors.warehouses.postgres.connection import probe
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart.roles import make_reader, make_writer

from tests.contract.polled_task import materialise

pytestmark = pytest.mark.postgres

PASSWORD = "only for this test"


@pytest.fixture
def source(postgres, database, db):
    """Connection string of a role over two of three tables; the publication is `pub`."""
    db.execute('create schema "a.b"; create table "a.b"."it\'s" (id int primary key, v text)')
    db.execute("create table item (id int primary key, v text); create table secret (id int primary key)")
    tables = [("public", "item"), ("a.b", "it's")]
    for _ in range(2):  # it may be run again
        dsn = make_reader(postgres.dsn(database), f"reader $cdc$ {database}", PASSWORD, tables, "pub")
    return dsn


def as_source(dsn: str, **more: str) -> dict[str, str]:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    include = {"table.include.list": "public.item,a\\.b.it's", "publication.name": "pub"}
    return {"database.user": parts["user"], "database.password": parts["password"], **include, **more}


def test_a_source_with_this_role_takes_a_snapshot_and_the_stream_and_goes_on_after_a_kill(db, reader, source):
    db.execute("insert into item select g, 'v' || g from generate_series(1, 50) g")
    db.execute("""insert into "a.b"."it's" values (1, 'x')""")
    one = reader(**as_source(source)).start()
    one.until(one.loaded)
    db.execute("update item set v = 'changed' where id = 7; delete from item where id = 8")
    db.execute("alter table item add column more int")
    one.catch_up(db)
    one.kill()
    db.execute("insert into item values (100, 'new', 5)")
    one.task_epoch += 1
    one.start()
    one.catch_up(db)
    rows = materialise(one.log)
    assert len(rows["public", "item"]) == 50
    assert rows["public", "item"][100,] == {"id": 100, "v": "new", "more": 5}
    assert list(rows["a.b", "it's"]) == [(1,)]


def test_the_doctor_finds_nothing_that_blocks(postgres, database, reader, source):
    config = {**reader(**as_source(source)).config, "publication.autocreate.mode": "disabled"}
    found = list(examine(ExaminedServer(parse(config)), timeout_s=30.0))
    assert len(found) > 20
    assert [(item.check.name, item.result.message) for item in found if item.result.status == "error"] == []


def test_the_script_run_again_is_no_alteration_that_a_source_would_take_for_a_gap(postgres, database, db, source):
    before = operations.let_through(db, "pub")
    tables = [("public", "item"), ("public", "secret")]
    make_reader(postgres.dsn(database), f"reader $cdc$ {database}", PASSWORD, tables, "pub")
    assert operations.let_through(db, "pub") == before is not None


@pytest.mark.parametrize(
    "statement",
    [
        "select * from secret",
        "insert into item values (1)",
        "create table mine (id int)",
        "create schema mine",
        "create publication mine for table item",
        "alter publication pub drop table item",
        "create role another",
        "alter system set work_mem = '1GB'",
        "copy item to program 'true'",
        "select pg_read_file('postgresql.conf')",
    ],
)
def test_the_sources_role_may_not(db, source, statement):
    if "table mine" in statement and db.info.server_version < 150000:
        pytest.skip("until PostgreSQL 15 the schema public takes tables from everybody")
    with psycopg.connect(source, autocommit=True) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement)
    assert isinstance(refused.value, psycopg.errors.InsufficientPrivilege), refused.value


@pytest.fixture
def warehouse(db):
    if db.info.server_version < 150000:
        pytest.skip("a warehouse needs PostgreSQL 15")


@pytest.fixture
def target(postgres, database, db, warehouse):
    db.execute("create schema marts; create schema others; create table others.t (id int)")
    for _ in range(2):
        dsn = make_writer(postgres.dsn(database), f"writer_{database}", PASSWORD, ["marts"])
    return dsn


def test_a_sink_with_this_role_makes_its_books_and_its_tables(target):
    probe(target)
    with psycopg.connect(target) as connection:
        ledger = PostgresLedger("sink", 0)
        ledger.create(connection)
        ledger.fence(connection, (1, 1))
        connection.execute("create temporary table stage (id int)")
        connection.execute("create table marts.item (id int primary key); alter table marts.item add column v text")


@pytest.mark.parametrize(
    "statement",
    [
        "create schema mine",
        "select * from others.t",
        "create table others.mine (id int)",
        "create table public.mine (id int)",
        "create role another",
        "select pg_create_logical_replication_slot('mine', 'pgoutput')",
    ],
)
def test_the_sinks_role_may_not(target, statement):
    with psycopg.connect(target, autocommit=True) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement)
    assert isinstance(refused.value, psycopg.errors.InsufficientPrivilege), refused.value


def test_without_its_schema_a_sink_is_refused_before_it_starts(postgres, database, db, warehouse):
    db.execute(f"create role poor_{database} login password '{PASSWORD}'")
    parts = psycopg.conninfo.conninfo_to_dict(postgres.dsn(database))
    dsn = psycopg.conninfo.make_conninfo(**{**parts, "user": f"poor_{database}", "password": PASSWORD})
    try:
        with pytest.raises(CdcError) as refused:
            probe(dsn)
        assert refused.value.code == "spark.target_rights"
    finally:
        db.execute(f"drop role poor_{database}")
