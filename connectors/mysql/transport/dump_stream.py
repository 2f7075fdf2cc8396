"""The stream of a server's binary log: an open connection is made one, and read from its own socket."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.binlog.header import EVENT_BYTES_MAX
from cdcworker.connectors.mysql.errors import CONNECTION_LOST
from cdcworker.connectors.mysql.transport import commands
from cdcworker.connectors.mysql.transport.packets import PACKET_BYTES_MAX, PacketBuffer, packets
from cdcworker.connectors.mysql.transport.refusals import refused
from cdcworker.connectors.mysql.transport.setup import prepare
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from pymysql.connections import Connection

Take = Callable[[bytes, bool], bool]
"""Is given an event's bytes, and whether the server waits for its acknowledgement; False: no more for now."""
Run = Callable[[PacketBuffer], bool]
"""Takes packets that have arrived, as many as it knows how to; False: no more for now."""
_OK, _END, _ERROR = 0x00, 0xFE, 0xFF
_END_BYTES_MAX: Final = 9
_ACK_WANTED: Final = 0x01
WRITE_S_MAX: Final = 30.0


class DumpStream:
    """The events that one server sends. One thread reads it."""

    def __init__(self, sock: socket.socket, checksum: Checksum, *, semi_sync: bool, event_bytes_max: int) -> None:
        """Takes a socket on which the dump has been asked for."""
        self._sock = sock
        self._sock.setblocking(False)
        self._semi_sync = semi_sync
        self._packets = PacketBuffer(event_bytes_max + 3)
        self._is_plain = not semi_sync and event_bytes_max >= PACKET_BYTES_MAX
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._ended = False
        self.checksum = checksum
        """How events are checked until the first format description says it."""

    @classmethod
    def start(
        cls,
        connection: Connection,
        reader: commands.Reader,
        start: commands.Start,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> DumpStream:
        """Makes a connection, whose user is logged in, the stream. The connection is used up, also where CdcError is raised."""
        try:
            checksum = prepare(connection, reader, start)
            sock = _socket_of(connection)
            stream = cls(sock, checksum, semi_sync=reader.semi_sync, event_bytes_max=event_bytes_max)
            stream._send(packets(commands.dump(reader, start)))
        except BaseException:
            with contextlib.suppress(Exception):
                connection._force_close()
            raise
        return stream

    @property
    def ended(self) -> bool:
        """Whether the server has sent all there was for a reader who does not wait."""
        return self._ended

    def fileno(self) -> int:
        return self._sock.fileno()

    def wait(self, seconds: float) -> bool:
        """Waits until there is something to read; returns whether there is."""
        if self._pending() or not seconds > 0:
            return True
        return bool(self._poller.poll(seconds * 1000))

    def watch(self, descriptor: int) -> None:
        """Ends waits when something can be read from this descriptor too."""
        self._poller.register(descriptor, select.POLLIN)

    def receive(self, take: Take, run: Run | None = None) -> bool:
        """Hands on the events that have arrived: in front of each, `run` is given all packets, where they hold nothing but events.
        Returns False when `take` or `run` has, or the stream has ended; True when all are handed on. Raises CdcError when the connection
        is lost or the server refuses to go on."""
        while not self._ended:
            if run is not None and self._is_plain and not run(self._packets):
                return False
            payload = self._packets.next()
            if payload is None:
                if not self._fill():
                    return True
            elif not self._hand_on(payload, take):
                return False
        return False

    def acknowledge(self, file: str, position: int) -> None:
        """Tells a semi-synchronous server that everything before this place has been taken."""
        self._send(packets(commands.acknowledgement(file, position)))

    def close(self) -> None:
        """Ends the connection. The server notices it with the next event or heartbeat that it sends."""
        with contextlib.suppress(KeyError, ValueError):
            self._poller.unregister(self._sock)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _hand_on(self, payload: bytes, take: Take) -> bool:
        kind = payload[0] if payload else -1
        if kind == _OK:
            start, wanted = 1, False
            if self._semi_sync:
                if payload[1:2] != bytes([commands.SEMI_SYNC_ACK]) or len(payload) < 3:
                    raise CdcError(
                        CONNECTION_LOST, "the server sends an event without the head of semi-synchronous ones"
                    )
                start, wanted = 3, bool(payload[2] & _ACK_WANTED)
            return take(payload[start:], wanted)
        if kind == _ERROR:
            raise refused(payload)
        if kind == _END and len(payload) < _END_BYTES_MAX:
            self._ended = True
            return False
        raise CdcError(CONNECTION_LOST, "the server sends what is no event")

    def _pending(self) -> bool:
        return isinstance(self._sock, ssl.SSLSocket) and bool(self._sock.pending())

    def _fill(self) -> bool:
        """Reads what has arrived; False when that is nothing."""
        try:
            with self._packets.room() as room:
                size = self._sock.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as exc:
            raise CdcError(CONNECTION_LOST, f"reading from the server failed: {exc.strerror or exc}") from exc
        if not size:
            raise CdcError(CONNECTION_LOST, "the server closed the connection")
        self._packets.filled(size)
        return True

    def _send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(WRITE_S_MAX)
            self._sock.sendall(data)
            self._sock.setblocking(False)
        except OSError as exc:
            raise CdcError(CONNECTION_LOST, f"writing to the server failed: {exc.strerror or exc}") from exc


def _socket_of(connection: Connection) -> socket.socket:
    """Takes the socket out of a connection, on which nothing is left to read: the protocol answers each command with as much as
    was read of it."""
    sock: socket.socket | None = connection._sock
    file = connection._rfile
    if sock is None:
        raise CdcError(CONNECTION_LOST, "the connection is closed")
    connection._sock = connection._rfile = None
    # The file keeps the socket's descriptor open until both are closed; the socket counts it.
    if file is not None:
        file.close()
    return sock
