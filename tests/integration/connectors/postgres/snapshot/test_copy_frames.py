"""Rows by COPY in the protocol's frames: the same as line by line, whichever way they come, and whatever ends them."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from cdcworker.connectors.capture.snapshot.chunks import ChunkRequest, RequiredVisibility, TableGone
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.decode.table_plan import source_template
from cdcworker.connectors.postgres.snapshot.chunk_reader import ChunkReader
from cdcworker.connectors.postgres.snapshot.copy_text import key_of_line
from cdcworker.connectors.postgres.snapshot.row_emitter import FrameRowEmitter, TableRowPositions, stamped
from cdcworker.connectors.postgres.transport.connection import connect
from cdcworker.schemas.change import EncodedRecords
from cdcworker.schemas.errors import CdcError

from tests.conftest import unless_built
from tests.integration.connectors.postgres.decode.test_native_path import LOAD, SETUP
from tests.unit.connectors.native_records import Registry

pytestmark = [
    pytest.mark.postgres,
    unless_built(native_path.native()),
]
ROWS = LOAD.partition("update mixed")[0]
WAYS = {"socket": {"database.transport": "auto"}, "libpq": {"database.transport": "psycopg"}}
LINES = {"decoder.native": "false"}


@pytest.fixture
def readers(db, reader):
    """Makes readers of rows with these settings."""
    db.execute("create publication c for all tables")
    made = []

    def make(**options: str) -> ChunkReader:
        settings = parse({**reader(**{"publication.name": "c"}).config, **options})
        made.append(ChunkReader(connect(settings, "test"), settings))
        return made[-1]

    yield make
    for one in made:
        one.connection.close()


def oid(db, name: str) -> int:
    return db.execute("select %s::regclass::oid::int", (name,)).fetchone()[0]


def want(db, name: str, **more) -> ChunkRequest:
    return ChunkRequest(oid(db, name), RequiredVisibility(), **{"limit": 1_000, **more})


def handed_on(chunk, *, fast: bool) -> tuple[list, list]:
    registry = Registry()
    writer = FrameRowEmitter(registry, native_path.native()) if fast else None
    made = stamped(
        chunk.left(),
        TableRowPositions(SnapshotProgress(), source_template("p", "d"), chunk.plan, chunk.view, 1000),
        writer,
    )
    return registry.produced(made), [item for item in made if not isinstance(item, EncodedRecords)]


@pytest.mark.parametrize("way", WAYS)
def test_a_chunk_of_every_type_is_the_same_in_frames_and_line_by_line(db, readers, way):
    for statement in (SETUP + ROWS).split(";\n"):
        db.execute(statement)
    db.execute("update mixed set c = E'tab\\tline\\nback\\\\slash\\b\\f\\v\\r\\\\N', d = '\\N' where id % 5 = 0")
    frames = readers(**WAYS[way]).chunk(want(db, "mixed"))
    lines = readers(**LINES).chunk(want(db, "mixed"))
    assert [frames.rows.line(at) for at in frames.rows.offsets()] == [line for line, _ in lines.rows.values()]
    for name in ("last", "size", "count", "ended"):
        assert getattr(frames, name) == getattr(lines, name), name
    assert frames.plan.table == lines.plan.table
    expected, _ = handed_on(frames, fast=False)
    made, left = handed_on(frames, fast=True)
    assert made == expected
    assert (len(made), len(left) < 10) == (304, True)


@pytest.mark.parametrize("way", [*WAYS, "lines"])
def test_a_chunk_ends_at_its_bytes_and_the_connection_goes_on(db, readers, way):
    db.execute("create table t(id int primary key, v text)")
    db.execute("insert into t select g, repeat('x', 1000) from generate_series(1, 3000) g")
    one = readers(**WAYS.get(way, LINES))
    found, after = [], None
    while True:
        chunk = one.chunk(want(db, "t", bytes_max=200_000, limit=2_000, after=after))
        texts = list(chunk.left()) if way == "lines" else map(chunk.rows.line, chunk.rows.offsets())
        found += [key_of_line(line, (0,), [int])[1] for line in texts]
        assert (chunk.count > 0, chunk.last) == (True, found[-1])
        if chunk.ended:
            break
        after = chunk.last
    assert found == [(str(n),) for n in range(1, 3001)]
    assert not one.is_broken()


@pytest.mark.parametrize("way", WAYS)
def test_an_error_among_the_rows_is_named_and_the_connection_goes_on(db, readers, way):
    db.execute("create table t(id int primary key, v text)")
    db.execute("insert into t select g, repeat('x', 1000) from generate_series(1, 1000) g")
    one = readers(**WAYS[way])
    with pytest.raises(CdcError) as caught:
        one.chunk(want(db, "t", filter="1 / (id - 900) < 2"))
    assert "DivisionByZero" in caught.value.message
    assert not one.is_broken()
    assert one.chunk(want(db, "t")).count == 1_000


@pytest.mark.parametrize("way", WAYS)
def test_a_read_that_is_broken_off_from_elsewhere_is_an_error(db, readers, way):
    db.execute("create table t(id int primary key)")
    db.execute("insert into t values (1), (2)")
    one, caught = readers(**WAYS[way]), []

    def read() -> None:
        try:
            one.chunk(want(db, "t", filter="pg_sleep(id * 60) is not null"))
        except CdcError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    sleeping = "select count(*) from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    while not db.execute(sleeping, (one.connection.info.backend_pid,)).fetchone()[0]:
        assert thread.is_alive()
    one.connection.pgconn.get_cancel().cancel()
    thread.join(30)
    assert [error.code for error in caught] != []
    assert not one.is_broken()


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_gone_among_the_rows_is_a_lost_connection(db, readers, way):
    db.execute("create table t(id int primary key, v text)")
    db.execute("insert into t select g, repeat('x', 1000) from generate_series(1, 20000) g")
    one = readers(**WAYS[way])
    one.connection.execute("begin")
    statement = b"copy (select * from public.t) to stdout"
    with closing(one._frames(statement, 100_000)) as pieces:
        next(pieces)
        db.execute("select pg_terminate_backend(%s)", (one.connection.info.backend_pid,))
        with pytest.raises(CdcError) as caught:
            list(pieces)
    assert caught.value.retriable
    assert one.is_broken()


def values(chunk) -> tuple[list[str], list[list[bytes]]]:
    names = [column.name for column in chunk.plan.table.columns]
    return names, sorted(line.rstrip(b"\n").split(b"\t") for line, _ in chunk.rows.values())


@pytest.mark.parametrize("members", ["table a, b where (x > 0), d", "all tables"])
def test_a_table_is_read_as_it_is_published_at_that_moment(db, readers, members):
    """A first look at another table tells nothing of this one, however short it is ago."""
    if db.info.server_version < 150000:
        pytest.skip("row filters came with PostgreSQL 15")
    db.execute("create table a(id int primary key); create table b(id int primary key, x int)")
    db.execute("create table d(id int primary key); create table later(id int primary key)")
    db.execute("insert into b values (1, -1), (2, 5); insert into d values (1); insert into later values (1)")
    db.execute(f"create publication m for {members}")
    one = readers(**LINES, **{"publication.name": "m"})
    one.chunk(want(db, "a"))
    if members != "all tables":
        db.execute("alter publication m set table a, b, d, later")
    db.execute("alter table d add column c int default 5; alter table a add column c int default 6")
    assert values(one.chunk(want(db, "b"))) == (["id", "x"], [[b"1", b"-1"], [b"2", b"5"]])
    assert values(one.chunk(want(db, "d"))) == (["id", "c"], [[b"1", b"5"]])
    assert values(one.chunk(want(db, "a")))[0] == ["id", "c"]
    db.execute("create table newer(id int primary key)")
    if members != "all tables":
        db.execute("alter publication m add table newer (id)")
    for name in ("later", "newer"):
        assert values(one.chunk(want(db, name)))[0] == ["id"]


def test_a_column_list_and_a_schema_are_taken_as_the_server_takes_them(db, readers):
    if db.info.server_version < 150000:
        pytest.skip("column lists came with PostgreSQL 15")
    db.execute("create table a(id int primary key, x int, y int generated always as (x + 1) stored)")
    db.execute("create schema whole create table b(id int primary key, x int); insert into a values (1, 2)")
    db.execute("insert into whole.b values (1, 2); create publication listed for table a (id)")
    db.execute("create publication member for table a; create publication schemas for tables in schema whole")
    db.execute("alter publication schemas add table whole.b where (x > 5)")
    assert values(readers(**LINES, **{"publication.name": "listed"}).chunk(want(db, "a"))) == (["id"], [[b"1"]])
    assert values(readers(**LINES, **{"publication.name": "member"}).chunk(want(db, "a")))[0] == ["id", "x"]
    assert values(readers(**LINES, **{"publication.name": "schemas"}).chunk(want(db, "whole.b")))[1] == [[b"1", b"2"]]
    with pytest.raises(TableGone):
        readers(**LINES, **{"publication.name": "schemas"}).chunk(want(db, "a"))
