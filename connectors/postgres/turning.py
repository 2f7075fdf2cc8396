"""From text to binary and back: where the stream meets a row that the server cannot write as text.

The session is dropped, as after any error, so that nothing of the transaction under way is left; the next one reads in
binary from the same committed position, and goes back to text once that transaction has been handed on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api import TaskContext
from cdcworker.connectors.postgres.oversize import ROW_TOO_LARGE, TURNS_BINARY
from cdcworker.connectors.postgres.standby import END_OF_LOG
from cdcworker.connectors.postgres.wire import format_lsn, parse_lsn
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.catalog import Catalog
    from cdcworker.connectors.postgres.session import Session

log = logging.getLogger(__name__)

KEY: Final = "binary.columns"
NEVER: Final = "never"
NOTE: Final = "binary"
"""Of the task's notes: `until` which LSN the stream is read in binary, or until the transaction `xid` has ended, as long
as the server is on the same `timeline`: another one counts its transactions anew from the branch on."""
VERSION: Final = 140_000


def turned(session: Session, context: TaskContext, error: CdcError) -> CdcError:
    """What is to be raised for an error of the stream."""
    able = session.settings.raw[KEY] != NEVER and session.catalog.info.server_version >= VERSION
    changes = session.changes
    if error.code != ROW_TOO_LARGE or not able or changes is None or changes.transcode is not None:
        return error
    xid = session.ahead.open_xid if session.ahead else 0
    until = changes.part[0] + 1 if changes.part else 0
    if not xid and not until:
        row = session.catalog.execute(f"select {END_OF_LOG}").fetchone()
        until = parse_lsn(row[0]) if row else 0
    context.notes[NOTE] = {"until": until, "xid": xid, "timeline": session.position.timeline}
    where: dict[str, str | int] = {"slot": session.settings.slot, "safe_lsn": format_lsn(session.position.safe_lsn)}
    return CdcError(TURNS_BINARY, "the stream has met a row that does not fit text", where=where)


def enter(session: Session, context: TaskContext, catalog: Catalog) -> dict[str, int] | None:
    """Until when the stream that is about to start is to be in binary, as `Fallback` takes it; None: it is in text."""
    note: dict[str, int] | None = context.notes.get(NOTE)
    if note is None or session.changes is None:
        return None
    if session.settings.raw[KEY] == NEVER or note["timeline"] != session.position.timeline:
        # Text finds out again where the row lies.
        context.notes.pop(NOTE)
        return None
    # What it takes in memory is for those who need it.
    from cdcworker.connectors.postgres.transcode import Transcoder

    session.changes.transcode = Transcoder(catalog.types, context.record_bytes_max, session.settings.masks)
    log.warning("the stream is read in binary for now until=%s xid=%d", format_lsn(note["until"]), note["xid"])
    return {"until": note["until"], "xid": note["xid"]}


def leave(session: Session, context: TaskContext) -> None:
    """The stream that starts next is in text."""
    if session.changes is not None:
        session.changes.transcode = None
    context.notes.pop(NOTE, None)
