"""The replication connection read from its own socket: large gulps into one buffer, and naps while the server is busy.

libpq connects, authenticates and runs the commands; between two of them its buffer is empty, and from the start of the
stream on the socket is read and written here. Under TLS the stream gets a connection of its own, made here, in place of
libpq's; where that cannot be, or GSS encrypts, libpq reads the stream.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final

import psycopg
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import CONNECTION_LOST, TRANSPORT, translate_text
from cdcworker.connectors.postgres.pgoutput import FRAMED_KINDS, HEADER
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.channel import Channel, NotSupported, PlainChannel, error_fields
from cdcworker.connectors.postgres.transport.connection import UTF8, conninfo
from cdcworker.connectors.postgres.transport.libpq_stream import FEEDBACK_S_MAX, STATUS, ReplicationStream, Rows, Take
from cdcworker.connectors.postgres.transport.server_encoding import NO_ENCODING, is_lacking
from cdcworker.schemas.errors import CdcError
from psycopg import pq

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 1 << 20
FRAME_BYTES_MAX: Final = (1 << 30) + (1 << 20)
"""PostgreSQL's limit on a value, and room around it."""
NAP_S: Final = 0.0005
"""The server sends each message on its own: who reads at once wakes up for each and slows it down by half."""
NAP_FROM_BYTES: Final = 2_048
SHORT_BYTES: Final = 65_536
"""A read of less than this, but not of next to nothing, is worth a nap: more is coming."""
_HEAD: Final = struct.Struct(">BI")
"""Kind and size of a frame."""
_SIZE: Final = struct.Struct(">I")
_XLOG_DATA, _KEEPALIVE = ord("w"), ord("k")
_KIND_AT: Final = _HEAD.size + HEADER
"""Where a frame of XLogData holds the kind of its message."""
_COPY_BOTH, _COPY_DATA, _ERROR = ord("W"), ord("d"), ord("E")
_STATUS_HEAD: Final = _HEAD.pack(_COPY_DATA, STATUS.size + _SIZE.size)
_PASSED_OVER: Final = frozenset(b"NSA")
"""Notices, parameters and notifications."""


def usable(conn: pq.abc.PGconn) -> bool:
    """Whether the bytes on the connection's socket are the protocol's own."""
    return _without_gss(conn) and not conn.ssl_in_use


def _without_gss(conn: pq.abc.PGconn) -> bool:
    return any(option.keyword == b"gssencmode" and option.val == b"disable" for option in conn.info)


class SocketStream(ReplicationStream):
    """As its base, over a duplicate of libpq's socket, once the stream has started."""

    _channel: Channel | None = None

    def __init__(self, conninfo: str, feedback_s: float = FEEDBACK_S_MAX, *, required: bool = False) -> None:
        """`required`: a connection that libpq must read is refused."""
        super().__init__(conninfo, feedback_s)
        self._required = required

    def _begin(self, statement: str, where: dict[str, str | int]) -> None:
        try:
            self._channel = self._own()
        except NotSupported as exc:
            if self._required and exc.passing:
                raise CdcError(CONNECTION_LOST, f"a second connection, for the stream, failed: {exc}") from exc
            if self._required:
                told = f"it cannot be read past libpq: {exc}"
                raise CdcError(TRANSPORT, told, where={"configPath": "/database.transport"}) from exc
            log.info("the stream is read by libpq reason=%s", exc)
            super()._begin(statement, where)
            return
        self._write, self._status_head = self._channel.write, _STATUS_HEAD
        self._buffer = bytearray(BUFFER_BYTES)
        self._at = self._end = self._last_read = 0
        self._channel.write(b"Q" + struct.pack(">I", len(statement.encode()) + 5) + statement.encode() + b"\0")
        while True:
            kind, body = self._await_frame()
            if kind == _COPY_BOTH:
                return
            if kind == _ERROR:
                raise refused(error_fields(body), where)

    def _own(self) -> Channel:
        if usable(self._conn):
            return PlainChannel(socket.socket(fileno=os.dup(self._conn.socket)))
        if not _without_gss(self._conn):
            raise NotSupported("GSS may encrypt it")
        # What it takes in memory is for those who need it.
        from cdcworker.connectors.postgres.transport import authentication

        channel = authentication.login(authentication.ServerAddress.of(self._conn))
        self._poller.unregister(self._conn.socket)
        self._conn.finish()
        self._poller.register(channel, select.POLLIN)
        return channel

    # -- reading ----------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        if self._channel is None:
            return super().wait(seconds)
        if not seconds > 0 or (self._channel.buffers and self._channel.pending()):
            return True
        return bool(self._poller.poll(seconds * 1000))

    def receive(self, take: Take, rows: Rows | None = None) -> bool:
        if self._channel is None:
            return super().receive(take, rows)
        try:
            with self._lock:
                while True:
                    if (
                        rows is not None
                        and self._end - self._at > _KIND_AT
                        and (
                            self._buffer[self._at + _KIND_AT] in FRAMED_KINDS
                            and self._buffer[self._at + _HEAD.size] == _XLOG_DATA
                        )
                    ):
                        self._at, go_on = rows(self._buffer, self._at, self._end)
                        if not go_on:
                            return False
                    at, end = self._at, self._end
                    stop = at + 1 + _SIZE.unpack_from(self._buffer, at + 1)[0] if end - at >= _HEAD.size else 0
                    if not at + _HEAD.size <= stop <= end:
                        # No whole frame has arrived.
                        if end - at >= _HEAD.size:
                            self._next_frame()
                        if not self._fill():
                            return True
                        continue
                    kind, start, self._at = self._buffer[at], at + _HEAD.size, stop
                    what = self._buffer[start] if kind == _COPY_DATA and stop > start else 0
                    if what == _XLOG_DATA:
                        is_small = stop - start < BUFFER_BYTES
                        if not take(bytes(self._buffer[start:stop]) if is_small else self._large_message(start, stop)):
                            return False
                    elif what == _KEEPALIVE:
                        self._take_keepalive(bytes(self._buffer[start:stop]))
                    elif kind != _COPY_DATA:
                        self._other(kind, bytes(self._buffer[start:stop]))
        except psycopg.Error as exc:
            raise self._lost(exc) from exc

    def _next_frame(self) -> tuple[int, int, int] | None:
        """Kind, start and end of the next whole frame, which is then behind us."""
        if self._end - self._at < _HEAD.size:
            return None
        kind, size = _HEAD.unpack_from(self._buffer, self._at)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise CdcError(CONNECTION_LOST, "the server sent a frame of an impossible size")
        end = self._at + 1 + size
        if end > self._end:
            self._make_room(1 + size)
            return None
        start, self._at = self._at + _HEAD.size, end
        return kind, start, end

    def _large_message(self, start: int, end: int) -> bytes:
        """A message that fills the buffer, copied once."""
        with memoryview(self._buffer) as view:
            data = bytes(view[start:end])
        if self._at == self._end:
            # What is made of it takes as much memory again.
            self._buffer, self._at, self._end = bytearray(BUFFER_BYTES), 0, 0
        return data

    def _make_room(self, frame: int) -> None:
        """Room for the whole frame that has begun, which then begins the buffer."""
        left = self._end - self._at
        if frame > len(self._buffer):
            grown = bytearray(frame + BUFFER_BYTES)
            grown[:left] = self._buffer[self._at : self._end]
            self._buffer = grown
        elif self._at:
            self._buffer[:left] = self._buffer[self._at : self._end]
        self._at, self._end = 0, left

    def _fill(self) -> bool:
        """Read what has arrived; False when that is nothing. Naps first when the last read promises more."""
        assert self._channel
        if self._at == self._end:
            self._at = self._end = 0
            if len(self._buffer) > 4 * BUFFER_BYTES:
                self._buffer = bytearray(BUFFER_BYTES)
        elif self._at:
            self._make_room(0)
        if NAP_FROM_BYTES <= self._last_read < SHORT_BYTES:
            time.sleep(NAP_S)
        try:
            with memoryview(self._buffer) as view:
                self._last_read = self._channel.recv_into(view[self._end :])
        except BlockingIOError:
            self._last_read = 0
            return False
        except OSError as exc:
            raise CdcError(CONNECTION_LOST, f"reading from the server failed: {exc.strerror or exc}") from exc
        if not self._last_read:
            raise CdcError(CONNECTION_LOST, "the server closed the connection")
        self._end += self._last_read
        return True

    def _await_frame(self) -> tuple[int, bytes]:
        while (found := self._next_frame()) is None:
            if not self._fill():
                self._poller.poll(1000)
        kind, start, end = found
        return kind, bytes(self._buffer[start:end])

    def _other(self, kind: int, body: bytes) -> None:
        if kind == _ERROR:
            raise refused(error_fields(body), None)
        if kind not in _PASSED_OVER:
            raise CdcError(CONNECTION_LOST, "the server ended the replication stream")

    def close(self) -> None:
        super().close()
        self._write, self._status_head = self._put_copy_data, b""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def refused(fields: Mapping[str, str], where: dict[str, str | int] | None) -> CdcError:
    return translate_text(fields.get("M", "the server ended the stream"), where, fields.get("C"), fields.get("W"))


def connect_stream(
    settings: PostgresSettings, catalog: AdminConnection, application: str, feedback_s: float
) -> ReplicationStream:
    """Connects a walsender by the transport that the settings ask for, in the encoding that the database needs.
    `feedback_s`: the longest time between two status updates."""
    encoding = NO_ENCODING if is_lacking(catalog) else UTF8
    info, transport = (
        conninfo(settings, application, replication=True, encoding=encoding),
        settings.raw["database.transport"],
    )
    if transport == "psycopg":
        return ReplicationStream(info, feedback_s)
    return SocketStream(info, feedback_s, required=transport == "socket")
