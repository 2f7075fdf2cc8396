"""Can the server be reached, as whom, over what, and is it one that can be read? Also the settings of its log."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.config.allowed_hosts import is_loopback
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.doctor.examined_server import APPLICATION_NAME, ExaminedServer, duration
from cdcworker.connectors.postgres.server import fixes
from cdcworker.connectors.postgres.transport import certificate
from cdcworker.connectors.postgres.transport.connection import conninfo
from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream
from cdcworker.schemas.errors import CdcError

PROBE_S = 3.0
SKEW_S_MAX = 5.0
CERTIFICATE_DAYS = 30
WAL_SENDER_TIMEOUT_MS_MIN = 5_000
SUPPORT_ENDS = {
    14: date(2026, 11, 12), 15: date(2027, 11, 11), 16: date(2028, 11, 9), 17: date(2029, 11, 8), 18: date(2030, 11, 14),
}  # fmt: skip


def places(examined: ExaminedServer) -> list[tuple[str, int]]:
    """Hosts with their ports; a path is a socket of this machine and needs no network."""
    hosts = [host.strip() for host in examined.settings.hosts.split(",")]
    ports = [int(port) for port in examined.settings.ports.split(",")]
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [(host, port) for host, port in zip(hosts, ports, strict=True) if not host.startswith("/")]


def _dns(examined: ExaminedServer) -> Iterator[CheckResult]:
    for host, port in places(examined):
        try:
            found = sorted({str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
        except OSError as exc:
            text = f"the name {host} cannot be resolved: {exc.strerror or exc}"
            yield CheckResult("error", host, text, e.UNREACHABLE, "database.hostname")
            continue
        yield ok(f"{host} is {', '.join(found)}")


def _tcp(examined: ExaminedServer) -> Iterator[CheckResult]:
    for host, port in places(examined):
        began = time.monotonic()
        try:
            socket.create_connection((host, port), PROBE_S).close()
        except OSError as exc:
            text = f"{host}:{port} does not accept connections: {exc.strerror or exc}"
            hint = "Is the server running, does it listen there (listen_addresses, port), does a firewall allow it?"
            yield CheckResult("error", "", text, e.UNREACHABLE, "database.hostname", hint)
            continue
        yield ok(f"{host}:{port} in {1000 * (time.monotonic() - began):.0f} ms")


def _connection(examined: ExaminedServer) -> Iterator[CheckResult]:
    try:
        connection = examined.open()
    except CdcError as exc:
        role = exc.code == e.AUTHENTICATION and "does not exist" in exc.message
        yield CheckResult("error", "", exc.message, exc.code, "database.user" if role else "", exc.hint)
        return
    method = "by password" if connection.pgconn.used_password else "without a password"
    if connection.info.server_version >= 160000:
        found = examined.row("select system_user")[0]
        method = f"by {str(found).partition(':')[0]}" if found else method
    yield ok(f"{examined.user} at {examined.settings.dbname}, {method}")


def _tls(examined: ExaminedServer) -> Iterator[CheckResult]:
    """Debezium's default is kept, and what it does not give is said."""
    mode = examined.settings.raw["database.sslmode"]
    is_encrypted = bool(examined.connection.pgconn.ssl_in_use)
    measured = f"{'TLS' if is_encrypted else 'no TLS'} (sslmode {mode})"
    if all(is_loopback(host) for host, _ in places(examined)):
        yield ok(f"{measured}, on this machine")
    elif not is_encrypted:
        text = "the connection is not encrypted: rows and the password's proof travel in the open"
        hint = "Set ssl = on at the server and database.sslmode=verify-full."
        yield CheckResult("warning", measured, text, key="database.sslmode", hint=hint)
    elif mode != "verify-full":
        text = f"the connection is encrypted, but whoever answers is taken for the server: sslmode {mode}"
        if mode == "verify-ca":
            text = "any server with a certificate of the authority is taken for this one: sslmode verify-ca"
        hint = "Set database.sslmode=verify-full, and database.sslrootcert to its authority's file or to system."
        yield CheckResult("note", measured, text, key="database.sslmode", hint=hint)
    else:
        yield ok(measured)


def _ends(examined: ExaminedServer) -> Iterator[CheckResult]:
    if not examined.connection.pgconn.ssl_in_use:
        yield ok("no TLS")
        return
    for host, port in places(examined):
        yield from _certificate(host, port, datetime.now(UTC))


def _certificate(host: str, port: int, now: datetime) -> Iterator[CheckResult]:
    end = certificate.end_of(certificate.fetch(host, port, PROBE_S))
    left = (end - now).total_seconds()
    measured = f"certificate of {host}:{port} until {end:%Y-%m-%d}"
    if left < 0:
        yield CheckResult(
            "error", measured, f"the certificate of {host} has ended", hint="Renew ssl_cert_file, reload."
        )
    elif left < CERTIFICATE_DAYS * 86_400:
        yield CheckResult("warning", measured, f"it ends in {duration(left)}", hint="Renew ssl_cert_file, reload.")
    else:
        yield ok(measured)


def _pooler(examined: ExaminedServer) -> Iterator[CheckResult]:
    """A pooler cannot know the process that will serve a client: it invents the one that it names."""
    told = examined.connection.info.backend_pid
    real = examined.row("select pg_backend_pid()")[0]
    if told == real:
        yield ok("a direct connection")
        return
    text = "something between here and the server pools connections: replication does not pass it"
    hint = "Point database.hostname and database.port at the server itself, not at pgbouncer or the like."
    yield CheckResult("error", "a pooled connection", text, e.POOLED, "database.port", hint)


def _version(examined: ExaminedServer) -> Iterator[CheckResult]:
    number = examined.version // 10000
    measured = f"PostgreSQL {number}.{examined.version % 10000} ({examined.flavour})"
    end = SUPPORT_ENDS.get(number)
    if end is not None and datetime.now(UTC).date() > end:
        text = f"PostgreSQL {number} gets no more corrections since {end}"
        yield CheckResult("warning", measured, text, hint="Upgrade the server.")
        return
    yield ok(measured + (f", supported until {end}" if end else ""))


def _clock(examined: ExaminedServer) -> Iterator[CheckResult]:
    before = time.time()
    server = float(examined.row("select extract(epoch from clock_timestamp())::float8")[0])
    skew = server - (before + time.time()) / 2
    if abs(skew) <= SKEW_S_MAX:
        yield ok(f"{skew:+.1f} s")
        return
    text = f"the server's clock is {duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's"
    yield CheckResult("warning", f"{skew:+.1f} s", text, hint="Synchronise both by NTP: lag is measured between them.")


def _sender_timeout(examined: ExaminedServer) -> Iterator[CheckResult]:
    timeout_ms = int(examined.server["wal_sender_timeout"])
    if timeout_ms == 0:
        text = "the server never gives up a silent connection: after a cut the slot stays held until TCP notices"
        fix = fixes.parameter(examined.flavour, "wal_sender_timeout", "60s", restart=False)
        yield CheckResult("note", "off", text, fix=fix)
    elif timeout_ms < WAL_SENDER_TIMEOUT_MS_MIN:
        text = f"the server ends a connection that is silent for {timeout_ms} ms: a busy moment is enough"
        fix = fixes.parameter(examined.flavour, "wal_sender_timeout", "60s", restart=False)
        yield CheckResult("warning", f"{timeout_ms} ms", text, fix=fix)
    else:
        yield ok(duration(timeout_ms / 1000))


def _replication(examined: ExaminedServer) -> Iterator[CheckResult]:
    """The proof of the right to replicate is a replication connection; where no other is let in, none is asked for."""
    _ = examined.connection
    try:
        stream = ReplicationStream(conninfo(examined.settings, APPLICATION_NAME, replication=True))
    except CdcError as exc:
        fix = None
        if exc.code == e.NO_REPLICATION_RIGHT:
            fix = fixes.replication_right(examined.flavour, examined.user)
        yield CheckResult("error", "refused", exc.message, exc.code, hint="" if fix else exc.hint, fix=fix)
        return
    stream.close()
    yield ok("a replication connection was opened")


def _encoding(examined: ExaminedServer) -> Iterator[CheckResult]:
    encoding = examined.server["server_encoding"]
    if encoding == "SQL_ASCII":
        fix = Repair(steps="Dump the database and restore it into one with ENCODING 'UTF8'.")
        text = "the database's encoding is SQL_ASCII"
        yield CheckResult("warning", encoding, text, e.SERVER_ENCODING, "database.dbname", fix=fix)
        return
    yield ok(encoding)


CHECKS = (
    DoctorCheck("reach.dns", "The worker has to find the server by its name.", _dns, validates=False),
    DoctorCheck("reach.tcp", "Nothing works without a connection to the server's port.", _tcp, validates=False),
    DoctorCheck("reach.connection", "User, password, database and pg_hba.conf have to let the worker in.", _connection),
    DoctorCheck("reach.tls", "Without TLS the rows can be read on their way, and by whoever poses as the server.", _tls),
    DoctorCheck("reach.certificate", "An ended certificate stops the connector.", _ends, validates=False),
    DoctorCheck("reach.pooler", "Poolers speak no replication protocol and hand sessions to strangers.", _pooler),
    DoctorCheck("reach.version", "A server without corrections keeps its errors, those of decoding included.", _version,
          validates=False),
    DoctorCheck("reach.clock", "Lag is the difference of two clocks.", _clock, validates=False),
    DoctorCheck("reach.sender_timeout", "The server ends the stream of a worker that it believes dead.", _sender_timeout,
          validates=False),
    DoctorCheck("rights.replication", "Only a role with this right may read the log.", _replication),
    DoctorCheck("decoding.encoding", "Text of unknown encoding may not be text at all.", _encoding),
)  # fmt: skip
