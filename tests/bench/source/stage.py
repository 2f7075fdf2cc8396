"""The running parts of a source benchmark, and one contender over the rows that stand in the log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.devstack.process import Program
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ..measure import cpu_s, rss_mb, tree, wait
from .records import check_rows, check_topics, make_topics, stored
from .values import check_values

NAP_US = 500
TIMEOUT_S = 600.0
USER = "drainer"
POLL_S = 0.02


@dataclass
class Stage:
    """The running parts."""

    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    worker: Program
    rest: httpx.Client
    drain: Path
    ends: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.postgres.dsn("bench"), autocommit=True, sslmode="disable")

    def config(self, name: str, table: str, options: dict[str, str]) -> dict[str, str]:
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

    def start(self, name: str, config: dict[str, str]) -> None:
        answer = self.rest.put(f"/connectors/{name}/config", json=config)
        if answer.status_code not in (200, 201):
            sys.exit(f"{name}: {answer.status_code} {answer.text}")

    def stop(self, name: str) -> None:
        self.rest.delete(f"/connectors/{name}")
        wait(f"{name} is gone", lambda: self.rest.get(f"/connectors/{name}").status_code == 404, 60)
        with self.connect() as connection:
            wait(f"slot {name} is free", lambda: not _active(connection, name), 60)
            connection.execute("select pg_drop_replication_slot(%s)", (name,))

    def failed(self, name: str) -> None:
        tasks = self.rest.get(f"/connectors/{name}/status").json().get("tasks") or []
        if any(task["state"] == "FAILED" for task in tasks):
            sys.exit(f"{name} failed: {tasks}")


def _active(connection: psycopg.Connection[Any], name: str) -> bool:
    row = connection.execute("select active from pg_replication_slots where slot_name = %s", (name,)).fetchone()
    return bool(row and row[0])


def copy_slot(stage: Stage, table: str, name: str) -> None:
    with stage.connect() as connection:
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (f"base_{table}", name))


def discard(stage: Stage, table: str, nap_us: int) -> float:
    """Rows per second that the C program throws away."""
    name = f"discard_{table}_{nap_us}"
    copy_slot(stage, table, name)
    argv = [str(stage.drain), str(stage.postgres.port), USER, "bench", name, f"p_{table}", stage.ends[table]]
    done = subprocess.run([*argv, str(nap_us)], check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        sys.exit(f"drain: {done.stderr}")
    with stage.connect() as connection:
        wait(f"slot {name} is free", lambda: not _active(connection, name), 60)
        connection.execute("select pg_drop_replication_slot(%s)", (name,))
    rows, _, seconds, _ = done.stdout.split()
    if int(rows) != stage.rows[table]:
        sys.exit(f"the drain has met {rows} rows of {stage.rows[table]}")
    return int(rows) / float(seconds)


@dataclass(frozen=True)
class Work:
    """What a contender has to bring: so many events of these tables, and what then stands in each of their topics."""

    table: str
    rows: int
    heads: Callable[[], Iterator[tuple[str, int]]]
    tables: Sequence[str] = ()
    exact: bool = True
    ordered: bool = True
    versions: bool = False
    values: bool = False
    """Whether the rows stand in the table as the records have them, so that their values can be compared."""
    records: int = 0
    """Where there are more of them than events."""

    @property
    def names(self) -> Sequence[str]:
        return self.tables or (self.table,)


def inserted(table: str, rows: int, *, exact: bool = True) -> Work:
    return Work(table, rows, lambda: (("c", number) for number in range(1, rows + 1)), exact=exact, values=True)


def drained(stage: Stage, work: Work, name: str, options: dict[str, str]) -> dict[str, float]:
    """One connector over a copy of the slot: events per second by the broker's clock, and CPU per event, from the first
    record that is seen on; of one transaction, which is seen at once, from the connector's start on."""
    if "snapshot.mode" not in options:
        copy_slot(stage, work.table, name)
    topics = [f"{name}.public.{table}" for table in work.names]
    if len(topics) > 1:
        make_topics(stage.kafka.bootstrap, topics)
    begun = cpu_s(tree(stage.worker.pid))
    stage.start(name, stage.config(name, work.table, options))
    samples: list[tuple[int, float]] = []
    deadline = time.monotonic() + TIMEOUT_S
    records = work.records or work.rows
    while not samples or samples[-1][0] < records:
        count = sum(stored(stage.kafka.bootstrap, topic) for topic in topics)
        pids = tree(stage.worker.pid)
        if count:
            samples.append((count, cpu_s(pids)))
            stage.memory.append(max(map(rss_mb, ([pid] for pid in pids if _is_task(pid))), default=0.0))
        else:
            stage.failed(name)
        if time.monotonic() > deadline:
            stage.failed(name)
            sys.exit(f"{name}: {samples[-1:]} of {records}")
        time.sleep(POLL_S * len(topics))
    (n0, cpu0), (n1, cpu1) = samples[0] if samples[0][0] < records else (0, begun), samples[-1]
    if work.ordered:
        heads = {topic: work.heads() for topic in topics}
        sample: list[bytes] | None = [] if work.values else None
        seconds = check_topics(stage.kafka.bootstrap, heads, exact=work.exact, versions=work.versions, sample=sample)
        if sample is not None:
            with stage.connect() as connection:
                if not check_values(stage.rest, connection, work.table, sample):
                    sys.exit(f"{name}: no record was decoded")
    else:
        seconds = check_rows(stage.kafka.bootstrap, topics[0], work.rows)
    stage.stop(name)
    per_event = (cpu1 - cpu0) / max(n1 - n0, 1) * records / work.rows
    return {"events_per_s": work.rows / seconds, "cpu_us_per_event": per_event * 1e6}


def _is_task(pid: int) -> bool:
    try:
        return b"task" in Path(f"/proc/{pid}/cmdline").read_bytes() or b"task" in Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return False


def compiled(folder: Path) -> Path:
    source, program = Path(__file__).with_name("drain.c"), folder / "drain"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def trusted(postgres: EmbeddedPostgres) -> None:
    """The C program does not speak SCRAM: its role may come in from this host without a password."""
    with psycopg.connect(postgres.dsn("bench"), autocommit=True) as connection:
        connection.execute(f"create role {USER} superuser replication login")
        rules = postgres.data / "pg_hba.conf"
        rules.write_text(f"host all,replication {USER} 127.0.0.1/32 trust\n" + rules.read_text())
        connection.execute("select pg_reload_conf()")


def encrypting(postgres: EmbeddedPostgres) -> None:
    """The server offers TLS, with a certificate that nobody has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
    pem = built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    file, owner = postgres.data / "server.pem", postgres.data.stat()
    file.write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file.chmod(0o600)
    os.chown(file, owner.st_uid, owner.st_gid)
    with psycopg.connect(postgres.dsn("bench"), autocommit=True) as connection:
        for setting in ("ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.pem'", "ssl = on"):
            connection.execute(f"alter system set {setting}")
        connection.execute("select pg_reload_conf()")


def healthy(rest: httpx.Client) -> bool:
    try:
        return rest.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running(root: Path, settings: Mapping[str, str]) -> Iterator[Stage]:
    """The parts on one machine in a folder; `settings` are PostgreSQL's."""
    root.chmod(0o711)
    with EmbeddedPostgres(root / "postgres", settings) as postgres, EmbeddedKafka(root / "kafka") as kafka:
        postgres.create_database("bench")
        trusted(postgres)
        (port,) = free_ports(1)
        properties = root / "worker.properties"
        properties.write_text(
            f"bootstrap.servers={kafka.bootstrap}\ngroup.id=bench\nlisteners=http://127.0.0.1:{port}\n"
            f"state.dir={root / 'state'}\n"
        )
        argv = [str(Path(sys.executable).parent / "cdcworker"), "start", "--config", str(properties)]
        worker = Program("worker", argv, root / "worker.log")
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as rest:
                wait("the worker is ready", lambda: healthy(rest), 120, 0.1)
                yield Stage(postgres, kafka, worker, rest, compiled(root))
        finally:
            worker.stop(timeout_s=25)
