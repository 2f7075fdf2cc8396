"""What carries the bytes of an own connection to the server: a socket that never blocks, and how refusals are told."""

from __future__ import annotations

import select
import socket
import time
from errno import ETIMEDOUT
from typing import Final, Protocol

from cdcworker.connectors.postgres.errors import CONNECTION_LOST
from cdcworker.schemas.errors import CdcError

SEND_S_MAX: Final = 10.0


class NotSupported(Exception):
    """What the server or the settings ask for is libpq's alone, or did not succeed; libpq's own connection still stands.
    `passing`: the next time may be another."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class Channel(Protocol):
    """Both directions raise OSError as sockets do; `recv_into` BlockingIOError where nothing has arrived."""

    buffers: bool
    """Whether it may hold bytes of which no look at the descriptor tells."""

    def fileno(self) -> int: ...

    def recv_into(self, view: memoryview) -> int:
        """So many bytes have come; 0 at the end."""
        ...

    def pending(self) -> bool:
        """Whether bytes are here that no look at the descriptor tells of."""
        ...

    def write(self, data: bytes) -> None:
        """All of it, within `SEND_S_MAX`."""
        ...

    def close(self) -> None: ...


class PlainChannel:
    """The socket as it is."""

    buffers = False

    def __init__(self, one: socket.socket) -> None:
        one.setblocking(False)
        self._socket = one
        self.fileno = one.fileno
        self.recv_into = one.recv_into

    def pending(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            put(self._socket, data[sent:])

    def close(self) -> None:
        self._socket.close()


def left_until(deadline: float) -> float:
    """Seconds, more than none: TimeoutError once the deadline on the monotonic clock has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(ETIMEDOUT, "the server is too slow")
    return left


def error_fields(body: bytes) -> dict[str, str]:
    """An ErrorResponse: fields of one letter and a text each."""
    return {part[:1].decode(errors="replace"): part[1:].decode(errors="replace") for part in body.split(b"\0") if part}


def put(one: socket.socket, data: bytes) -> None:
    """All of it, or an error once the server has taken nothing for `SEND_S_MAX`."""
    deadline = time.monotonic() + SEND_S_MAX
    while data:
        try:
            data = data[one.send(data) :]
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CdcError(CONNECTION_LOST, "the server takes no feedback") from None
            poller = select.poll()
            poller.register(one, select.POLLOUT)
            poller.poll(1000)
        except OSError as exc:
            raise CdcError(CONNECTION_LOST, f"writing to the server failed: {exc.strerror or exc}") from exc
