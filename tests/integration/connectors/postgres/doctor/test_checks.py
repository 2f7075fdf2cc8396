"""The doctor on real servers that are wrong on purpose: each check fires, and its own statements make it pass."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor import reachability
from cdcworker.connectors.postgres.doctor import risks as doctor_risk
from cdcworker.connectors.postgres.doctor import slots as doctor_slots
from cdcworker.connectors.postgres.doctor.checks import CHECKS, examine
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

pytestmark = pytest.mark.postgres
PASSWORD = "reader-Pa55word"


@pytest.fixture
def database(postgres):
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture
def sql(postgres, database):
    """Statements by the superuser."""
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute("create table item (id int primary key, v text)")
        yield connection.execute


@pytest.fixture
def config(postgres, database):
    return config_of(postgres, database)


def config_of(server, database, **more):
    dsn = urlsplit(server.dsn(database))
    return {
        "topic.prefix": "shop",
        "database.hostname": dsn.hostname,
        "database.port": str(dsn.port),
        "database.user": dsn.username,
        "database.password": unquote(dsn.password),
        "database.dbname": database,
        "slot.name": database,
        "publication.name": f"pub_{database}",
        "table.include.list": "public.item",
        **more,
    }


@pytest.fixture
def reader(postgres, database, sql):
    """A role that may log in and nothing else; `reader(config)` is the config with it."""
    name = f"reader_{database}"
    sql(f"create role {name} login password '{PASSWORD}'")
    sql(f"revoke create, temp on database {database} from public")
    yield name
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute(f"drop owned by {name}")
        connection.execute(f"drop role {name}")


def as_reader(config, reader, **more):
    return {**config, "database.user": reader, "database.password": PASSWORD, **more}


def look(config, **options):
    """check → its results."""
    out = {}
    for found in examine(ExaminedServer(parse(config)), timeout_s=30.0, **options):
        out.setdefault(found.check.name, []).append(found.result)
    return out


def statuses(config, name):
    return {result.status for result in look(config)[name]}


def mend(results, execute):
    for result in results:
        assert result.fix is not None, result
        for statement in result.fix.statements:
            execute(statement)


def test_a_good_source_has_no_errors_and_every_check_answers(config, sql):
    found = look(config, deep=True)
    assert list(found) == [check.name for check in CHECKS]
    wrong = [(name, item) for name, items in found.items() for item in items if item.status in ("error", "unknown")]
    assert [name for name, _ in wrong] == ["slot.position"]
    assert all(item.measured or item.message for items in found.values() for item in items)


def test_the_doctor_changes_nothing(config, sql):
    look(config, deep=True)
    assert sql("select count(*) from pg_publication").fetchone() == (0,)
    assert sql("select count(*) from pg_replication_slots where database = current_database()").fetchone() == (0,)


@pytest.fixture
def refused(config, sql, reader):
    return as_reader(config, reader)


def test_missing_grants_fire_and_their_own_statements_mend_them(refused, sql):
    sql("create schema closed")
    sql("create table closed.inner (id int primary key)")
    given = {**refused, "table.include.list": "public.item,closed.inner", "publication.autocreate.mode": "no_tables"}
    found = look(given)
    wanted = ("rights.replication", "rights.schema_usage", "rights.select", "publication.exists")
    for name in wanted:
        assert [result.status for result in found[name]] == ["error"], name
    assert [result.fix.safe for name in wanted for result in found[name]] == [False, True, True, True]
    for name in wanted:
        mend(found[name], sql)
    after = look(given)
    for name in wanted:
        assert [result.status for result in after[name]] == ["ok"], name


def test_one_closed_column_is_found_unless_it_is_left_out(refused, sql, reader):
    sql(f"grant select (id) on item to {reader}")
    assert statuses(refused, "rights.select") == {"error"}
    assert statuses({**refused, "column.exclude.list": "public.item.v"}, "rights.select") == {"ok"}


def test_tables_of_others_need_a_publication_by_their_owner(refused, sql, reader):
    sql(f"grant create on database {refused['database.dbname']} to {reader}")
    found = look(refused)["publication.exists"]
    assert [result.status for result in found] == ["error"]
    assert "belong to other roles" in found[0].message
    mend(found, sql)
    assert statuses(refused, "publication.exists") == {"ok"}
    assert statuses(refused, "publication.tables") == {"ok"}


def test_a_publication_that_is_not_ours_must_hold_every_table(refused, sql):
    sql("create table other (id int primary key)")
    sql(f"create publication {refused['publication.name']} for table item")
    given = {**refused, "table.include.list": "public.item,public.other"}
    found = look(given)["publication.tables"]
    assert [result.status for result in found] == ["error"]
    assert "public.other" in found[0].message
    mend(found, sql)
    assert statuses(given, "publication.tables") == {"ok"}


def test_a_disabled_publication_is_asked_for_with_its_statement(config, sql):
    given = {**config, "publication.autocreate.mode": "disabled"}
    found = look(given)["publication.exists"]
    assert [result.status for result in found] == ["error"]
    mend(found, sql)
    assert statuses(given, "publication.exists") == {"ok"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("clause", "check", "status"),
    [
        ("for table item with (publish = 'insert')", "publication.operations", "warning"),
        ("for table item where (id > 5)", "publication.row_filters", "warning"),
        ("for table item (v)", "publication.column_lists", "error"),
        ("for table item with (publish_via_partition_root = true)", "publication.partition_root", "warning"),
    ],
)
def test_a_publication_that_leaves_something_out_is_found_and_mended(config, sql, clause, check, status):
    sql(f"create publication {config['publication.name']} {clause}")
    given = {**config, "publication.autocreate.mode": "disabled"}
    found = look(given)[check]
    assert [result.status for result in found] == [status]
    mend(found, sql)
    assert statuses(given, check) == {"ok"}


def test_skipped_operations_need_not_be_published(config, sql):
    sql(f"create publication {config['publication.name']} for table item with (publish = 'insert, update, delete')")
    assert statuses({**config, "skipped.operations": "t"}, "publication.operations") == {"ok"}


def test_a_publication_of_a_schema_is_told_of(config, sql):
    sql(f"create publication {config['publication.name']} for tables in schema public")
    assert statuses(config, "publication.schemas") == {"warning"}
    assert statuses({**config, "publication.autocreate.mode": "disabled"}, "publication.schemas") == {"ok"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("table", "after"),
    [
        ("id int primary key); alter table t replica identity nothing", "ok"),
        ("id int not null unique)", "ok"),
        ("id int)", "warning"),
        ("id int primary key deferrable)", "warning"),
        ("id int primary key deferrable, u int not null unique default 1)", "ok"),
        *(
            pytest.param(f"id int {table}", "warning", marks=pytest.mark.long)
            for table in (
                "primary key deferrable); alter table t replica identity nothing",
                "unique, n int not null unique deferrable default 1)",
            )
        ),
    ],
)
def test_tables_whose_rows_cannot_be_told_apart_are_found_and_mended(config, sql, table, after):
    sql(f"create table t ({table}")
    given = {**config, "table.include.list": "public.t"}
    found = look(given)["tables.keys"]
    assert [result.status for result in found] == ["warning"]
    mend(found, sql)
    sql(f"create publication {config['publication.name']} for table t")
    sql("insert into t values (1)")
    sql("update t set id = 2")
    sql("delete from t")
    assert statuses(given, "tables.keys") == {after}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("table", "status"),
    [
        ("id int primary key)", "ok"),
        pytest.param("id int not null unique)", "ok", marks=pytest.mark.long),
        ("id int unique)", "warning"),
        pytest.param("id int not null unique deferrable)", "warning", marks=pytest.mark.long),
        ("id int primary key deferrable)", "warning"),
    ],
)
def test_under_a_full_identity_a_key_is_one_that_records_can_have(config, sql, table, status):
    sql(f"create table t ({table}; alter table t replica identity full")
    (found,) = look({**config, "table.include.list": "public.t"})["tables.keys"]
    assert found.status == status
    assert ("DEFERRABLE" in found.message + found.hint) == ("primary key deferrable" in table)


def test_row_security_hides_rows_from_the_snapshot(refused, sql, reader):
    sql(f"grant select on item to {reader}")
    sql("alter table item enable row level security")
    found = look(refused)["rights.row_security"]
    assert [result.status for result in found] == ["warning"]
    mend(found, sql)
    assert statuses(refused, "rights.row_security") == {"ok"}


def test_unlogged_toasted_partitioned_generated_and_odd_columns_are_told_of(config, sql):
    sql("create unlogged table fast (id int primary key)")
    sql("create table part (id int primary key) partition by range (id)")
    sql("create table part_1 partition of part for values from (0) to (10)")
    sql("create table wide (id serial primary key, v text, twice int generated always as (2) stored, p pg_ndistinct)")
    sql("alter table wide alter v set storage external")
    sql("insert into wide (v) values (repeat('x', 100000))")
    given = {**config, "table.include.list": "public.fast,public.part.*,public.wide"}
    found = look(given)
    expected = {
        "tables.unlogged": "warning", "tables.toast": "note", "tables.partitions": "note", "tables.types": "note",
        "publication.generated": "note", "risk.uncaptured": "note",
    }  # fmt: skip
    assert {name: found[name][0].status for name in expected} == expected
    mend(found["tables.unlogged"], sql)
    assert statuses(given, "tables.unlogged") == {"ok"}


def test_keys_of_types_with_values_that_readers_do_not_take_are_told_of(config, sql):
    sql("create table priced (n numeric primary key, m numeric, at date)")
    sql("alter table priced replica identity full")
    given = {**config, "table.include.list": "public.priced"}
    for more, named in (
        ({}, "public.priced.n (numeric)"),
        ({"time.precision.mode": "connect", "message.key.columns": "public.priced:at"}, "public.priced.at (date)"),
    ):
        (found,) = look({**given, **more})["tables.key_values"]
        assert (found.status, found.message.count("public.priced")) == ("note", 2 if more else 1)
        assert named in found.message
    assert statuses({**given, "decimal.handling.mode": "string"}, "tables.key_values") == {"ok"}


@pytest.mark.parametrize("declared", ["numeric(8,3)", "numeric(12)"])
def test_nan_in_a_key_is_told_of_where_it_is_written_as_earlier_versions_did(config, sql, declared):
    sql(f"create table priced (n {declared} primary key)")
    given = {**config, "table.include.list": "public.priced"}
    former = {
        name: value for name, value in StoredPosition("1", 1, "s", 0, 1, 1).to_json().items() if name != "key_nan"
    }
    (check,) = [check for check in CHECKS if check.name == "tables.key_values"]

    def told(position=None, **more):
        examined = ExaminedServer(parse({**given, **more}), position)
        try:
            return [result.status for result in check.run(examined)]
        finally:
            examined.close()

    assert (
        told() == told({**former, "key_nan": "number"}) == told(former, **{"key.nan.handling.mode": "number"}) == ["ok"]
    )
    assert (
        told(former)
        == told(**{"key.nan.handling.mode": "empty"})
        == told(**{"out.of.range.handling.mode": "exact"})
        == ["note"]
    )


def test_a_pattern_without_a_table_and_no_table_at_all(config, sql):
    assert statuses({**config, "table.include.list": "public.item,public.itme"}, "tables.matched") == {"warning"}
    assert statuses({**config, "table.include.list": "public.itme"}, "tables.matched") == {"error"}


def test_a_slot_of_another_kind_and_one_that_is_read_by_another(config, sql, postgres):
    name = config["slot.name"]
    sql(f"select pg_create_logical_replication_slot('{name}', 'test_decoding')")
    assert statuses(config, "slot.state") == {"error"}
    sql(f"select pg_drop_replication_slot('{name}')")
    sql(f"select pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)")
    assert statuses(config, "slot.two_phase") == {"error"}
    found = look(config)
    assert found["slot.state"][0].code == "postgres.slot_unfit"
    assert "room" in found["slot.retained"][0].measured or "the log grows" in found["slot.retained"][0].measured


def test_a_stored_position_is_compared_with_the_slot(config, sql):
    from cdcworker.connectors.postgres.pgoutput import parse_lsn
    from cdcworker.connectors.postgres.transport.connection import conninfo
    from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream

    stream = ReplicationStream(conninfo(parse(config), "t", replication=True))
    identity = stream.identify()
    stream.close()

    def status(safe_lsn, system_id=identity.system_id):
        position = {
            "v": 1, "system_id": system_id, "timeline": identity.timeline, "slot": config["slot.name"],
            "marker_lsn": 1, "commit_lsn": safe_lsn, "safe_lsn": safe_lsn,
        }  # fmt: skip
        (check,) = [check for check in doctor_slots.CHECKS if check.name == "slot.position"]
        examined = ExaminedServer(parse(config), position)
        try:
            return [(result.status, result.code) for result in check.run(examined)]
        finally:
            examined.close()

    assert status(1) == [("error", "postgres.slot_missing")]
    lsn = sql(
        f"select lsn::text from pg_create_logical_replication_slot('{config['slot.name']}', 'pgoutput')"
    ).fetchone()
    assert [item for item, _ in status(parse_lsn(lsn[0]))] == ["ok"]
    assert status(1) == [("error", "postgres.slot_recreated")]
    assert status(1, "7") == [("error", "postgres.other_server")]


def test_an_old_transaction_a_prepared_one_and_a_slot_without_a_reader(config, sql, postgres, monkeypatch):
    monkeypatch.setattr(doctor_risk, "OLD_S", 0.0)
    monkeypatch.setattr(doctor_risk, "ORPHAN_BYTES", 0)
    orphan = f"{config['slot.name']}_x"
    with psycopg.connect(postgres.dsn(config["database.dbname"])) as busy:
        busy.execute("insert into item values (1)")
        found = look(config)["risk.transactions"]
        assert [result.status for result in found] == ["warning"]
        assert str(busy.info.backend_pid) in found[0].message
        busy.rollback()
    sql(f"select pg_create_logical_replication_slot('{orphan}', 'pgoutput')")
    found = look(config)["risk.orphan_slots"]
    assert [result.status for result in found] == ["warning"]
    sql(f"select pg_drop_replication_slot('{orphan}')")


def test_what_may_not_be_seen_is_unknown_and_takes_nothing_else_along(refused):
    found = look(refused)
    assert [(result.status, result.code) for result in found["risk.wal_volume"]] == [
        ("unknown", "postgres.permission_denied")
    ]
    assert found["risk.uncaptured"][0].status in ("ok", "note")


def test_a_server_that_is_not_there_leaves_the_rest_unknown(config, sql):
    found = look({**config, "database.port": "1"})
    assert found["reach.tcp"][0].status == "error"
    assert found["reach.connection"][0].code == "postgres.unreachable"
    assert {result.status for result in found["decoding.wal_level"]} == {"unknown"}
    assert list(found) == [check.name for check in CHECKS if not check.deep]


def test_a_wrong_password_is_said_once_and_never_shown(config, sql):
    found = look({**config, "database.password": "Wr0ngPa55"})
    errors = [result for results in found.values() for result in results if result.status == "error"]
    assert [result.code for result in errors] == ["postgres.authentication_failed"]
    assert "Wr0ngPa55" not in str(found)


def test_a_provider_is_told_by_its_roles(config, sql, postgres):
    sql("create role cloudsqlsuperuser")
    try:
        assert "(cloudsql)" in look(config)["reach.version"][0].measured
    finally:
        sql("drop role cloudsqlsuperuser")


# -- a server that is wrong in its settings ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    path = tmp_path_factory.mktemp("sick")
    path.chmod(0o711)
    for parent in path.parents[:2]:
        parent.chmod(0o711)
    settings = {
        "wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "3", "wal_sender_timeout": "1s",
        "max_prepared_transactions": "2",
    }  # fmt: skip
    server = EmbeddedPostgres(path / "postgres", settings)
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("select pg_create_physical_replication_slot('taken')")
            connection.execute("create table item (id int primary key)")
        yield server
    finally:
        server.remove()


def test_wrong_settings_fire_with_the_statement_of_the_flavour(sick):
    found = look(config_of(sick, "postgres"))
    expected = {"decoding.wal_level": "error", "decoding.slots_free": "error", "reach.sender_timeout": "warning"}
    expected["decoding.slot_limit"] = "warning"
    assert {name: found[name][0].status for name in expected} == expected
    assert found["decoding.wal_level"][0].fix.statements == ("ALTER SYSTEM SET wal_level = 'logical'",)
    assert not any(found[name][0].fix.safe for name in expected)


def test_validation_and_doctor_agree_because_they_ask_the_same(sick):
    config = config_of(sick, "postgres")
    findings = {(item.code, item.severity) for item in PostgresSource(config).check()}
    doctor = {
        (result.code, result.status)
        for name, results in look(config).items()
        for result in results
        if result.status in ("error", "warning", "note") and {c.name: c for c in CHECKS}[name].validates
    }
    assert findings == doctor
    assert {("postgres.wal_level", "error"), ("postgres.no_free_slot", "error")} <= findings


def test_a_prepared_transaction_is_found_and_ended_by_the_statement(sick):
    config = config_of(sick, "postgres")
    with psycopg.connect(sick.dsn(), autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("insert into item values (1)")
        connection.execute("prepare transaction 'it''s'")
        found = look(config)["risk.prepared"]
        assert [result.status for result in found] == ["note"]
        mend(found, connection.execute)
    assert statuses(config, "risk.prepared") == {"ok"}


def test_the_statements_of_the_settings_work_once_the_server_has_restarted(tmp_path_factory):
    path = tmp_path_factory.mktemp("mended")
    path.chmod(0o711)
    server = EmbeddedPostgres(path / "postgres", {"wal_level": "replica", "max_replication_slots": "1"})
    server.start()
    try:
        config = config_of(server, "postgres")
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("select pg_create_physical_replication_slot('taken')")
            connection.execute("create table item (id int primary key)")
            found = look(config)
            for name in ("decoding.wal_level", "decoding.slots_free", "decoding.slot_limit"):
                mend(found[name], connection.execute)
        # The command line goes before what ALTER SYSTEM wrote.
        for name in ("wal_level", "max_replication_slots"):
            del server.settings[name]
        server.restart()
        after = look(config)
        for name in ("decoding.wal_level", "decoding.slots_free", "decoding.slot_limit"):
            assert after[name][0].status == "ok", after[name]
    finally:
        server.remove()


def test_a_slot_that_will_be_lost_is_foreseen_and_a_lost_one_is_found(tmp_path_factory):
    path = tmp_path_factory.mktemp("lost")
    path.chmod(0o711)
    server = EmbeddedPostgres(path / "postgres", {"max_slot_wal_keep_size": "64MB", "max_wal_size": "32MB"})
    server.start()
    try:
        config = config_of(server, "postgres")
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("create table item (id int primary key, v text)")
            connection.execute("select pg_create_logical_replication_slot('postgres', 'pgoutput')")
            insert = "insert into item select g, repeat('x', 1000) from generate_series(%s::int, %s::int) g"
            connection.execute(insert, (1, 20_000))
            found = look(config)["slot.retained"]
            assert [(result.status, result.code) for result in found] == [("warning", "postgres.slot_lost")]
            assert "room for" in found[0].measured
            connection.execute(insert, (20_001, 120_000))
            connection.execute("checkpoint")
            connection.execute("select pg_switch_wal()")
            connection.execute("checkpoint")
            found = look(config)["slot.state"]
            assert [(result.status, result.code) for result in found] == [("error", "postgres.slot_lost")]
            mend(found, connection.execute)
        assert statuses(config, "slot.state") == {"ok"}
    finally:
        server.remove()


@pytest.mark.parametrize(
    ("application", "status"), [("cdcworker:29d47578506c:shop:0", "note"), ("pg_recvlogical", "error")]
)
def test_who_reads_the_slot_decides(config, sql, application, status):
    from cdcworker.connectors.postgres.transport.connection import conninfo
    from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream

    sql(f"create publication {config['publication.name']} for table item")
    sql(f"select pg_create_logical_replication_slot('{config['slot.name']}', 'pgoutput')")
    stream = ReplicationStream(conninfo(parse(config), application, replication=True))
    stream.start(config["slot.name"], 0, config["publication.name"])
    try:
        found = look(config)["slot.state"]
    finally:
        stream.close()
    assert [(result.status, result.code) for result in found] == [(status, "postgres.slot_in_use")]
    assert application in found[0].measured


def certificate_that_ends(now, days, folder):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "db")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=90)).not_valid_after(now + timedelta(days=days))
    path = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("days", "status"), [(400, "ok"), (10, "warning"), (-1, "error")])
def test_the_end_of_the_servers_certificate_is_foreseen(tmp_path, days, status):
    now = datetime.now(UTC).replace(microsecond=0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_that_ends(now, days, tmp_path))

    def serve(listener):
        client, _ = listener.accept()
        assert client.recv(8)[4:] == (80877103).to_bytes(4, "big")
        client.sendall(b"S")
        with suppress(OSError), context.wrap_socket(client, server_side=True) as wrapped:
            wrapped.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        (result,) = reachability._certificate("127.0.0.1", listener.getsockname()[1], now)
        thread.join(10)
    assert result.status == status
    assert f"{now + timedelta(days=days):%Y-%m-%d}" in result.measured


# -- what stands between ----------------------------------------------------------------------------------------------


@contextmanager
def pooler(port):
    """Passes everything on but the process id that the server names, as pgbouncer does."""

    def pump(source, target, change):
        try:
            while data := source.recv(65536):
                at = data.find(b"K\x00\x00\x00\x0c") if change else -1
                if at >= 0:
                    data = data[: at + 5] + (4711).to_bytes(4, "big") + data[at + 9 :]
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def serve(listener, open_sockets):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            open_sockets += [client, server]
            threading.Thread(target=pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=pump, args=(server, client, True), daemon=True).start()

    sockets = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, sockets), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for item in sockets:
        item.close()


def test_a_pooler_in_the_way_is_recognised(config, sql):
    assert statuses(config, "reach.pooler") == {"ok"}
    with pooler(int(config["database.port"])) as port:
        found = look({**config, "database.port": str(port)})["reach.pooler"]
    assert [(result.status, result.code) for result in found] == [("error", "postgres.pooled")]


def test_a_server_that_takes_connections_and_never_answers_costs_only_its_time(config):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = {**config, "database.port": str(silent.getsockname()[1]), "database.connect.timeout.ms": "2000"}
        found = list(examine(ExaminedServer(parse(given)), timeout_s=3.0))
    by_name = {item.check.name: item for item in found}
    assert by_name["reach.tcp"].result.status == "ok"
    assert by_name["reach.connection"].result.status == "error"
    assert len(found) == len([check for check in CHECKS if not check.deep])
    assert sum(item.took_s for item in found) < 10
