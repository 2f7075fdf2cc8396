"""Rows that are read beside a real server's log: what readers have in the end is what the tables hold, whatever happens meanwhile."""

from __future__ import annotations

import random
from threading import Event, Thread
from types import ModuleType
from typing import Any

import pytest
from cdcworker.connectors.capture.snapshot.chunks import (
    ChunkRequest,
    KeyChanged,
    NotVisibleYet,
    RequiredVisibility,
    TableGone,
    TableKeyless,
    TableLocked,
)
from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.native_rows import native
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner
from cdcworker.connectors.mysql.errors import TABLE_CLOSED, VALUE
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.snapshot.chunk_reader import ChunkReader, SelectedChunk
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace
from cdcworker.connectors.mysql.snapshot.row_emitter import RowEmitter
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import unless_built
from tests.unit.connectors.native_records import Registry

from ..decode.decoded import SCHEMA, TEMPLATE, log_of, read_now
from ..logged import LoggedServer
from ..server.test_checks import settings_of
from ..types.test_values import CASES
from .loading import Loading

pytestmark = pytest.mark.mysql
SEE_ALL = RequiredVisibility()


def reader_of(server: LoggedServer, table: str, module: ModuleType | None = None, **config: str) -> ChunkReader:
    config_now = settings_of(server, **config)
    planner = TablePlanner(config_now, SCHEMA, lambda database, name: read_now(config_now, database, name))
    return ChunkReader(opened(config_now), planner, {1: ("shop", table)}.get, 1000, module)


def records_of(chunk: SelectedChunk, module: ModuleType | None) -> list[tuple[Any, ...]]:
    """What the rows of a chunk become, by the core or in Python."""
    registry = Registry()
    emitter = RowEmitter(SnapshotProgress(), TEMPLATE, CommitNumbers(5), lambda: chunk.view.snap, is_mariadb=True)
    if module is not None:
        emitter.use_layouts(registry, module)
    return registry.produced(emitter.emit(chunk, chunk.view.hw))


def texts_of(chunk: SelectedChunk) -> list[tuple[str, ...]]:
    return [chunk.rows.key_texts(at) for at in chunk.rows.offsets()]


def identities(chunk: SelectedChunk) -> set[Any]:
    return set(chunk.rows.indexed())


def keys_of(reader: ChunkReader, limit: int, bytes_max: int = 1 << 30) -> list[tuple[str, ...]]:
    """All keys of a table, chunk by chunk."""
    found: list[tuple[str, ...]] = []
    last: tuple[str, ...] | None = None
    while True:
        chunk = reader.chunk(ChunkRequest(1, SEE_ALL, after=last, limit=limit, bytes_max=bytes_max))
        found += texts_of(chunk)
        last = chunk.last or last
        if chunk.ended:
            return found


KEYS = [
    ("int", "(-5),(0),(7),(2147483647)"),
    ("bigint unsigned", "(0),(1),(9223372036854775808),(18446744073709551615)"),
    ("decimal(30,10)", "(-1.5),(0),(12345678901234567890.0123456789),(12345678901234567890.0123456788)"),
    ("double", "(-1e300),(0.1),(0.30000000000000004),(1e300)"),
    ("date", "('0000-00-00'),('2020-01-01'),('9999-12-31')"),
    ("datetime(6)", "('2020-01-01 00:00:00.000001'),('2020-01-01 00:00:00.000002'),('1000-01-01')"),
    ("timestamp(3) null default null", "('2020-01-01 00:00:00.001'),('2020-01-01 00:00:00.002')"),
    ("time(2)", "('-838:59:59'),('00:00:00.01'),('838:59:59')"),
    ("year", "(1999),(2024)"),
    ("year(2)", "(1999),(2024),(2000),(1970)"),
    ("varchar(20)", "('a'),('B'),('é'),('it''s'),('漢'),('')"),
    ("varchar(20) character set latin1 collate latin1_bin", "('a'),('B'),('é'),('\\\\'),('')"),
    ("char(9) character set gbk", "('汉'),('a'),('b')"),
    ("varbinary(20)", "(''),(X'00'),(X'ff00'),(X'61')"),
    ("enum('z','a','m')", "('a'),('m'),('z')"),
    ("set('z','a')", "('a'),('z'),('z,a'),('')"),
    ("bit(9)", "(b'0'),(b'1'),(b'100000000')"),
    ("uuid", "('123e4567-e89b-12d3-a456-426655440000'),('00000000-0000-0000-0000-000000000001')"),
    ("inet6", "('::1'),('fe80::1')"),
]


IN_CI = ("decimal(30,10)", "enum('z','a','m')", "year(2)")


@pytest.mark.parametrize(
    ("column", "values"),
    [pytest.param(*key, id=key[0], marks=() if key[0] in IN_CI else pytest.mark.long) for key in KEYS],
)
def test_every_kind_of_key_is_read_through_in_its_order_row_by_row(
    logged: LoggedServer, column: str, values: str
) -> None:
    logged.ask(
        "create database if not exists shop", "set time_zone = '+00:00', sql_mode = ''",
        f"create or replace table shop.k (a {column}, b int not null, primary key (a, b))",
        *(f"insert into shop.k values {values.replace('),', f', {b}),')[:-1]}, {b})" for b in (1, 2)),
    )  # fmt: skip
    ((count,),) = logged.ask("select count(*) from shop.k")
    reader = reader_of(logged, "k")
    try:
        one_by_one = keys_of(reader, 1)
        assert one_by_one == keys_of(reader, 100) == keys_of(reader, 100, bytes_max=1)
        assert len(one_by_one) == len(set(one_by_one)) == count >= 4
        chunk = reader.chunk(ChunkRequest(1, SEE_ALL, keys=tuple(one_by_one), limit=100))
        assert len(texts_of(chunk)) == len(one_by_one)
        assert set(texts_of(chunk)) == set(one_by_one)
        logged.ask("delete from shop.k where b = 2")
        told = reader.chunk(ChunkRequest(1, SEE_ALL, keys=tuple(one_by_one), tells_absent=True, limit=100))
        assert set(told.absent.values()) == {key for key in one_by_one if key[1] == "2"}
        assert not told.absent.keys() & identities(told)
        assert told.absent.keys() | identities(told) == identities(chunk)
        part = reader.chunk(ChunkRequest(1, SEE_ALL, after=one_by_one[0], upto=one_by_one[2], limit=100))
        assert texts_of(part) == [key for key in one_by_one[1:3] if key[1] == "1"]
    finally:
        reader.close()


GROUP = 20


@pytest.mark.parametrize("first", range(0, len(CASES), GROUP))
def test_a_row_that_is_read_is_the_row_that_is_logged(logged: LoggedServer, first: int) -> None:
    cases = CASES[first : first + GROUP]

    @settings(max_examples=1, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(*(case.values for case in cases)), min_size=8, max_size=8))
    def check(rows: list[tuple[Any, ...]]) -> None:
        columns = "".join(f", v{i} {case.column}" for i, case in enumerate(cases))
        stored = ",".join(
            f"({n},{','.join(case.literal(value) for case, value in zip(cases, row, strict=True))})"
            for n, row in enumerate(rows)
        )
        log = log_of(
            logged, "set time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'",
            f"create or replace table same (id int primary key{columns})", f"insert ignore into same values {stored}",
        )  # fmt: skip
        reader = reader_of(logged, "same", native())
        try:
            chunk = reader.chunk(ChunkRequest(1, SEE_ALL, limit=100))
        finally:
            reader.close()
        assert [chunk.rows.row(at) for at in chunk.rows.offsets()] == [change.after for change in log.changes()]
        if native() is not None:
            assert records_of(chunk, native()) == records_of(chunk, None)
        assert chunk.plan.table.columns == log.changes()[0].table.columns

    check()


def test_a_read_says_which_transactions_it_saw(logged: LoggedServer) -> None:
    logged.ask("create database if not exists shop", "create or replace table shop.v (id int primary key)")
    reader = reader_of(logged, "v")
    try:
        before = logged.position()
        logged.ask("insert into shop.v values (1)")
        after = logged.position()
        chunk = reader.chunk(ChunkRequest(1, SEE_ALL))
        assert chunk.view.snap.sees(str(after))
        assert chunk.view.snap.exact
        assert GtidPlace(after) >= chunk.view.hw
        assert not GtidPlace(before) >= chunk.view.hw
        beyond = f"3-7-{after.last[3].sequence + 1}"
        assert not chunk.view.snap.sees(beyond)
        with pytest.raises(NotVisibleYet):
            reader.chunk(ChunkRequest(1, RequiredVisibility(before=(beyond,))))
    finally:
        reader.close()


def test_what_keeps_a_table_from_being_read_is_told(logged: LoggedServer) -> None:
    logged.ask("create database if not exists shop", "create or replace table shop.w (id int primary key)")
    reader = reader_of(logged, "w")
    try:
        with pytest.raises(KeyChanged):
            reader.chunk(ChunkRequest(1, SEE_ALL, key_names=("other",)))
        with pytest.raises(TableGone):
            reader.chunk(ChunkRequest(2, SEE_ALL))
        with logged.connect() as other, other.cursor() as cursor:
            cursor.execute("lock tables shop.w write")
            with pytest.raises(TableLocked):
                reader.chunk(ChunkRequest(1, SEE_ALL))
        with pytest.raises(CdcError) as caught:
            reader.chunk(ChunkRequest(1, SEE_ALL, after=("1 or 1=1",)))
        assert (caught.value.code, caught.value.where) == (VALUE, {"table": "shop.w"})
        logged.ask("create or replace table shop.w (id int)")
        assert reader.survey(1, 4, 0).keyless
        with pytest.raises(TableKeyless):
            reader.chunk(ChunkRequest(1, SEE_ALL))
        logged.ask("drop table shop.w")
        with pytest.raises(TableGone):
            reader.chunk(ChunkRequest(1, SEE_ALL))
        assert not reader.is_broken()
    finally:
        reader.close()


def test_a_table_that_the_user_may_not_read_is_named(logged: LoggedServer) -> None:
    logged.ask("create database if not exists shop", "create or replace table shop.c (id int primary key)")
    logged.ask("create or replace user clerk@'%' identified by 'clerk'", "grant insert on shop.c to clerk@'%'")
    reader = reader_of(logged, "c", database__user="clerk", database__password="clerk")
    try:
        with pytest.raises(CdcError) as caught:
            reader.chunk(ChunkRequest(1, SEE_ALL))
        assert (caught.value.code, caught.value.where) == (TABLE_CLOSED, {"table": "shop.c"})
        assert not reader.is_broken()
    finally:
        reader.close()


def test_a_table_with_numbers_as_keys_is_divided(logged: LoggedServer) -> None:
    logged.ask(
        "create database if not exists shop", "create or replace table shop.d (id int primary key)",
        "insert into shop.d values (0), (400), (1000)",
    )  # fmt: skip
    reader = reader_of(logged, "d")
    try:
        assert reader.survey(1, 4, 0).bounds == (("250",), ("500",), ("750",))
        assert reader.survey(1, 1, 0).bounds == ()
    finally:
        reader.close()


def test_a_chunk_of_large_values_ends_early_and_lets_go_of_a_long_rest(logged: LoggedServer) -> None:
    large = 10 << 20
    logged.ask(
        "create database if not exists shop", "use shop", "set sql_log_bin = 0",
        "create or replace table shop.l (id int primary key, a longtext, b longtext)",
        f"insert into shop.l select seq, repeat(seq, {large}), null from seq_1_to_5",
        f"insert into shop.l values (6, repeat('6', {large}), repeat('7', {large}))",
    )  # fmt: skip
    sizes, last = [], None
    while not sizes or last is not None:
        reader = reader_of(logged, "l", native())
        try:
            chunk = reader.chunk(ChunkRequest(1, SEE_ALL, after=last, limit=200, bytes_max=4 << 20))
            if last == ("6",):
                # Its answer had not ended when it came: nothing follows.
                assert (chunk.last, chunk.ended) == (None, True)
                break
            assert chunk.last
            # The last two rows may come with the end of the answer.
            assert reader.is_broken() or int(chunk.last[0]) > 3
            assert chunk.last != ("6",) or not reader.is_broken()
        finally:
            reader.close()
        # The chunk is there whole, whatever became of the connection.
        sizes += [len("".join(value for value in chunk.rows.row(at)[1:] if value)) for at in chunk.rows.offsets()]
        assert len(chunk.rows.data) < 3 * large
        last = None if chunk.ended else chunk.last
    assert sizes == [large] * 5 + [2 * large]


def write_at_random(server: LoggedServer, stop: Event, seed: int) -> None:
    chance = random.Random(seed)
    with server.connect() as connection, connection.cursor() as cursor:
        while not stop.is_set():
            row = chance.randrange(400)
            statement = chance.choice(
                (
                    f"replace into shop.a values ({row}, 'r{chance.random()}', {row})",
                    f"update shop.a set v = 'u{chance.random()}' where id = {row}",
                    f"delete from shop.a where id = {row}",
                    f"update ignore shop.a set id = {chance.randrange(400)} where id = {row}",
                    f"update shop.b set v = 'b{chance.random()}' where id = {row}",
                )
            )
            cursor.execute("begin")
            cursor.execute(statement)
            cursor.execute(chance.choice(("commit", "commit", "commit", "rollback")))


def stored(server: LoggedServer, name: str) -> dict[Any, Any]:
    return {(row[0],): row for row in server.ask(f"select * from shop.{name}")}


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=unless_built(native())), False])
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
def test_what_readers_have_is_what_the_tables_hold_while_others_write(
    logged: LoggedServer, seed: int, is_native: bool
) -> None:
    values = ",".join(f"({i}, '{'x' * 40}', {i})" for i in range(400))
    logged.ask(
        "create database if not exists shop",
        *(f"create or replace table shop.{t} (id int primary key, v varchar(99), n int)" for t in "ab"),
        *(f"insert into shop.{t} values {values}" for t in "ab"),
    )
    loading = Loading(logged, settings_of(logged), "a", "b", module=native() if is_native else None)
    stop = Event()
    writer = Thread(target=write_at_random, args=(logged, stop, seed))
    writer.start()

    def is_over() -> bool:
        stop.set()
        writer.join(30)
        return not writer.is_alive()

    try:
        loading.run(is_over)
    finally:
        is_over()
    for name in "ab":
        assert loading.state(name) == stored(logged, name)
    positions = [change.position for change in loading.changes]
    assert positions == sorted(positions)
    assert len(set(positions)) == len(positions)
    assert {change.op for change in loading.changes} >= {"r", "u"}
    assert loading.progress.rows == sum(change.op == "r" for change in loading.changes)
