"""The replication connection read from its own socket: large gulps into one buffer, and naps while the server is busy.

libpq connects, authenticates and runs the commands; between two of them its buffer is empty, and from the start of the
stream on the socket is read and written here. With TLS or GSS encryption libpq must do it: `usable` says so.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import conninfo
from cdcworker.connectors.postgres.errors import CONNECTION_LOST, TRANSPORT, translate_text
from cdcworker.connectors.postgres.stream import ReplicationStream, Rows, Take
from cdcworker.schemas.errors import CdcError
from psycopg import pq

BUFFER_BYTES: Final = 1 << 20
FRAME_BYTES_MAX: Final = (1 << 30) + (1 << 20)
"""PostgreSQL's limit on a value, and room around it."""
NAP_S: Final = 0.0005
"""The server sends each message on its own: who reads at once wakes up for each and slows it down by half."""
NAP_FROM_BYTES: Final = 2_048
SHORT_BYTES: Final = 65_536
"""A read of less than this, but not of next to nothing, is worth a nap: more is coming."""
SEND_S_MAX: Final = 10.0
_HEAD: Final = struct.Struct(">BI")
_COPY_BOTH, _COPY_DATA, _ERROR = ord("W"), ord("d"), ord("E")
_PASSED_OVER: Final = frozenset(b"NSA")
"""Notices, parameters and notifications."""


def usable(conn: pq.abc.PGconn) -> bool:
    """Whether the bytes on the connection's socket are the protocol's own."""
    without_gss = any(option.keyword == b"gssencmode" and option.val == b"disable" for option in conn.info)
    return without_gss and not conn.ssl_in_use


class SocketStream(ReplicationStream):
    """As its base, over a duplicate of libpq's socket, once the stream has started."""

    _socket: socket.socket | None = None
    required = False
    """An encrypted connection, which libpq must read, is refused."""

    def _begin(self, statement: str, where: dict[str, str | int]) -> None:
        if not usable(self._conn):
            if self.required:
                raise CdcError(TRANSPORT, "the connection is encrypted", where={"configPath": "/database.transport"})
            super()._begin(statement, where)
            return
        self._buffer = bytearray(BUFFER_BYTES)
        self._at = self._end = self._last_read = 0
        one = socket.socket(fileno=os.dup(self._conn.socket))
        one.setblocking(False)
        self._socket = one
        self._write(b"Q" + struct.pack(">I", len(statement.encode()) + 5) + statement.encode() + b"\0")
        while True:
            kind, body = self._await_frame()
            if kind == _COPY_BOTH:
                return
            if kind == _ERROR:
                raise refused(error_fields(body), where)

    # -- reading ----------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        if self._socket is None:
            return super().wait(seconds)
        return not seconds > 0 or bool(self._poller.poll(seconds * 1000))

    def _drain(self, take: Take, rows: Rows | None) -> bool:
        if self._socket is None:
            return super()._drain(take, rows)
        while True:
            if rows is not None and self._at < self._end:
                self._at, go_on = rows(self._buffer, self._at, self._end)
                if not go_on:
                    return False
            found = self._next_frame()
            if found is None:
                if not self._fill():
                    return True
                continue
            kind, start, end = found
            if kind != _COPY_DATA:
                self._other(kind, bytes(self._buffer[start:end]))
            elif end > start:
                what = self._buffer[start]
                if what == 119:
                    if not take(bytes(self._buffer[start:end])):
                        return False
                elif what == 107:
                    self._take_keepalive(bytes(self._buffer[start:end]))

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
        assert self._socket
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
                self._last_read = self._socket.recv_into(view[self._end :])
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

    # -- writing ----------------------------------------------------------------------------------------------------

    def _put(self, message: bytes) -> None:
        if self._socket is None:
            super()._put(message)
        else:
            self._write(_HEAD.pack(_COPY_DATA, len(message) + 4) + message)

    def _write(self, data: bytes) -> None:
        assert self._socket
        deadline = time.monotonic() + SEND_S_MAX
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CdcError(CONNECTION_LOST, "the server takes no feedback") from None
                select.select((), (self._socket,), (), 1.0)
            except OSError as exc:
                raise CdcError(CONNECTION_LOST, f"writing to the server failed: {exc.strerror or exc}") from exc

    def close(self) -> None:
        super().close()
        one, self._socket = self._socket, None
        if one is not None:
            one.close()


def error_fields(body: bytes) -> dict[str, str]:
    """An ErrorResponse: fields of one letter and a text each."""
    return {part[:1].decode(errors="replace"): part[1:].decode(errors="replace") for part in body.split(b"\0") if part}


def refused(fields: Mapping[str, str], where: dict[str, str | int] | None) -> CdcError:
    return translate_text(fields.get("M", "the server ended the stream"), where, fields.get("C"))


def connect_stream(settings: Settings, application: str, feedback_s: float) -> ReplicationStream:
    """A walsender by the transport that the settings ask for."""
    info, transport = conninfo(settings, application, replication=True), settings.raw["database.transport"]
    if transport == "psycopg":
        return ReplicationStream(info, feedback_s)
    stream = SocketStream(info, feedback_s)
    stream.required = transport == "socket"
    return stream
