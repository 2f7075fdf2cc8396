"""From text to binary and back: where the stream meets a row that the server cannot write as text.

The session is dropped, as after any error, so that nothing of the transaction under way is left; the next one reads in
binary from the same committed position, and goes back to text once that transaction has been handed on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.oversize_rows import ROW_TOO_LARGE, TURNS_BINARY
from cdcworker.connectors.postgres.pgoutput import format_lsn, parse_lsn
from cdcworker.connectors.postgres.server.catalog import SourceCatalog
from cdcworker.connectors.postgres.source.session import Session, StreamingFallback
from cdcworker.connectors.postgres.transport.server_functions import END_OF_LOG
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.decode.binary_transcoder import BinaryTranscoder

log = logging.getLogger(__name__)

KEY: Final = "binary.columns"
NEVER: Final = "never"
NOTE: Final = "binary"
"""Of the task's notes: `until` which LSN the stream is read in binary, or until the transaction `xid` has ended, as long
as the server is on the same `timeline`: another one counts its transactions anew from the branch on."""
VERSION: Final = 140_000


def turned(session: Session, context: TaskContext, error: CdcError) -> CdcError:
    """Returns what is to be raised for an error of the stream."""
    able = session.settings.raw[KEY] != NEVER and session.catalog.info.server_version >= VERSION
    if error.code != ROW_TOO_LARGE or not able or session.state is None or session.decoder.transcode is not None:
        return error
    changes, xid = session.decoder, session.state.streamed.open_xid
    until = changes.part[0] + 1 if changes.part else 0
    if not xid and not until:
        row = session.catalog.execute(f"select {END_OF_LOG}").fetchone()
        until = parse_lsn(row[0]) if row else 0
    context.notes[NOTE] = {"until": until, "xid": xid, "timeline": session.position.timeline}
    where: dict[str, str | int] = {"slot": session.settings.slot, "safe_lsn": format_lsn(session.position.safe_lsn)}
    return CdcError(TURNS_BINARY, "the stream has met a row that is too large for its text form", where=where)


def binary_until(session: Session, context: TaskContext) -> StreamingFallback | None:
    """Until when the stream that is about to start is to be in binary; None: it is in text."""
    note: dict[str, int] | None = context.notes.get(NOTE)
    if note is None:
        return None
    if session.settings.raw[KEY] == NEVER or note["timeline"] != session.position.timeline:
        # Text finds out again where the row lies.
        context.notes.pop(NOTE)
        return None
    log.warning("the stream is read in binary for now until=%s xid=%d", format_lsn(note["until"]), note["xid"])
    return StreamingFallback(note["xid"], note["until"])


def transcoder(settings: PostgresSettings, context: TaskContext, catalog: SourceCatalog) -> BinaryTranscoder:
    """Turns the values of a stream in binary into text."""
    # What it takes in memory is for those who need it.
    from cdcworker.connectors.postgres.decode.binary_transcoder import BinaryTranscoder

    return BinaryTranscoder(catalog.types, context.record_bytes_max, settings.masks)


def read_text(context: TaskContext) -> None:
    """Forgets that the stream was to be read in binary."""
    context.notes.pop(NOTE, None)
