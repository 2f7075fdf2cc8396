"""Whether server, slot and stored position still belong together, and what is done where they do not.

A slot that was dropped and made again is known by where it begins: behind the stored position, or nothing is missing. A
server that was restored in place, from a copy of its disk that holds the slot, has the same system id and timeline, and
its log may have grown past the position again. It lacks the last mark that was delivered, a transaction of our own that the
slot sends whatever is published, where that was written after the copy was made. The slot of the copy stands before that
mark, so it can be asked for; one that stands behind it was moved by us, and not restored."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import psycopg
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, source_template
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.pgoutput import format_lsn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream, SystemIdentity, quote
from cdcworker.connectors.postgres.transport.server_functions import is_standby
from cdcworker.schemas.change import Change, EncodedRecords, Position
from cdcworker.schemas.errors import CdcError, declare

log = logging.getLogger(__name__)

MARK_UNSEEN: Final = declare(
    "postgres.mark_unseen",
    "transient",
    "The server did not show in time whether its log holds the last mark that was read from it",
    "Nothing: it is asked again. Without an answer a log that was restored from an older copy would not be noticed. Look at "
    "the server's load and at what it still keeps for the slot (restart_lsn in pg_replication_slots).",
)
STARTED_OVER = frozenset((e.SLOT_MISSING, e.SLOT_LOST, e.SLOT_RECREATED, e.SLOT_ADVANCED))
"""Losses after which rows may be read again: the server goes on where it was, so positions only go up. On another
server, or one whose log was cut back, they would go down, and readers take what is older than what they have for old."""

EMPTIED_INDEX = 2**31 - 2
"""`tx_index` of the truncates of a fresh start: behind every message of a transaction, before every row of a snapshot."""


def check(
    position: StoredPosition,
    identity: SystemIdentity,
    slot: ReplicationSlot | None,
    settings: PostgresSettings,
    history: Callable[[int], str],
) -> None:
    """CdcError with the code of what is wrong; the server before its slot, which may have been made on another one."""
    where: dict[str, str | int] = {"slot": settings.slot, "safe_lsn": format_lsn(position.safe_lsn)}
    slots.verify_server(position, identity, settings)
    slots.verify_timeline(position, identity, history)
    if identity.flush_lsn < position.safe_lsn:
        where["flush_lsn"] = format_lsn(identity.flush_lsn)
        raise CdcError(e.RESTORED, "the server's log ends before the stored position", where=where)
    slots.verify(position, identity, slot, settings)


def is_resumable(
    settings: PostgresSettings,
    position: StoredPosition,
    catalog: AdminConnection,
    stream: ReplicationStream,
    beat: Callable[[str, float], None],
) -> bool:
    """Checks the stored position against the server. Returns False when it is lost and the configuration says to start
    over; raises CdcError when it is lost and must not be given up."""
    found = slots.find_slot(catalog, settings.slot)
    identity = stream.identify()
    try:
        check(position, identity, found, settings, stream.timeline_history)
        require_mark(settings, position, catalog, found, beat)
    except CdcError as exc:
        if exc.code == e.RESTORED and is_standby(catalog):
            raise CdcError(
                e.STANDBY, "it has not replayed the log up to the stored position yet", where=exc.where
            ) from exc
        may_read = settings.snapshot_mode != "no_data"
        wanted = settings.raw["position.lost.policy"] == "resnapshot" or settings.snapshot_mode == "when_needed"
        if not wanted or exc.code not in STARTED_OVER or not may_read:
            raise
        log.warning("position is lost, all rows are read again error=%s", exc)
    else:
        return True
    if found is not None and found.wal_status == "lost":
        slots.drop(catalog, settings.slot)
    return False


_MARK: Final = """
select exists (
    select 1 from pg_logical_slot_peek_binary_changes(
        %(slot)s, %(upto)s::pg_lsn, null,
        'proto_version', '1', 'publication_names', %(publication)s, 'messages', 'true')
    where get_byte(data, 0) = ascii('C') and substring(data from 3 for 8) = %(commit)s)
"""
MARK_MS_MIN: Final = 60_000
MARK_MS_MAX: Final = 2**31 - 1
LOG_BYTES_PER_MS: Final = 2_000
"""A tenth of what a slow server reads of its log. # INV-10"""


def require_mark(
    settings: PostgresSettings,
    position: StoredPosition,
    catalog: AdminConnection,
    slot: ReplicationSlot | None,
    beat: Callable[[str, float], None],
) -> None:
    """CdcError when the slot should send the last mark again and the log does not hold it, or does not show in time
    whether it does: who goes on then may skip what a log that was restored has at the places of what was handed on."""
    if not position.mark_lsn or slot is None or slot.confirmed_lsn is None or slot.confirmed_lsn > position.mark_lsn:
        return
    wanted = {
        "slot": slot.name,
        "upto": format_lsn(position.mark_lsn + 1),
        "publication": quote(settings.publication),
        "commit": position.mark_lsn.to_bytes(8, "big"),
    }
    where: dict[str, str | int] = {"slot": slot.name, "mark_lsn": format_lsn(position.mark_lsn)}
    # The server reads its log from where the slot needs it.
    left = position.mark_lsn - (slot.restart_lsn or slot.confirmed_lsn)
    timeout_ms = min(MARK_MS_MIN + max(left, 0) // LOG_BYTES_PER_MS, MARK_MS_MAX)
    beat("a look for the log's last mark", timeout_ms / 1000)
    try:
        with catalog.transaction():
            # Nothing of the rows on the way is looked at, whatever their encoding is.
            catalog.execute("select set_config('client_encoding', 'SQL_ASCII', true)")
            catalog.execute("select set_config('statement_timeout', %s, true)", (str(timeout_ms),))
            row = catalog.execute(_MARK, wanted).fetchone()
    except psycopg.errors.QueryCanceled as exc:
        raise CdcError(MARK_UNSEEN, f"not found within {timeout_ms // 1000} s", where=where) from exc
    except psycopg.Error as exc:
        if catalog.closed:
            raise
        # The stream may pass all the same: where the publication did not exist at that place of the log, or a row is too
        # large for its text.
        log.warning("the log's last mark could not be looked for error=%s", translate(exc))
        return
    finally:
        beat("the start", 0.0)
    if row == (False,):
        raise CdcError(e.RESTORED, "the server's log does not hold what was read from it", where=where)


def emptied(
    connection: AdminConnection,
    settings: PostgresSettings,
    planner: TableDecodePlanner,
    safe_lsn: int,
) -> list[Change | EncodedRecords]:
    """A truncate for each table, since all rows are read again: rows that were deleted meanwhile must not stay."""
    if "t" in settings.skipped:
        log.warning("truncates are skipped: rows that were deleted meanwhile stay in the topics' readers")
        return []
    us = time.time_ns() // 1000
    stamp = {"ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000, "snapshot": "true"}
    base = {**source_template(settings.prefix, settings.dbname), **stamp}
    at = safe_lsn - 1
    changes: list[Change | EncodedRecords] = []
    for oid, schema, name in slots.published(connection, settings):
        info = planner.catalog.table(oid)
        if info is None:
            continue
        table = planner.plan(info.relation(), info).out
        position = Position(at, EMPTIED_INDEX, len(changes))
        own = {"schema": schema, "table": name, "lsn": at, "commit_lsn": at, "tx_index": EMPTIED_INDEX}
        changes.append(Change("t", table, position, {**base, **own, "tx_sub": len(changes)}))
    return changes
