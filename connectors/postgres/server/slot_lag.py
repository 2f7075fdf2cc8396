"""How far a slot is behind its server, and when the server will have removed what the slot still needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.postgres.pgoutput import parse_lsn
from cdcworker.connectors.postgres.server import failover_slots
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.server_functions import WRITTEN

PAGE_BYTES: Final = 8192
PAGE_HEADER_BYTES: Final = 40
"""The most bytes of a page of the log that stand before its first record."""


@dataclass(frozen=True, slots=True)
class LogLook:
    """Where the server's log ended at a moment (in seconds of any one clock), and from where on the slot keeps it."""

    written: int = 0
    restart: int = 0
    at: float = 0.0


def written_lsn(connection: AdminConnection) -> int:
    """Returns where the server's log ends; 0 where the server does not tell."""
    row = connection.execute(f"select {WRITTEN}").fetchone()
    return parse_lsn(row[0]) if row and row[0] else 0


def reaches(lsn: int, written: int) -> bool:
    """Returns whether everything that was written lies before this position. The end of the log counts the header of a new
    page, behind which no record stands yet."""
    page = written - written % PAGE_BYTES
    return lsn >= written or (written - page <= PAGE_HEADER_BYTES and lsn >= page)


def forecast(before: LogLook, now: LogLook, safe: int) -> float | None:
    """Returns the seconds until the slot is lost, if the log grows as it has since the look before and the slot stays
    behind; None while it does not, and after the first look. `safe`: what may still be written."""
    grown, moved = now.written - before.written, now.restart - before.restart
    if not before.written or now.at <= before.at or grown <= max(moved, 0):
        return None
    return max(0, safe) * (now.at - before.at) / (grown - moved)


def slot_numbers(
    connection: AdminConnection, slot: ReplicationSlot, before: LogLook, at: float
) -> tuple[dict[str, Any], LogLook]:
    """Returns the numbers of the slot as they are reported, and the look behind them. What is unknown now is null: a
    number of an earlier look must not stay."""
    now = LogLook(written_lsn(connection), slot.restart_lsn or 0, at)
    numbers: dict[str, Any] = {
        "slot_retained_bytes": max(0, now.written - now.restart),
        "slot_wal_status": slot.wal_status,
        "slot_safe_wal_bytes": slot.safe_wal_size,
        "slot_lost_in_s": None,
    }
    if slot.failover is not None:
        numbers["slot_failover"] = slot.failover
        numbers["slot_failover_ready"] = int(failover_slots.is_ready(connection, slot))
    if slot.safe_wal_size is not None:
        lost_in = forecast(before, now, slot.safe_wal_size)
        numbers["slot_lost_in_s"] = None if lost_in is None else round(lost_in)
    return numbers, now
