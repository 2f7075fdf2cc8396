"""A slot that is read on a standby (PostgreSQL 16): nothing can be written there, and its log goes as far as it has been
replayed. What is asked of the server by one statement on a primary and by another on a standby stands here."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.pgoutput import parse_lsn
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.schemas.errors import CODES, CdcError

VERSION_DECODING: Final = 160_000

# A commit that is visible on a standby may lie behind what counts as replayed, but never behind what has arrived.
END_OF_LOG: Final = (
    "(case when pg_is_in_recovery() then greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())"
    " else pg_current_wal_insert_lsn() end)::text"
)
"""No commit that is visible now lies behind it."""


def log_end(connection: AdminConnection) -> int:
    row = connection.execute(f"select {END_OF_LOG}").fetchone()
    assert row
    return parse_lsn(row[0])


WRITTEN: Final = "(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end)::text"

# In recovery a snapshot does not tell which transactions run between its ends: its list is empty all the same.
SNAPSHOT: Final = (
    "(select case when pg_is_in_recovery() and pg_snapshot_xmin(s) < pg_snapshot_xmax(s)"
    " then pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmax(s)::text || ':*' else s::text end"
    " from pg_current_snapshot() s)"
)
"""For `TransactionSnapshot.parse`."""

# The age of an id is its distance from the next one. A standby's snapshot ends behind the last transaction that has
# ended: one that began later may run already.
MARK: Final = f"""
select case when pg_is_in_recovery() then {END_OF_LOG} else pg_logical_emit_message(true, %s, %s)::text end,
       case when pg_is_in_recovery() then
                (select pg_snapshot_xmax(s)::text::bigint - 1 + greatest(age(pg_snapshot_xmax(s)::xid), 0)
                 from pg_current_snapshot() s)
            else pg_current_xact_id()::text::bigint end
"""
OLDEST: Final = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
"""All transactions with smaller ids have ended."""
PUSH: Final = "select pg_logical_emit_message(true, %s, 'chunk') where not pg_is_in_recovery()"
"""Moves an idle log on, and marks it. A standby's moves with the primary's traffic."""

LOG_HINT: Final = (
    "On a primary that nobody writes to: SELECT pg_log_standby_snapshot(). Else end or cancel its oldest transactions."
)


def is_standby(connection: AdminConnection) -> bool:
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return bool(row and row[0])


def require(connection: AdminConnection, *, wanted: bool) -> None:
    """CdcError for a standby that cannot be read, or is not meant to be."""
    if not is_standby(connection):
        return
    if not wanted:
        can = connection.info.server_version >= VERSION_DECODING
        text = "the server is in recovery; a slot of a primary is needed"
        raise CdcError(e.STANDBY, text, hint=f"{CODES[e.STANDBY].hint} {_MEANT}" if can else None)
    if connection.info.server_version < VERSION_DECODING:
        raise CdcError(e.SERVER_VERSION, "a standby decodes its log since PostgreSQL 16", hint=_OLD)


_MEANT: Final = "Or set slot.on.standby=true to read the slot on the standby."
_OLD: Final = "Point database.hostname at the primary, and leave slot.on.standby at false."
