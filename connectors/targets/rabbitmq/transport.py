"""The library's connection, over sockets to addresses that were judged. Frames of messages are gathered, and sent together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp import Channel, Connection
from amqp.transport import AMQP_PROTOCOL_HEADER, TCPTransport

READ_BYTES: Final = 65_536


class GatheringTransport(TCPTransport):  # type: ignore[misc]  # the library has no types
    """Bytes to and from a socket that was opened elsewhere. While `gathers` is set, what is written waits in `gathered`."""

    def __init__(self, opened: Callable[[], socket.socket]) -> None:
        super().__init__("127.0.0.1")
        self._opened = opened
        self._read_buffer: bytes = b""
        self.gathers = False
        self.gathered = bytearray()

    def _connect(self, host: str, port: int, timeout: float | None) -> None:
        del host, port, timeout
        self.sock = self._opened()

    def _init_socket(self, settings: Any, read_timeout: Any, write_timeout: Any) -> None:
        del settings, read_timeout, write_timeout
        self._write(AMQP_PROTOCOL_HEADER)

    def _write(self, data: Any) -> None:
        if self.gathers:
            self.gathered += data
        else:
            self.sock.sendall(data)

    def _read(self, count: int, initial: bool = False) -> bytes:
        """Returns so many bytes. What came besides, and what came before a failure, is kept for the next call."""
        del initial
        buffer = self._read_buffer
        try:
            while len(buffer) < count:
                more = self.sock.recv(READ_BYTES)
                if not more:
                    raise ConnectionResetError("the server has closed the connection")
                buffer += more
        except BaseException:
            self._read_buffer = buffer
            raise
        self._read_buffer = buffer[count:]
        return bytes(buffer[:count])

    @property
    def has_read(self) -> bool:
        """Whether something was read that no frame was made of yet."""
        return bool(self._read_buffer)


class PlainTransport(Channel):  # type: ignore[misc]  # the library has no types
    """A channel that stays closed once the server has closed it."""

    def _do_revive(self) -> None:
        self.is_open = False


class JudgedConnection(Connection):  # type: ignore[misc]  # the library has no types
    """A connection over a socket that `opened` returns."""

    Channel = PlainTransport

    def __init__(self, opened: Callable[[], socket.socket], settings: Mapping[str, Any]) -> None:
        super().__init__("127.0.0.1", **settings)
        self._opened = opened

    def Transport(self, *_: Any, **__: Any) -> GatheringTransport:
        return GatheringTransport(self._opened)
