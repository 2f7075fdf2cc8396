"""Can the server be reached, as whom, over what, and is it one that can be read? Also the settings of its log."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

from cdcworker.connectors.checkup import Check, Fix, Result, ok
from cdcworker.connectors.hosts import is_loopback
from cdcworker.connectors.postgres import certificate, fixes
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.connection import conninfo
from cdcworker.connectors.postgres.patient import APPLICATION_NAME, Patient, duration
from cdcworker.connectors.postgres.stream import ReplicationStream
from cdcworker.schemas.errors import CdcError

PROBE_S = 3.0
SKEW_S_MAX = 5.0
CERTIFICATE_DAYS = 30
WAL_SENDER_TIMEOUT_MS_MIN = 5_000
SUPPORT_ENDS = {
    14: date(2026, 11, 12), 15: date(2027, 11, 11), 16: date(2028, 11, 9), 17: date(2029, 11, 8), 18: date(2030, 11, 14),
}  # fmt: skip


def places(patient: Patient) -> list[tuple[str, int]]:
    """Hosts with their ports; a path is a socket of this machine and needs no network."""
    hosts = [host.strip() for host in patient.settings.hosts.split(",")]
    ports = [int(port) for port in patient.settings.ports.split(",")]
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [(host, port) for host, port in zip(hosts, ports, strict=True) if not host.startswith("/")]


def _dns(patient: Patient) -> Iterator[Result]:
    for host, port in places(patient):
        try:
            found = sorted({str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
        except OSError as exc:
            text = f"the name {host} cannot be resolved: {exc.strerror or exc}"
            yield Result("error", host, text, e.UNREACHABLE, "database.hostname")
            continue
        yield ok(f"{host} is {', '.join(found)}")


def _tcp(patient: Patient) -> Iterator[Result]:
    for host, port in places(patient):
        began = time.monotonic()
        try:
            socket.create_connection((host, port), PROBE_S).close()
        except OSError as exc:
            text = f"{host}:{port} does not accept connections: {exc.strerror or exc}"
            hint = "Is the server running, does it listen there (listen_addresses, port), does a firewall allow it?"
            yield Result("error", "", text, e.UNREACHABLE, "database.hostname", hint)
            continue
        yield ok(f"{host}:{port} in {1000 * (time.monotonic() - began):.0f} ms")


def _connection(patient: Patient) -> Iterator[Result]:
    try:
        connection = patient.open()
    except CdcError as exc:
        role = exc.code == e.AUTHENTICATION and "does not exist" in exc.message
        yield Result("error", "", exc.message, exc.code, "database.user" if role else "", exc.hint)
        return
    method = "by password" if connection.pgconn.used_password else "without a password"
    if connection.info.server_version >= 160000:
        found = patient.row("select system_user")[0]
        method = f"by {str(found).partition(':')[0]}" if found else method
    yield ok(f"{patient.user} at {patient.settings.dbname}, {method}")


def _tls(patient: Patient) -> Iterator[Result]:
    """Debezium's default is kept, and what it does not give is said."""
    mode = patient.settings.raw["database.sslmode"]
    is_encrypted = bool(patient.connection.pgconn.ssl_in_use)
    measured = f"{'TLS' if is_encrypted else 'no TLS'} (sslmode {mode})"
    if all(is_loopback(host) for host, _ in places(patient)):
        yield ok(f"{measured}, on this machine")
    elif not is_encrypted:
        text = "the connection is not encrypted: rows and the password's proof travel in the open"
        hint = "Set ssl = on at the server and database.sslmode=verify-full."
        yield Result("warning", measured, text, key="database.sslmode", hint=hint)
    elif mode != "verify-full":
        text = f"the connection is encrypted, but whoever answers is taken for the server: sslmode {mode}"
        if mode == "verify-ca":
            text = "any server with a certificate of the authority is taken for this one: sslmode verify-ca"
        hint = "Set database.sslmode=verify-full, and database.sslrootcert to its authority's file or to system."
        yield Result("note", measured, text, key="database.sslmode", hint=hint)
    else:
        yield ok(measured)


def _ends(patient: Patient) -> Iterator[Result]:
    if not patient.connection.pgconn.ssl_in_use:
        yield ok("no TLS")
        return
    for host, port in places(patient):
        yield from _certificate(host, port, datetime.now(UTC))


def _certificate(host: str, port: int, now: datetime) -> Iterator[Result]:
    end = certificate.end_of(certificate.fetch(host, port, PROBE_S))
    left = (end - now).total_seconds()
    measured = f"certificate of {host}:{port} until {end:%Y-%m-%d}"
    if left < 0:
        yield Result("error", measured, f"the certificate of {host} has ended", hint="Renew ssl_cert_file, reload.")
    elif left < CERTIFICATE_DAYS * 86_400:
        yield Result("warning", measured, f"it ends in {duration(left)}", hint="Renew ssl_cert_file, reload.")
    else:
        yield ok(measured)


def _pooler(patient: Patient) -> Iterator[Result]:
    """A pooler cannot know the process that will serve a client: it invents the one that it names."""
    told = patient.connection.info.backend_pid
    real = patient.row("select pg_backend_pid()")[0]
    if told == real:
        yield ok("a direct connection")
        return
    text = "something between here and the server pools connections: replication does not pass it"
    hint = "Point database.hostname and database.port at the server itself, not at pgbouncer or the like."
    yield Result("error", "a pooled connection", text, e.POOLED, "database.port", hint)


def _version(patient: Patient) -> Iterator[Result]:
    number = patient.version // 10000
    measured = f"PostgreSQL {number}.{patient.version % 10000} ({patient.flavour})"
    end = SUPPORT_ENDS.get(number)
    if end is not None and datetime.now(UTC).date() > end:
        text = f"PostgreSQL {number} gets no more corrections since {end}"
        yield Result("warning", measured, text, hint="Upgrade the server.")
        return
    yield ok(measured + (f", supported until {end}" if end else ""))


def _clock(patient: Patient) -> Iterator[Result]:
    before = time.time()
    server = float(patient.row("select extract(epoch from clock_timestamp())::float8")[0])
    skew = server - (before + time.time()) / 2
    if abs(skew) <= SKEW_S_MAX:
        yield ok(f"{skew:+.1f} s")
        return
    text = f"the server's clock is {duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's"
    yield Result("warning", f"{skew:+.1f} s", text, hint="Synchronise both by NTP: lag is measured between them.")


def _sender_timeout(patient: Patient) -> Iterator[Result]:
    timeout_ms = int(patient.server["wal_sender_timeout"])
    if timeout_ms == 0:
        text = "the server never gives up a silent connection: after a cut the slot stays held until TCP notices"
        fix = fixes.parameter(patient.flavour, "wal_sender_timeout", "60s", restart=False)
        yield Result("note", "off", text, fix=fix)
    elif timeout_ms < WAL_SENDER_TIMEOUT_MS_MIN:
        text = f"the server ends a connection that is silent for {timeout_ms} ms: a busy moment is enough"
        fix = fixes.parameter(patient.flavour, "wal_sender_timeout", "60s", restart=False)
        yield Result("warning", f"{timeout_ms} ms", text, fix=fix)
    else:
        yield ok(duration(timeout_ms / 1000))


def _replication(patient: Patient) -> Iterator[Result]:
    """The proof of the right to replicate is a replication connection; where no other is let in, none is asked for."""
    _ = patient.connection
    try:
        stream = ReplicationStream(conninfo(patient.settings, APPLICATION_NAME, replication=True))
    except CdcError as exc:
        fix = None
        if exc.code == e.NO_REPLICATION_RIGHT:
            fix = fixes.replication_right(patient.flavour, patient.user)
        yield Result("error", "refused", exc.message, exc.code, hint="" if fix else exc.hint, fix=fix)
        return
    stream.close()
    yield ok("a replication connection was opened")


def _encoding(patient: Patient) -> Iterator[Result]:
    encoding = patient.server["server_encoding"]
    if encoding == "SQL_ASCII":
        fix = Fix(steps="Dump the database and restore it into one with ENCODING 'UTF8'.")
        text = "the database's encoding is SQL_ASCII"
        yield Result("warning", encoding, text, e.SERVER_ENCODING, "database.dbname", fix=fix)
        return
    yield ok(encoding)


CHECKS = (
    Check("reach.dns", "The worker has to find the server by its name.", _dns, validates=False),
    Check("reach.tcp", "Nothing works without a connection to the server's port.", _tcp, validates=False),
    Check("reach.connection", "User, password, database and pg_hba.conf have to let the worker in.", _connection),
    Check("reach.tls", "Without TLS the rows can be read on their way, and by whoever poses as the server.", _tls),
    Check("reach.certificate", "An ended certificate stops the connector.", _ends, validates=False),
    Check("reach.pooler", "Poolers speak no replication protocol and hand sessions to strangers.", _pooler),
    Check("reach.version", "A server without corrections keeps its errors, those of decoding included.", _version,
          validates=False),
    Check("reach.clock", "Lag is the difference of two clocks.", _clock, validates=False),
    Check("reach.sender_timeout", "The server ends the stream of a worker that it believes dead.", _sender_timeout,
          validates=False),
    Check("rights.replication", "Only a role with this right may read the log.", _replication),
    Check("decoding.encoding", "Text of unknown encoding may not be text at all.", _encoding),
)  # fmt: skip
