"""Replica identities that the source sets itself, against a real server."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.postgres.config.replica_identity_key import KEY, ReplicaIdentities
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.doctor.replica_identity import CHECKS, settle
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.errors import CdcError

pytestmark = pytest.mark.postgres


def present(db) -> dict[str, str]:
    rows = db.execute(
        "select relname::text, relreplident::text from pg_class where relkind in ('r', 'p')"
        " and relnamespace = 'public'::regnamespace order by 1"
    )
    return dict(rows.fetchall())


def results(one) -> list[tuple[str, str]]:
    examined = ExaminedServer(parse(one.config))
    try:
        return [(result.status, result.message) for result in CHECKS[0].run(examined)]
    finally:
        examined.close()


def test_tables_have_the_identity_that_the_config_says_from_the_start_on(db, reader):
    db.execute("create table a(id int primary key, v text); create table b(id int primary key, u text not null)")
    db.execute("create unique index b_u on b(u); create table c(id int primary key); create table other(id int)")
    db.execute("create table p(id int primary key) partition by range(id)")
    db.execute("create table p1 partition of p for values from (0) to (100)")
    one = reader(
        owner=True,
        **{
            "table.include.list": r"public\.[abcp]",
            "publish.via.partition.root": "true",
            KEY: r"public\.[ap]:FULL,public\.b:INDEX b_u,.*:DEFAULT",
        },
    )
    assert [status for status, _ in results(one)] == ["note"]
    assert not [item for item in PostgresSource(one.config).check() if item.severity == "error"]
    one.start()
    assert present(db) == {"a": "f", "b": "i", "c": "d", "other": "d", "p": "f", "p1": "f"}
    assert [status for status, _ in results(one)] == ["ok"]
    one.until(one.loaded)
    db.execute("insert into a values (1, 'old')")
    db.execute("update a set v = 'new'")
    one.catch_up(db)
    assert one.log[-1].before == (1, "old")
    one.until(lambda: any(report.get("replica_identities_set") == 4 for report in one.reports))


def test_what_cannot_be_set_is_found_before_and_stops_the_start(postgres, database, db, reader):
    db.execute("create table a(id int primary key, v text); create index a_v on a(v)")
    one = reader(**{"table.include.list": "public.a", KEY: "public.a:INDEX a_v"})
    ((status, message),) = results(one)
    assert status == "error"
    assert "no unique index a_v" in message
    with pytest.raises(CdcError) as caught:
        one.start()
    assert caught.value.code == "postgres.replica_identity"
    assert caught.value.where["table"] == "public.a"
    assert present(db) == {"a": "d"}


def test_a_table_that_is_in_use_is_not_waited_for_long(postgres, database, db):
    db.execute("create table a(id int primary key)")
    oid = db.execute("select 'a'::regclass::oid").fetchone()[0]
    with psycopg.connect(postgres.dsn(database)) as holder:
        holder.execute("select * from a")
        with pytest.raises(CdcError) as caught:
            settle(db, ReplicaIdentities.parse(".*:FULL"), [(oid, "public", "a")], lock_ms=50)
        assert caught.value.code == "postgres.table_locked"
        assert f"backend {holder.info.backend_pid} (a)" in caught.value.message
    assert db.execute("show lock_timeout").fetchone() == ("0",)
    assert settle(db, ReplicaIdentities.parse(".*:FULL"), [(oid, "public", "a")]) == ["public.a"]
