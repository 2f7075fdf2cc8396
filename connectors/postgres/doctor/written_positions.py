"""Could a task go on from a position that a person writes? The checks of a start, without its stream."""

from __future__ import annotations

import psycopg
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.doctor.position_checks import STARTED_OVER
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.pgoutput import format_lsn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.slot_lag import written_lsn
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.connectors.postgres.transport.libpq_stream import SystemIdentity
from cdcworker.schemas.errors import CdcError

SYSTEM_ID = "select system_identifier::text from pg_control_system()"
EARLIEST = (
    "The slot has been confirmed up to %s, and the server has given up what lies before it. Take a position from there on, "
    "or forget the position (null) and have the tables read again by a snapshot."
)


def verify(settings: PostgresSettings, position: StoredPosition) -> str:
    """Raises CdcError for a position from which a task would halt. Where the configuration says to read all rows again
    instead, a lost position is none. Returns why the server does not tell; empty: it did."""
    try:
        with connect(settings, f"{APPLICATION}:position") as connection:
            slot = slots.find_slot(connection, settings.slot)
            identity = _identity(connection, position)
    except (psycopg.Error, CdcError) as exc:
        return str(translate(exc))
    starts_over = settings.raw["position.lost.policy"] == "resnapshot" or settings.snapshot_mode == "when_needed"
    try:
        if identity.flush_lsn < position.safe_lsn:
            where = {"safe_lsn": format_lsn(position.safe_lsn), "flush_lsn": format_lsn(identity.flush_lsn)}
            raise CdcError(e.RESTORED, "the server's log ends before the position", where=where)
        slots.verify(position, identity, slot, settings)
    except CdcError as exc:
        if exc.code in STARTED_OVER and starts_over and settings.snapshot_mode != "no_data":
            return ""
        is_behind = slot is not None and slot.confirmed_lsn is not None and slot.confirmed_lsn > position.safe_lsn
        hint = EARLIEST % format_lsn(slot.confirmed_lsn or 0) if slot is not None and is_behind else exc.hint
        raise CdcError(exc.code, exc.message, where=exc.where, hint=hint) from exc
    return ""


def _identity(connection: psycopg.Connection[tuple[object, ...]], position: StoredPosition) -> SystemIdentity:
    """Returns which server this is. One that keeps that to itself counts as the position's: a start asks the stream."""
    written = written_lsn(connection)
    try:
        row = connection.execute(SYSTEM_ID).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = None
    return SystemIdentity(str(row[0]) if row else position.system_id, position.timeline, written)
