"""Packets of MySQL's protocol as a stream of events needs them: whole payloads out of a socket's bytes, and payloads to send."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.mysql.binlog.header import EVENT_BYTES_MAX
from cdcworker.connectors.mysql.errors import CONNECTION_LOST, EVENT_TOO_LARGE
from cdcworker.schemas.errors import CdcError

HEAD_BYTES: Final = 4
PACKET_BYTES_MAX: Final = 0xFF_FFFF
"""The longest packet; one of this length is followed by another that goes on with it, and be that an empty one."""
BUFFER_BYTES: Final = 1 << 20
ROOM_BYTES_MIN: Final = 1 << 16
"""Less room is not worth a read: what is left is moved to the beginning before."""


class PacketBuffer:
    """Bytes that have arrived, cut into payloads. `next` returns None until a payload is whole."""

    def __init__(self, payload_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._buffer = bytearray(BUFFER_BYTES)
        self._at = self._end = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._sequence: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has arrived that was not handed out."""
        return self._at == self._end and not self._parts

    def room(self) -> memoryview:
        """Returns where the next bytes may be put; `filled` tells how many were. Release it before that."""
        if self._at == self._end:
            self._at = self._end = 0
        elif (len(self._buffer) - self._end < ROOM_BYTES_MIN and self._at) or self._end == len(self._buffer):
            self._move()
        return memoryview(self._buffer)[self._end :]

    def filled(self, size: int) -> None:
        self._end += size

    @property
    def waiting(self) -> tuple[bytearray, int, int] | None:
        """What has arrived and was not handed out: the buffer, and the offsets in it; None within a payload of several packets."""
        return None if self._parts else (self._buffer, self._at, self._end)

    @property
    def sequence(self) -> int:
        """The number of the last packet that was handed out; -1 for none."""
        return -1 if self._sequence is None else self._sequence

    def passed(self, at: int, sequence: int) -> None:
        """Somebody else has taken whole packets up to this offset, the last of which has that number."""
        self._at, self._sequence = at, None if sequence < 0 else sequence

    def _move(self) -> None:
        """Puts what is left to the beginning, in a buffer that holds the packet which has begun."""
        left = self._buffer[self._at : self._end]
        need = HEAD_BYTES + int.from_bytes(left[:3], "little") if len(left) >= HEAD_BYTES else 0
        if need > len(self._buffer) or len(self._buffer) > 4 * BUFFER_BYTES >= need:
            self._buffer = bytearray(max(need + BUFFER_BYTES, BUFFER_BYTES))
        self._buffer[: len(left)] = left
        self._at, self._end = 0, len(left)

    def next(self) -> bytes | None:
        """Returns the next whole payload. Raises CdcError where packets do not follow each other, or the payload is too large."""
        while self._end - self._at >= HEAD_BYTES:
            start = self._at + HEAD_BYTES
            size = int.from_bytes(self._buffer[self._at : start - 1], "little")
            if self._parts_bytes + size > self._payload_bytes_max:
                raise CdcError(
                    EVENT_TOO_LARGE, f"the server sends an event of more than {self._payload_bytes_max} bytes"
                )
            if self._end < start + size:
                if start + size > len(self._buffer):
                    self._move()
                return None
            self._count(self._buffer[start - 1])
            with memoryview(self._buffer) as view:
                part = bytes(view[start : start + size])
            self._at = start + size
            if size == PACKET_BYTES_MAX:
                self._parts.append(part)
                self._parts_bytes += size
                continue
            return self._joined(part)
        return None

    def _joined(self, last: bytes) -> bytes:
        if not self._parts:
            return last
        payload = b"".join((*self._parts, last))
        self._parts, self._parts_bytes = [], 0
        return payload

    def _count(self, sequence: int) -> None:
        if self._sequence is not None and sequence != (self._sequence + 1) & 0xFF:
            raise CdcError(CONNECTION_LOST, "the server's packets do not follow each other")
        self._sequence = sequence


def packets(payload: bytes, sequence: int = 0) -> bytes:
    """Returns a payload as the packets that hold it."""
    out: list[bytes] = []
    at = 0
    while True:
        part = payload[at : at + PACKET_BYTES_MAX]
        out += (len(part).to_bytes(3, "little"), bytes([sequence & 0xFF]), part)
        at, sequence = at + len(part), sequence + 1
        if len(part) < PACKET_BYTES_MAX:
            return b"".join(out)
