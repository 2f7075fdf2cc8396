"""Rows of a table that stand there: by `COPY` to nowhere, which is the limit, and by a connector with one connection."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import TYPE_CHECKING

from ..measure import cpu_s

if TYPE_CHECKING:
    from .postgres import PostgresStage

OPTIONS = {"snapshot.mode": "initial", "snapshot.max.threads": "1"}
READY = b"Z\0\0\0\5I"


def copied(stage: PostgresStage, table: str) -> dict[str, float]:
    """`COPY ... TO STDOUT` of the table, read from the socket in large gulps and thrown away: rows per second, and the
    processor time of the server for a row."""
    statement = f"copy (select * from {table} order by id) to stdout".encode()
    with stage.server.connect() as connection, socket.socket(fileno=socket.dup(connection.pgconn.socket)) as one:
        backend = [connection.info.backend_pid]
        one.setblocking(False)
        began, cpu, tail = time.monotonic(), cpu_s(backend), b""
        one.send(b"Q" + struct.pack(">I", len(statement) + 5) + statement + b"\0")
        buffer = bytearray(1 << 20)
        while not tail.endswith(READY):
            select.select((one,), (), ())
            size = one.recv_into(buffer)
            tail = (tail + buffer[max(0, size - len(READY)) : size])[-len(READY) :]
        seconds, used = time.monotonic() - began, cpu_s(backend) - cpu
    rows = stage.rows[table]
    return {"copy_rows_per_s": rows / seconds, "copy_cpu_us_per_row_of_server": used / rows * 1e6}


def line(number: int, table: str, limit: dict[str, float], found: dict[str, float]) -> dict[str, float]:
    """The figures of one round, which are printed."""
    figures = {
        **limit,
        "snapshot_rows_per_s": found["events_per_s"],
        "snapshot_vs_copy_ratio": found["events_per_s"] / limit["copy_rows_per_s"],
        "snapshot_cpu_us_per_row": found["cpu_us_per_event"],
    }
    print(f"snapshot {table} {number}: " + " ".join(f"{k}={v:,.2f}" for k, v in figures.items()), flush=True)
    return figures
