"""The stream under TLS over the source's own connection: each way to authenticate, and libpq where that is not spoken."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from dataclasses import replace

import psycopg
import pytest
from cdcworker.connectors.postgres.errors import CONNECTION_LOST, TRANSPORT
from cdcworker.connectors.postgres.transport import authentication as logins
from cdcworker.connectors.postgres.transport.channel import PlainChannel
from cdcworker.connectors.postgres.transport.tls_channel import TlsChannel
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from psycopg import pq

from tests import certificates

from .. import postgres_reader

pytestmark = [pytest.mark.postgres, pytest.mark.sampled(2, "channels")]
USERS = {"bound": "scram-sha-256", "digest": "md5", "plain": "password", "certified": "cert", "trusted": "trust"}
WORD = "Pä ss\u00adword"
"""SASLprep drops the soft hyphen."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return certificates.Authority(tmp_path_factory.mktemp("pki"), "own")


@pytest.fixture(scope="module")
def server(authority, tmp_path_factory):
    with EmbeddedPostgres(tmp_path_factory.mktemp("secure") / "server") as one:
        for name, file in {"server.pem": authority.issue("db"), "root.pem": authority.file}.items():
            into = one.data / name
            into.write_bytes(file.read_bytes())
            into.chmod(0o600)
            if os.geteuid() == 0:
                owner = one.data.stat()
                os.chown(into, owner.st_uid, owner.st_gid)
        rules = [f"hostssl all {user} 127.0.0.1/32 {method}" for user, method in USERS.items()]
        (one.data / "pg_hba.conf").write_text("\n".join([*rules, "host all cdc 127.0.0.1/32 scram-sha-256", ""]))
        with psycopg.connect(one.dsn(), autocommit=True) as db:
            for user, method in USERS.items():
                db.execute(f"set password_encryption = '{'md5' if method == 'md5' else 'scram-sha-256'}'")
                db.execute(f"create role {user} superuser login replication password '{WORD}'")
            for name, file in {"ssl_cert_file": "server", "ssl_key_file": "server", "ssl_ca_file": "root"}.items():
                db.execute(f"alter system set {name} = '{file}.pem'")
            db.execute("alter system set ssl = on")
            db.execute("select pg_reload_conf()")
        yield one


@pytest.fixture
def secure(server, authority):
    """A reader over TLS, which is started."""
    made = []

    def start(user: str = "bound", transport: str = "socket", **config: str) -> tuple[postgres_reader.Reader, str]:
        database = server.create_database()
        with psycopg.connect(server.dsn(database), autocommit=True) as db:
            db.execute("create table t (id int primary key, body text)")
        told = {"database_user": user, "database_password": WORD, "database_sslrootcert": str(authority.file)}
        told |= {"database_sslmode": "verify-full", "snapshot_mode": "no_data", "table_include_list": "public.t"}
        one = postgres_reader.Reader(server, database, database_transport=transport, **{**told, **config})
        made.append((one, database))
        return one.start(), database

    yield start
    for one, database in made:
        if one.task is not None:
            one.kill()
        server.drop_database(database)


def certificate_of(authority, user):
    pem = authority.issue(user)
    pem.chmod(0o600)
    return {"database_sslcert": str(pem), "database_sslkey": str(pem)}


@pytest.mark.parametrize("user", USERS)
def test_the_stream_comes_over_its_own_encrypted_connection(secure, server, authority, user):
    one, database = secure(user, **(certificate_of(authority, user) if user == "certified" else {}))
    assert isinstance(one.task._session.connections.stream._channel, TlsChannel)
    with psycopg.connect(server.dsn(database), autocommit=True) as db:
        db.execute("insert into t select x, repeat('x', x % 300) from generate_series(1, 20000) x")
        db.execute("insert into t values (0, repeat('y', 5000000))")
        one.catch_up(db)
        walsenders = db.execute(
            "select ssl from pg_stat_ssl join pg_stat_replication using (pid) join pg_replication_slots s on active_pid = pid"
            " where s.database = %s", (database,)
        ).fetchall()  # fmt: skip
    assert walsenders == [(True,)]
    assert [(change.after[0], len(change.after[1])) for change in one.log] == [
        *((x, x % 300) for x in range(1, 20001)),
        (0, 5_000_000),
    ]


def test_the_channel_is_bound_to_the_servers_certificate(secure, monkeypatch):
    mechanisms = []

    class Client(logins.ScramClient):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            mechanisms.append(self.mechanism_name)

    monkeypatch.setattr(logins, "ScramClient", Client)
    secure("bound")
    assert mechanisms == ["SCRAM-SHA-256-PLUS"]


def test_what_is_not_spoken_is_read_by_libpq_or_refused(secure, monkeypatch):
    monkeypatch.setenv("PGREQUIREAUTH", "scram-sha-256")
    one, _ = secure("bound", "auto")
    assert one.task._session.connections.stream._channel is None
    with pytest.raises(CdcError, match="require_auth is set") as caught:
        secure("bound", "socket")
    assert caught.value.code == TRANSPORT


def test_a_stop_is_no_accident_to_the_server(secure, server):
    one, _ = secure("bound")
    one.kill()
    assert "unexpected EOF" not in server.log.read_text()


def test_a_second_connection_that_fails_this_time_is_tried_again(secure, monkeypatch):
    def refused(_way):
        raise logins.NotSupported("no room", passing=True)

    monkeypatch.setattr(logins, "login", refused)
    with pytest.raises(CdcError, match="no room") as caught:
        secure("bound", "socket")
    assert caught.value.code == CONNECTION_LOST


def test_a_walsender_that_is_ended_is_a_named_failure(secure, server):
    one, database = secure("bound")
    with psycopg.connect(server.dsn(database), autocommit=True) as db:
        db.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s", (database,))
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False)
    assert caught.value.code == CONNECTION_LOST


# -- a login alone ----------------------------------------------------------------------------------------------------


@pytest.fixture
def way(server, authority):
    """How libpq went, with other options put in."""

    def made(user="bound", **options):
        info = psycopg.conninfo.make_conninfo(
            server.dsn(), user=user, password=WORD, sslmode="verify-full", sslrootcert=str(authority.file), replication="database"
        )  # fmt: skip
        conn = pq.PGconn.connect(info.encode())
        assert conn.ssl_in_use
        try:
            found = logins.ServerAddress.of(conn)
        finally:
            conn.finish()
        fields = {name: options.pop(name) for name in ("password", "host", "server") if name in options}
        return replace(found, options={**found.options, **options}, **fields)

    return made


@pytest.mark.parametrize("user", ["bound", "digest", "plain"])
def test_a_wrong_password_is_not_taken(way, user):
    with pytest.raises(logins.NotSupported):
        logins.login(way(user, password="wrong"))


def test_a_host_that_the_certificate_does_not_name_is_not_believed(way):
    with pytest.raises(logins.NotSupported, match=r"^TLS: "):
        logins.login(way(host="db.example"))


def test_another_authority_is_not_believed(way, tmp_path):
    other = certificates.Authority(tmp_path, "other").file
    for mode in ("verify-full", "verify-ca", "require", "prefer"):
        with pytest.raises(logins.NotSupported, match=r"^TLS: "):
            logins.login(way(sslmode=mode, sslrootcert=str(other)))


def test_without_an_authority_only_the_modes_that_check_need_one(way, tmp_path):
    nowhere = str(tmp_path / "none.pem")
    logins.login(way(sslmode="require", sslrootcert=nowhere)).close()
    for mode in ("verify-ca", "verify-full"):
        with pytest.raises(logins.NotSupported, match="no file of authorities"):
            logins.login(way(sslmode=mode, sslrootcert=nowhere))


@pytest.mark.parametrize(("user", "spoken"), [("bound", True), ("digest", False), ("plain", False), ("trusted", False)])
def test_a_channel_that_must_be_bound_is(way, user, spoken):
    try:
        logins.login(way(user, channel_binding="require")).close()
    except logins.NotSupported:
        assert not spoken
    else:
        assert spoken


def test_a_channel_that_must_not_be_bound_is_not(way):
    logins.login(way(channel_binding="disable")).close()


def test_another_server_behind_the_address_is_not_read(way):
    right = way().server
    for number in range(len(right)):
        server = [b"7" if number == at else value for at, value in enumerate(right)]
        with pytest.raises(logins.NotSupported, match="another server") as caught:
            logins.login(way(server=server))
        assert caught.value.passing


@pytest.mark.parametrize(("state", "passing"), [("53300", True), ("57P03", True), ("28P01", False), ("3D000", False)])
def test_a_refusal_is_told_from_one_that_passes(way, state, passing):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        told = b"SFATAL\0C" + state.encode() + b"\0Mname and value\0\0"
        theirs.sendall(b"E" + (len(told) + 4).to_bytes(4, "big") + told)
        with pytest.raises(logins.NotSupported, match=f"refuses: {state}$") as caught:
            logins._Login(PlainChannel(ours), way(), time.monotonic() + 10).run()
    assert caught.value.passing == passing


def test_an_end_without_a_hang_up_is_the_end(authority):
    """A proxy may end TLS and leave the socket open."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(authority.issue("proxy")))

    def serve():
        with context.wrap_socket(theirs, server_side=True) as secure:
            secure.sendall(b"last")
            with contextlib.suppress(OSError):
                secure.unwrap()

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(str(authority.file))
    channel = TlsChannel(ours, client, "127.0.0.1", time.monotonic() + 30)
    found, room = b"", memoryview(bytearray(100))
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    while True:
        assert channel.pending() or poller.poll(10_000)
        with contextlib.suppress(BlockingIOError):
            if not (size := channel.recv_into(room)):
                break
            found += bytes(room[:size])
    assert (found, channel.recv_into(room)) == (b"last", 0)
    channel.close()
    theirs.close()
    thread.join()


def test_bytes_wait_for_no_descriptor(way):
    """What a record holds beyond the room for it is told to be there."""
    channel, poller = logins.login(way()), select.poll()
    poller.register(channel, select.POLLIN)
    statement = b"select repeat('z', 100000)\0"
    channel.write(b"Q" + (len(statement) + 4).to_bytes(4, "big") + statement)
    got, pending, view = 0, 0, memoryview(bytearray(100))
    while got < 100_000:
        assert channel.pending() or poller.poll(10_000)
        with contextlib.suppress(BlockingIOError):
            got += channel.recv_into(view)
        pending += channel.pending()
    assert pending > 900
    channel.close()


def test_a_handshake_that_drips_ends_in_time(way):
    """Each byte comes in good time, and all of them never."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            one, _ = listener.accept()
            with one, contextlib.suppress(OSError):
                one.recv(8)
                one.sendall(b"S\x16\x03\x03\x40\x00")
                while not over.wait(0.02):
                    one.sendall(b"\0")

        thread = threading.Thread(target=drip)
        thread.start()
        slow = replace(way(connect_timeout="1"), port=listener.getsockname()[1])
        began = time.monotonic()
        try:
            with pytest.raises(logins.NotSupported) as caught:
                logins.login(slow)
            took = time.monotonic() - began
        finally:
            over.set()
            thread.join()
    assert caught.value.passing
    assert 0.9 < took < 5
