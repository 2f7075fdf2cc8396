"""TLS over a socket that never blocks."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from cdcworker.connectors.postgres.errors import CONNECTION_LOST
from cdcworker.connectors.postgres.transport.channel import left_until, put
from cdcworker.schemas.errors import CdcError

RAW_BYTES: Final = 1 << 18
TERMINATE: Final = b"X\0\0\0\4"


class TlsChannel:
    """TLS over memory: the server sends a record per message, and a gulp off the socket brings many of them."""

    buffers = True

    def __init__(self, one: socket.socket, context: ssl.SSLContext, name: str, deadline: float) -> None:
        """Shakes hands, until `deadline` on the monotonic clock (TimeoutError), however often the server says a little.
        `name`: the host, as its certificate is to name it."""
        self._socket = one
        self._raw = memoryview(bytearray(RAW_BYTES))
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=name)
        self._left = self._ended = False
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                one.settimeout(left_until(deadline))
                self._flush()
                self._gulp()
            except ssl.SSLError:
                self._flush()
                raise
        one.setblocking(False)
        self._flush()

    def fileno(self) -> int:
        return self._socket.fileno()

    def pending(self) -> bool:
        return self._left or self._ended

    def recv_into(self, view: memoryview) -> int:
        got = self._opened(view) if self._left else 0
        if got or self._ended:
            return got
        while self._gulp():
            got = self._opened(view)
            if self._leaving.pending:
                self._flush()
            if got or self._ended:
                return got
        return self._opened(view)

    def _gulp(self) -> int:
        got = self._socket.recv_into(self._raw)
        if got:
            self._arrived.write(self._raw[:got])
        else:
            self._arrived.write_eof()
        return got

    def _opened(self, view: memoryview) -> int:
        """What of `view` the records that have arrived whole fill."""
        # Typeshed knows only the form that returns bytes.
        read, at, size = cast("Callable[[int, memoryview], int]", self.tls.read), 0, len(view)
        self._left = False
        try:
            while at < size:
                got = read(size - at, view[at:])
                if not got:
                    self._ended = True
                    return at
                at += got
            self._left = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        return at

    def _flush(self) -> None:
        if data := self._leaving.read():
            put(self._socket, data)

    def write(self, data: bytes) -> None:
        try:
            self.tls.write(data)
        except ssl.SSLError as exc:
            raise CdcError(CONNECTION_LOST, f"writing to the server failed: {exc.reason}") from exc
        self._flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Else the server takes the end for an accident, and logs it.
            self.tls.write(TERMINATE)
            self._socket.send(self._leaving.read())
        self._socket.close()
