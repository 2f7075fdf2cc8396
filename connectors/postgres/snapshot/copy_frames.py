"""Rows as COPY sends them, left in the protocol's frames: read in gulps, and looked at only where that is needed."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import psycopg
from cdcworker.connectors.capture.snapshot.packed_rows import PackedRows
from cdcworker.connectors.capture.snapshot.row_buffer import RowBuffer
from cdcworker.connectors.capture.snapshot.row_identity import Identity, KeyTexts
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.errors import CONNECTION_LOST
from cdcworker.connectors.postgres.snapshot.copy_text import QUERY_CANCELED, SILENT_S_MAX, copy_lines, key_of_line
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.channel import SEND_S_MAX, error_fields
from cdcworker.connectors.postgres.transport.socket_stream import FRAME_BYTES_MAX, refused, usable
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

Walk = Callable[[bytearray, int, int], tuple[int, int, int]]
"""Whole frames of rows between two offsets: the offset behind them, how many, and where the last one begins."""

HEAD: Final = 5
GONE: Final = ord("x")
"""Kind of a frame whose row is not handed on; the native core knows it too."""
_FRAME: Final = struct.Struct(">cI")
_HEAD: Final = struct.Struct(">BI")
_ERROR, _READY = ord("E"), ord("Z")


@dataclass(slots=True)
class CopyFrames(PackedRows):
    """Rows of COPY."""

    mark = 0
    gone = GONE

    plan: TableDecodePlan | None = None

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return self.end - HEAD * self.count

    def next_at(self, at: int) -> int:
        return at + 1 + int.from_bytes(self.data[at + 1 : at + HEAD], "big")

    def line(self, at: int) -> bytes:
        return bytes(self.data[at + HEAD : self.next_at(at)])

    def taken(self, at: int) -> tuple[bytes, KeyTexts]:
        line = self.line(at)
        return line, self._key(line)[1]

    def indexed(self) -> dict[Identity, int]:
        return {self._key(self.line(at))[0]: at for at in self.offsets()}

    def _key(self, line: bytes) -> tuple[Identity, KeyTexts]:
        assert self.plan
        return key_of_line(line, self.plan.table.key, self.plan.taken)


def copy_frames(
    connection: AdminConnection, statement: bytes, bytes_max: int, walk: Walk, *, own_socket: bool
) -> Generator[CopyFrames]:
    """Pieces of more than `bytes_max` of rows, but for the last one. Who stops early has the server stop too."""
    if own_socket and usable(connection.pgconn):
        return _by_socket(connection, statement, bytes_max, walk)
    return _by_libpq(connection, statement, bytes_max)


def _by_libpq(connection: AdminConnection, statement: bytes, bytes_max: int) -> Generator[CopyFrames]:
    data, count, last = bytearray(), 0, -1
    with closing(copy_lines(connection, statement)) as lines:
        for line in lines:
            last = len(data)
            data += _FRAME.pack(b"d", len(line) + 4) + line
            count += 1
            if len(data) - HEAD * count > bytes_max:
                yield CopyFrames(data, len(data), count, last, whole=False)
                data, count, last = bytearray(), 0, -1
    yield CopyFrames(data, len(data), count, last, whole=True)


def _by_socket(connection: AdminConnection, statement: bytes, bytes_max: int, walk: Walk) -> Generator[CopyFrames]:
    copy = _Copy(connection, walk)
    try:
        copy.begin(statement)
        while not copy.ended:
            copy.gulp()
            if copy.ended or copy.size > bytes_max:
                yield copy.piece()
    finally:
        copy.finish()


class _Copy:
    """One statement past libpq, which between two statements has none of the connection's bytes, and knows of the
    transaction that it has begun. A connection that cannot be left between two statements is closed."""

    def __init__(self, connection: AdminConnection, walk: Walk) -> None:
        self.ended = False
        self._connection = connection
        self._walk = walk
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))
        self._socket.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._error: tuple[CdcError, str | None] | None = None
        self._cancelled = False
        self._buffer = RowBuffer()

    @property
    def size(self) -> int:
        return self._buffer.at - HEAD * self._buffer.count

    def begin(self, statement: bytes) -> None:
        data = _FRAME.pack(b"Q", len(statement) + 5) + statement + b"\0"
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                if not select.select((), (self._socket,), (), SEND_S_MAX)[1]:
                    raise self._lost("the server takes no statement") from None
            except OSError as exc:
                raise self._lost(f"asking for rows failed: {exc.strerror or exc}") from exc

    def gulp(self) -> None:
        """Returns what has arrived, or waits for what arrives next; CdcError once the server has ended a statement that
        failed."""
        buffer = self._buffer
        with buffer.room() as room:
            size = self._receive(room)
        buffer.filled(size)
        while not self.ended:
            buffer.walked(*self._walk(buffer.data, buffer.at, buffer.end))
            if not self._take_other():
                break
        if self.ended and self._error:
            error, state = self._error
            if not (self._cancelled and state == QUERY_CANCELED.decode()):
                raise error

    def _receive(self, view: memoryview) -> int:
        while True:
            try:
                size = self._socket.recv_into(view)
            except BlockingIOError:
                if not self._poller.poll(SILENT_S_MAX * 1000):
                    raise self._lost("the server is silent in the middle of its rows") from None
                continue
            except OSError as exc:
                raise self._lost(f"reading rows failed: {exc.strerror or exc}") from exc
            if not size:
                raise self._lost("the server closed the connection")
            return size

    def _take_other(self) -> bool:
        """A whole frame that is no row leaves the buffer. False: there is none yet."""
        buffer = self._buffer
        left = buffer.end - buffer.at
        if left < HEAD:
            return False
        kind, size = _HEAD.unpack_from(buffer.data, buffer.at)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise self._lost("the server sent a frame of an impossible size")
        if left < 1 + size:
            return False
        frame = buffer.take_out(1 + size)
        if kind == _ERROR:
            fields = error_fields(frame[HEAD:])
            self._error = refused(fields, None), fields.get("C")
        self.ended = kind == _READY
        return True

    def piece(self) -> CopyFrames:
        """The rows so far."""
        buffer = self._buffer
        made = CopyFrames(buffer.data, buffer.at, buffer.count, buffer.last, whole=self.ended)
        buffer.cut()
        return made

    def _lost(self, message: str) -> CdcError:
        self._connection.close()
        return CdcError(CONNECTION_LOST, message)

    def finish(self) -> None:
        """Leaves the connection ready for the next statement, or closed."""
        try:
            while not self.ended and not self._connection.closed:
                if not self._cancelled:
                    self._cancelled = True
                    self._connection.pgconn.get_cancel().cancel()
                self.gulp()
                self.piece()
        except (CdcError, psycopg.Error) as exc:
            log.debug("a read could not be stopped error=%s", exc)
        finally:
            self._socket.close()
            if not self.ended:
                self._connection.close()
