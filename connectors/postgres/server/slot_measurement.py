"""Measures how much log a slot keeps that nobody reads, and how far its task is behind; without the task's stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from cdcworker.connectors.api.abilities import StandingTask
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.server.slot import find_slot
from cdcworker.connectors.postgres.server.slot_lag import LogLook, reaches, slot_numbers
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.connectors.telemetry.standing_lag import dealt, of_tables, standing_lag

LOOK: Final = "look"
STATEMENT_TIMEOUT: Final = "set statement_timeout = '5s'"
NO_SLOT: Final[Mapping[str, Any]] = {
    "slot_retained_bytes": None,
    "slot_wal_status": None,
    "slot_safe_wal_bytes": None,
    "slot_lost_in_s": None,
    "lag_bytes": None,
    "table_lag_bytes": {},
}
"""The numbers of a task whose slot does not exist: the server keeps nothing for it."""


def measure(settings: PostgresSettings, task: StandingTask) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the numbers of the task's slot, and what the next measurement is to remember. Raises CdcError."""
    try:
        with connect(settings, f"{APPLICATION}:lag") as connection:
            connection.execute(STATEMENT_TIMEOUT)
            slot = find_slot(connection, settings.slot)
            if slot is None:
                return dict(NO_SLOT), {}
            numbers, look = slot_numbers(connection, slot, _before(task.memory), task.now_s)
    except psycopg.Error as exc:
        raise translate(exc) from exc
    late, memory = _lag(task, slot, look)
    return {**numbers, **late}, {**memory, LOOK: [look.written, look.restart, look.at]}


def _before(memory: Mapping[str, Any]) -> LogLook:
    found = memory.get(LOOK)
    return LogLook(*found) if isinstance(found, list) and len(found) == 3 else LogLook()


def _lag(task: StandingTask, slot: ReplicationSlot, look: LogLook) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the lag of the source and of its tables, for which that of the source is the upper bound."""
    numbers, confirmed = task.numbers, slot.confirmed_lsn or 0
    stored = numbers.get("position")
    safe = stored.get("safe_lsn") if isinstance(stored, Mapping) else None
    # A position is confirmed some time after it was stored.
    delivered = max(confirmed, safe) if isinstance(safe, int) and not slot.active_pid else confirmed
    behind = not reaches(delivered, look.written)
    lag_s, memory = standing_lag(numbers, task.memory, task.now_s, behind=behind)
    lag_bytes = max(0, look.written - confirmed)
    return {
        "lag_s": lag_s,
        "lag_bytes": lag_bytes,
        "confirmed_lsn": confirmed,
        "table_lag_s": dict.fromkeys(of_tables(numbers, "table_lag_s"), lag_s),
        "table_lag_bytes": dealt(of_tables(numbers, "table_lag_bytes"), lag_bytes),
    }, memory
