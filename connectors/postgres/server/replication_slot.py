"""A replication slot as the server shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """One row of pg_replication_slots."""

    name: str
    plugin: str | None
    kind: str
    database: str | None
    active_pid: int | None
    restart_lsn: int | None
    confirmed_lsn: int | None
    wal_status: str | None
    safe_wal_size: int | None
    reason: str | None = None
    """Why it was invalidated, where the server says so (17 and newer)."""
    failover: bool | None = None
    """Whether standbys keep it too; None where there is no such thing."""
    two_phase: bool = False
