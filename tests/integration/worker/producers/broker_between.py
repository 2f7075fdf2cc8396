"""A place between a Kafka client and its broker at which the end of a transaction can be held up.

It passes on every frame, and puts its own port for the broker's into the answers that name one, so that a client that
begins here stays here.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

HOST = "127.0.0.1"
METADATA, FIND_COORDINATOR, END_TXN = 3, 10, 26
END_TXN_VERSION_MAX = 2
"""Of which the answer is read here: correlation id, throttle time, error code."""

ANSWER, REQUEST, CUT = "answer", "request", "cut"
"""What happens to the one that is caught: its answer is lost; it is held up itself until `release`; both sides are cut
off as soon as the broker has decided."""


class Between:
    """Caught is the n-th end of a transaction whose transactional id ends with none of `spares`."""

    def __init__(self, port: int, what: str, count: int, spares: tuple[bytes, ...] = ()) -> None:
        self._broker, self._what, self._left, self._spares = port, what, count, spares
        self.caught = threading.Event()
        """The end was sent; but for a held one the broker has decided as well."""
        self.answers: list[int] = []
        """Error codes of the broker for what was caught."""
        self._held: tuple[socket.socket, bytes] | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in self._sockets:
            _cut(one)
        for thread in self._threads:
            thread.join()

    def release(self) -> None:
        """What was held up arrives, however late."""
        assert self._held
        upstream, frame = self._held
        upstream.sendall(frame)

    def _run(self, target, *args) -> None:
        self._threads.append(threading.Thread(target=target, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection((HOST, self._broker))
            self._sockets += [client, upstream]
            kinds: dict[int, int] = {}
            self._run(self._requests, client, upstream, kinds)
            self._run(self._answers, client, upstream, kinds)

    def _requests(self, client: socket.socket, upstream: socket.socket, kinds: dict[int, int]) -> None:
        held = False
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                kind, version, number = struct.unpack_from(">hhi", frame, 4)
                caught = kind == END_TXN and self._is_it(frame)
                kinds[number] = -kind if caught else kind
                if caught:
                    assert version <= END_TXN_VERSION_MAX
                if caught and self._what == REQUEST:
                    self._held, held = (upstream, frame), True
                    self.caught.set()
                    continue
                upstream.sendall(frame)
        if not held:
            _cut(upstream)

    def _is_it(self, frame: bytes) -> bool:
        (named,) = struct.unpack_from(">h", frame, 12)
        at = 14 + max(named, 0)
        (length,) = struct.unpack_from(">h", frame, at)
        if frame[at + 2 : at + 2 + length].endswith(self._spares):
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0

    def _answers(self, client: socket.socket, upstream: socket.socket, kinds: dict[int, int]) -> None:
        old, new = (HOST.encode() + struct.pack(">i", port) for port in (self._broker, self.port))
        with contextlib.suppress(OSError):
            while frame := _frame(upstream):
                kind = kinds.pop(struct.unpack_from(">i", frame, 4)[0])
                if kind == -END_TXN:
                    self.answers.append(struct.unpack_from(">h", frame, 12)[0])
                    self.caught.set()
                    if self._what == CUT:
                        break
                    continue
                # Of the same length: no size has to be told anew.
                client.sendall(frame.replace(old, new) if kind in (METADATA, FIND_COORDINATOR) else frame)
        _cut(client)


def _frame(source: socket.socket) -> bytes:
    """Whole, with its size before it; empty at the end."""
    head = _exactly(source, 4)
    return head + _exactly(source, struct.unpack(">i", head)[0]) if head else b""


def _exactly(source: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(size - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
