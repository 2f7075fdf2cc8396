"""The PostgreSQL server of a source benchmark: slots in front of its loads, and the C program that throws a slot's rows away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from psycopg.rows import dict_row

from ..measure import wait
from .server import write_paced
from .stage import TIMEOUT_S, Contender, Stage, Work, compiled, input_ended, measured, running

NAP_US = 500
USER = "drainer"


class PostgresServer:
    """Its database `bench`. `ends`: where the log of a table's load ends."""

    def __init__(self, postgres: EmbeddedPostgres, folder: Path) -> None:
        self.postgres = postgres
        self.drain = compiled(Path(__file__).with_name("drain.c"), folder)
        self.ends: dict[str, str] = {}
        postgres.create_database("bench")
        self._trust()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.postgres.dsn("bench"), autocommit=True, sslmode="disable")

    def config(self, name: str, table: str, options: Mapping[str, str]) -> dict[str, str]:
        info = psycopg.conninfo.conninfo_to_dict(self.postgres.dsn("bench"))
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
        return {
            "connector.class": "postgres",
            **{f"database.{ours}": str(info[theirs]) for ours, theirs in names.items()},
            "database.sslmode": "disable",
            "topic.prefix": name,
            "slot.name": name,
            "publication.name": f"p_{table}",
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "table.include.list": f"public.{table}",
            "topic.creation.default.message.timestamp.type": "LogAppendTime",
            **options,
        }

    def topic(self, name: str, table: str) -> str:
        return f"{name}.public.{table}"

    def row(self, table: str, number: int) -> Mapping[str, Any]:
        with self.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(f"select * from {table} where id = %s", (number,)).fetchone() or {}

    def numbers(self, table: str) -> set[int]:
        with self.connect() as connection:
            return {row for (row,) in connection.execute(f"select id from {table}")}

    def make_paced(self, table: str) -> None:
        with self.connect() as connection:
            connection.execute(f"create table {table} (id bigint primary key, at bigint not null)")
            connection.execute(f"create publication p_{table} for table {table}")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (table,))

    def paced_writer(self, table: str, rows: int, number: int) -> Sequence[str]:
        return [sys.executable, "-m", __name__, self.postgres.dsn("bench"), table, str(rows), str(number)]

    def forget(self, name: str) -> None:
        with self.connect() as connection:
            wait(f"slot {name} is free", lambda: not _active(connection, name), 60)
            connection.execute("select pg_drop_replication_slot(%s)", (name,))

    def copy_slot(self, table: str, name: str) -> None:
        with self.connect() as connection:
            connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (f"base_{table}", name))

    def encrypt(self) -> None:
        """The server offers TLS, with a certificate that nobody has signed."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
        now = datetime.now(UTC)
        built = x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1)
        )
        pem = built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
        file, owner = self.postgres.data / "server.pem", self.postgres.data.stat()
        file.write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.chmod(0o600)
        os.chown(file, owner.st_uid, owner.st_gid)
        with self.connect() as connection:
            for setting in ("ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.pem'", "ssl = on"):
                connection.execute(f"alter system set {setting}")
            connection.execute("select pg_reload_conf()")

    def _trust(self) -> None:
        """The C program does not speak SCRAM: its role may come in from this host without a password."""
        with self.connect() as connection:
            connection.execute(f"create role {USER} superuser replication login")
            rules = self.postgres.data / "pg_hba.conf"
            rules.write_text(f"host all,replication {USER} 127.0.0.1/32 trust\n" + rules.read_text())
            connection.execute("select pg_reload_conf()")


def _active(connection: psycopg.Connection[Any], name: str) -> bool:
    row = connection.execute("select active from pg_replication_slots where slot_name = %s", (name,)).fetchone()
    return bool(row and row[0])


PostgresStage = Stage[PostgresServer]


def discard(stage: PostgresStage, table: str, nap_us: int) -> float:
    """Rows per second that the C program throws away."""
    name, server = f"discard_{table}_{nap_us}", stage.server
    server.copy_slot(table, name)
    argv = [str(server.drain), str(server.postgres.port), USER, "bench", name, f"p_{table}", server.ends[table]]
    done = subprocess.run([*argv, str(nap_us)], check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        sys.exit(f"drain: {done.stderr}")
    server.forget(name)
    rows, _, seconds, _ = done.stdout.split()
    if int(rows) != stage.rows[table]:
        sys.exit(f"the drain has met {rows} rows of {stage.rows[table]}")
    return int(rows) / float(seconds)


def drained(stage: PostgresStage, work: Work, name: str, options: Mapping[str, str]) -> dict[str, float]:
    """One connector over a copy of the slot, or one that reads the rows: what `measured` tells of it."""
    if "snapshot.mode" not in options:
        stage.server.copy_slot(work.table, name)
    config = stage.server.config(name, work.table, options)
    runner = stage.runner
    found = measured(stage, work, Contender(name, runner, lambda: runner.start(name, config)))
    stage.memory.append(found["rss_mb"])
    return found


@contextmanager
def postgres_stage(root: Path, settings: Mapping[str, str]) -> Iterator[PostgresStage]:
    """The parts on one machine in a folder; `settings` are PostgreSQL's."""
    root.chmod(0o711)
    with (
        EmbeddedPostgres(root / "postgres", settings) as postgres,
        running(root, PostgresServer(postgres, root)) as stage,
    ):
        yield stage


if __name__ == "__main__":
    dsn, paced, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    statement = f"insert into {paced} select %s::bigint * {count} + i, %s from generate_series(0, {count - 1}) i"
    with psycopg.connect(dsn, autocommit=True) as writing:
        write_paced(lambda row, now: writing.execute(statement, (row, now)), int(sys.argv[4]), input_ended())
