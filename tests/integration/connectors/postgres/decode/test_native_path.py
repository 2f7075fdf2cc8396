"""The native core and the own socket over a real server: the same records as the Python decoder makes of the same log."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.transport.socket_stream import SocketStream
from cdcworker.schemas.change import Change
from cdcworker.schemas.errors import CdcError

from tests.conftest import unless_built
from tests.unit.connectors.native_records import Registry

from .. import postgres_reader

pytestmark = [
    pytest.mark.postgres,
    unless_built(native_path.native()),
]
SETUP = """
create table mixed (id bigint primary key, a int not null, b smallint, c text, d varchar(20), e numeric(12,2),
  f numeric, g boolean, h real, i double precision, j timestamptz, k timestamp, l date, m time, n uuid, o jsonb,
  p bytea, q int[], r interval, s money, t char(4));
create table plain (a int, b text);
create table big (id int primary key, body text, n int);
alter table big alter body set storage external;
create table whole (id int primary key, body text, n numeric);
alter table whole replica identity full;
alter table plain replica identity full;
"""
LOAD = """
insert into mixed select x, x * 7, x, 'text ' || x || ' ü€😀', 'v' || x, x / 7.0, x * 1e10 / 3, x % 2 = 0, x / 3.0, x / 7.0,
  '2024-02-29 12:34:56.789+02'::timestamptz + x * interval '1 day', '1969-12-31 23:59:59.999999'::timestamp - x * interval '1 hour',
  '1900-01-01'::date + x::int, '12:34:56.7', md5(x::text)::uuid, jsonb_build_object('x', x), decode(md5(x::text), 'hex'),
  array[x::int, null], make_interval(hours => x::int), x::int::money, 'ab' from generate_series(1, 300) x;
insert into mixed (id, a) values (-9223372036854775808, 0), (9223372036854775807, 2147483647);
insert into mixed (id, a, e, f, h, i, j, k, l, m) values (1001, 1, 'NaN', 'Infinity', '-Infinity', 'NaN', 'infinity',
  '-infinity', 'infinity', '24:00:00'), (1002, 2, -0.01, 0.000001, 1e-40, 5e-324, '0044-03-15 BC', '12345-01-01', '0001-01-01 BC', '00:00');
update mixed set c = null where id % 3 = 0;
update mixed set id = id + 5000 where id between 1 and 5;
delete from mixed where id % 7 = 0;
insert into plain values (1, 'x'), (1, 'x'), (null, null);
update plain set b = 'y' where a = 1;
delete from plain;
insert into big select x, repeat('b', 9000), x from generate_series(1, 20) x;
update big set n = n + 1;
update big set id = id + 100 where id < 4;
insert into whole values (1, repeat('w', 9000), 1), (2, null, 'NaN');
update whole set n = n + 1;
delete from whole where id = 2;
alter table big add column more int default 5;
insert into big values (500, 'after', 1, 2);
alter table big alter more type text;
insert into big values (501, 'after', 1, 'three');
truncate plain;
select pg_logical_emit_message(true, 'note', 'content');
insert into mixed (id, a) select x, 1 from generate_series(20000, 24000) x;
"""


def start(postgres, database, name: str, *, fast: bool, transport: str):
    one = postgres_reader.Reader(
        postgres, database, slot_name=f"{name}_{database}", snapshot_mode="no_data", database_transport=transport,
        table_include_list="public.*",
    ).start()  # fmt: skip
    registry = Registry()
    if fast:
        one.task.use_layouts(registry)
    return one, registry


@pytest.mark.parametrize("transport", ["auto", "psycopg"])
def test_records_are_the_same_whoever_decodes_and_whatever_reads(postgres, transport):
    database = postgres.create_database()
    try:
        with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
            db.execute(SETUP)
            fast, registry = start(postgres, database, "fast", fast=True, transport=transport)
            slow, reference = start(postgres, database, "slow", fast=False, transport="psycopg")
            try:
                for statement in filter(None, map(str.strip, LOAD.split(";\n"))):
                    db.execute(statement)
                fast.catch_up(db)
                slow.catch_up(db)
                assert isinstance(fast.task._session.connections.stream, SocketStream) == (transport == "auto")
                made, expected = registry.produced(fast.log), reference.produced(slow.log)
                assert len(expected) > 4_500
                assert made == expected
                ready = sum(len(item.records) for item in fast.log if not isinstance(item, Change))
                assert ready > 0.97 * len(expected)
            finally:
                fast.kill()
                slow.kill()
    finally:
        postgres.drop_database(database)


def test_a_value_larger_than_the_buffer_comes_through_the_socket(postgres):
    database = postgres.create_database()
    try:
        with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
            db.execute("create table big (id int primary key, body text)")
            one, _ = start(postgres, database, "fast", fast=False, transport="socket")
            try:
                db.execute("insert into big values (1, repeat('x', 5000000)), (2, 'y')")
                one.catch_up(db)
                assert [(change.after[0], len(change.after[1])) for change in one.log] == [(1, 5_000_000), (2, 1)]
            finally:
                one.kill()
    finally:
        postgres.drop_database(database)


def test_a_walsender_that_is_ended_is_a_named_failure(postgres):
    database = postgres.create_database()
    try:
        with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
            db.execute("create table t (id int primary key)")
            one, _ = start(postgres, database, "fast", fast=True, transport="socket")
            try:
                db.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s", (database,)
                )
                with pytest.raises(CdcError) as caught:
                    one.until(lambda: False)
                assert caught.value.code == "postgres.connection_lost"
            finally:
                one.kill()
    finally:
        postgres.drop_database(database)
