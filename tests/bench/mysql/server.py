"""The MariaDB server of the benchmark: loads that stand in one file of its log, and the C program that throws them away."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
from cdcworker.connectors.capture.snapshot.chunks import ROWS_MAX as CHUNK_ROWS
from cdcworker.worker.devstack.mariadb import LOGGING, USER, EmbeddedMariaDb
from cdcworker.worker.devstack.ports import HOST
from pymysql.cursors import Cursor, DictCursor

from ..measure import cpu_s, tree
from ..source.server import write_paced
from ..source.stage import TIMEOUT_S, compiled, input_ended

DATABASE = "bench"
DRAINER = "drainer"
MARKS = "marks"
"""A table whose rows show how far a reader of the log is."""
READERS = itertools.count(1_000)
SAFE = "innodb_flush_log_at_trx_commit", "sync_binlog"
SETTINGS: Mapping[str, str | None] = {
    **LOGGING,
    "innodb-buffer-pool-size": "512M",
    "innodb-flush-method": None,
    "max-binlog-size": "1G",
    # A reader that is slow on a busy machine is waited for.
    "net-write-timeout": "600",
    "innodb-log-file-size": "512M",
}


class Load(NamedTuple):
    """A part of a file of the log."""

    file: str
    begin: int
    end: int


class Chunks(NamedTuple):
    """Rows per second, and microseconds of processor time per row: of the program, and of the server."""

    rows_per_s: float
    cpu_us: float
    server_cpu_us: float


class MariaDbBenchServer:
    """Its database `bench`. `loads`: where the rows of a table stand in the log."""

    def __init__(self, server: EmbeddedMariaDb, folder: Path) -> None:
        self.server = server
        self.loads: dict[str, Load] = {}
        self._drain, self._rows = (compiled(Path(__file__).with_name(name), folder) for name in ("drain.c", "rows.c"))
        self.ask(
            f"create database {DATABASE}",
            f"create user {DRAINER}@{HOST} identified via mysql_native_password using ''",
            f"grant replication slave, select on *.* to {DRAINER}@{HOST}",
            f"create table {DATABASE}.{MARKS} (id bigint primary key auto_increment)",
        )

    def ask(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        return self.server.ask(*statements)

    def connect(self) -> pymysql.Connection[Cursor]:
        return _connected(self.server.port, self.server.password)

    def config(self, name: str, table: str, options: Mapping[str, str]) -> dict[str, str]:
        return {
            "connector.class": "mariadb",
            **self.login(name, table),
            "snapshot.mode": "no_data",
            "table.discovery.interval.ms": "0",
            **options,
        }

    def login(self, name: str, table: str) -> dict[str, str]:
        """What our connector and Debezium's are told alike."""
        return {
            "database.hostname": HOST,
            "database.port": str(self.server.port),
            "database.user": USER,
            "database.password": self.server.password,
            "database.server.id": str(next(READERS)),
            "database.include.list": DATABASE,
            "table.include.list": f"{DATABASE}.{table}",
            "topic.prefix": name,
            "include.schema.changes": "false",
            "topic.creation.default.message.timestamp.type": "LogAppendTime",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
        }

    def topic(self, name: str, table: str) -> str:
        return f"{name}.{DATABASE}.{table}"

    def row(self, table: str, number: int) -> Mapping[str, Any]:
        with closing(self.connect()) as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(f"select * from {table} where id = %s", (number,))
            return cursor.fetchone() or {}

    def numbers(self, table: str) -> set[int]:
        return {row for (row,) in self.ask(f"select id from {DATABASE}.{table}")}

    def make_paced(self, table: str) -> None:
        self.ask(
            f"create table {DATABASE}.{table} (id bigint primary key, at bigint not null)",
            *(f"set global {name} = 1" for name in SAFE),
        )

    def paced_writer(self, table: str, rows: int, number: int) -> Sequence[str]:
        words = (self.server.port, self.server.password, table, rows, number)
        return [sys.executable, "-m", __name__, *map(str, words)]

    def forget(self, name: str) -> None:
        """A server of MariaDB keeps nothing for readers."""

    def make(self, table: str, columns: str) -> None:
        self.ask(f"create table {DATABASE}.{table} ({columns})")

    def load(self, table: str, values: str, rows: int, per: int) -> None:
        """Rows 1 to `rows`, `per` of them in a transaction, in a file of the log that they share with nothing else."""
        self.ask(*(f"set global {name} = 0" for name in SAFE), "flush binary logs")
        ((file, begin, *_),) = self.ask("show master status")
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            # No contender asks for the texts of statements, and the server leaves them out.
            cursor.execute("set binlog_annotate_row_events = off")
            cursor.execute(
                f"for low in 0..{rows // per - 1} do insert into {table}"
                f" select {values} from (select low * {per} + seq as i from seq_1_to_{per}) numbers; end for"
            )
        ((last, end, *_),) = self.ask("show master status")
        if last != file:
            sys.exit(f"{table}: the rows do not fit into one file of the log")
        self.loads[table] = Load(str(file), int(begin), int(end))

    def discard(self, table: str, nap_us: int) -> float:
        """Seconds in which the C program throws away what stands in the log of a table."""
        load = self.loads[table]
        words = (self._drain, self.server.port, DRAINER, load.file, load.begin, load.end, nap_us)
        done = subprocess.run([*map(str, words)], check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            sys.exit(f"drain: {done.stderr}")
        _, size, seconds, _ = done.stdout.split()
        if int(size) != load.end - load.begin:
            sys.exit(f"the drain has met {size} bytes of {load.end - load.begin}")
        return float(seconds)

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time that the server has used."""
        return cpu_s(tree(self.server.pid))

    def read_chunks(self, table: str, rows: int, *, binary: bool) -> Chunks:
        """What reading a table costs a C program that throws the rows away, in the chunks of a snapshot."""
        words = (self._rows, self.server.port, DRAINER, f"{DATABASE}.{table}", "*", rows, CHUNK_ROWS, int(binary))
        before = self.cpu_s
        done = subprocess.run([*map(str, words)], check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            sys.exit(f"rows: {done.stderr}")
        count, _, seconds, used = done.stdout.split()
        if int(count) != rows:
            sys.exit(f"the program has met {count} rows of {rows}")
        return Chunks(rows / float(seconds), float(used) / rows * 1e6, (self.cpu_s - before) / rows * 1e6)


def _connected(port: int, password: str) -> pymysql.Connection[Cursor]:
    connection = pymysql.connect(
        host=HOST, port=port, user=USER, password=password, database=DATABASE, autocommit=True, ssl_disabled=True
    )
    with connection.cursor() as cursor:
        cursor.execute("set time_zone = '+00:00'")
    return connection


if __name__ == "__main__":
    port, password, paced, rows, number = sys.argv[1:]
    statement = f"insert into {paced} select %s * {rows} + seq, %s from seq_0_to_{int(rows) - 1}"
    with closing(_connected(int(port), password)) as writing, writing.cursor() as writer:
        write_paced(lambda row, now: writer.execute(statement, (row, now)), int(number), input_ended())
