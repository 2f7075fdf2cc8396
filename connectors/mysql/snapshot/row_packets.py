"""Rows of a SELECT, left in the packets in which the server sends them: read in gulps, and looked at only where that is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NoReturn

from cdcworker.connectors.capture.snapshot.row_buffer import RowBuffer
from cdcworker.connectors.mysql.binlog.header import EVENT_BYTES_MAX
from cdcworker.connectors.mysql.transport.packets import HEAD_BYTES, PACKET_BYTES_MAX

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

Walk = Callable[[bytearray, int, int, int], tuple[int, int, int, int]]
"""Whole rows between two offsets, the first of which has this number: the offset behind them, how many, where the last one begins, and the
number that comes next. Numbers of rows become 0."""
LEFT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of rows that nobody wants any more: with what is left beyond that the connection is given up."""
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF
_END_BYTES_MAX: Final = 9
_WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}


def walk_rows(data: bytearray, start: int, end: int, sequence: int) -> tuple[int, int, int, int]:
    """The `Walk` in Python."""
    count, last = 0, -1
    while size := _row_size(data, start, end, sequence):
        at, last = start, start
        while at < start + size:
            data[at + 3] = 0
            sequence = (sequence + 1) & 0xFF
            at = packet_end(data, at)
        start, count = start + size, count + 1
    return start, count, last, sequence


def packet_end(data: bytes | bytearray, at: int) -> int:
    """Returns the offset behind the packet at this one."""
    return at + HEAD_BYTES + int.from_bytes(data[at : at + 3], "little")


def row_end(data: bytes | bytearray, at: int) -> int:
    """Returns the offset behind the packets of the row at this one."""
    while (behind := packet_end(data, at)) - at == HEAD_BYTES + PACKET_BYTES_MAX:
        at = behind
    return behind


def _row_size(data: bytearray, start: int, end: int, sequence: int) -> int:
    """Returns the bytes of the packets of a row; 0 where it is not whole, or no row."""
    if end - start <= HEAD_BYTES or _is_other(data, start):
        return 0
    at = start
    while end - at >= HEAD_BYTES:
        behind = packet_end(data, at)
        if behind > end or data[at + 3] != sequence & 0xFF:
            return 0
        if behind - at < HEAD_BYTES + PACKET_BYTES_MAX:
            return behind - start
        at, sequence = behind, sequence + 1
    return 0


def _is_other(data: bytearray, at: int) -> bool:
    """Returns whether the packet at an offset, of which more than its head is there, begins no row."""
    size, first = int.from_bytes(data[at : at + 3], "little"), data[at + HEAD_BYTES]
    return not size or first == _ERROR or (first == _END and size < _END_BYTES_MAX)


def payload_at(data: bytes | bytearray, at: int) -> bytes:
    """Returns what the packets of the row at an offset hold."""
    parts: list[bytes] = []
    while True:
        behind = packet_end(data, at)
        parts.append(bytes(data[at + HEAD_BYTES : behind]))
        if len(parts[-1]) < PACKET_BYTES_MAX:
            return b"".join(parts)
        at = behind


def values_of(payload: bytes) -> list[bytes | None]:
    """Returns the values of a row. Raises ValueError for what is none."""
    out: list[bytes | None] = []
    at = 0
    while at < len(payload):
        first, at = payload[at], at + 1
        if first == _NULL:
            out.append(None)
            continue
        size = first
        if first > _NULL:
            if first == _ERROR:
                raise ValueError("a value has no length")
            width = _WIDTHS[first]
            size, at = int.from_bytes(payload[at : at + width], "little"), at + width
        if at + size > len(payload):
            raise ValueError("a value is cut short")
        out.append(payload[at : at + size])
        at += size
    return out


class RowPackets:
    """The answer to one SELECT. Raises PyMySQL's errors; `finish` leaves the connection ready for the next statement, or closed."""

    def __init__(self, connection: MySqlConnection, statement: str, walk: Walk) -> None:
        self.buffer = RowBuffer()
        self.ended = False
        self._connection = connection
        self._walk = walk
        self._is_begun = False
        self._file, self._sequence = connection.begin_rows(statement)

    @property
    def size(self) -> int:
        """Bytes of the rows that are in the buffer."""
        return self.buffer.at - HEAD_BYTES * self.buffer.count

    def gulp(self) -> None:
        """Takes what has arrived, or waits for what arrives next."""
        buffer = self.buffer
        with buffer.room() as room:
            try:
                size = self._read(room)
            except OSError as exc:
                self._lost(f"reading rows failed ({type(exc).__name__})")
        if not size:
            self._lost("the server closed the connection")
        buffer.filled(size)
        *walked, self._sequence = self._walk(buffer.data, buffer.at, buffer.end, self._sequence)
        buffer.walked(*walked)
        self._take_other()
        if buffer.end - buffer.at > EVENT_BYTES_MAX:
            self._lost("the server sends a row of an impossible size")

    def _read(self, room: memoryview) -> int:
        if self._is_begun:
            return self._file.raw.readinto(room) or 0
        # Behind the heads of the columns some rows may have arrived, which the file holds.
        self._is_begun = True
        begun = self._file.read1(len(room))
        room[: len(begun)] = begun
        return len(begun)

    def _take_other(self) -> None:
        """Takes the packet behind the rows, where it is whole: their end or an error."""
        import pymysql

        buffer = self.buffer
        left = buffer.end - buffer.at
        if left < HEAD_BYTES:
            return
        self._require_order()
        behind = packet_end(buffer.data, buffer.at)
        is_empty = behind == buffer.at + HEAD_BYTES
        if behind > buffer.end or not (is_empty or _is_other(buffer.data, buffer.at)):
            return
        payload = buffer.take_out(behind - buffer.at)[HEAD_BYTES:]
        if is_empty or (payload[0] == _ERROR and len(payload) < _END_BYTES_MAX):
            self._lost("the server sends what is no row")
        self.ended = True
        if payload[0] == _ERROR:
            pymysql.err.raise_mysql_exception(payload)

    def _require_order(self) -> None:
        """Refuses packets that do not follow each other: they would never be a whole row."""
        data, number, at = self.buffer.data, self._sequence, self.buffer.at
        while at + HEAD_BYTES <= self.buffer.end:
            if data[at + 3] != number & 0xFF:
                self._lost("the server's packets do not follow each other")
            behind = packet_end(data, at)
            if behind - at < HEAD_BYTES + PACKET_BYTES_MAX:
                return
            at, number = behind, number + 1

    def _lost(self, message: str) -> NoReturn:
        import pymysql
        from pymysql.constants import CR

        self.ended = True
        self._connection._force_close()
        raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, message)

    def finish(self, *, all_of_it: bool = False) -> None:
        """Reads what is left, or closes the connection where that is much, unless all of it is to be read; never raises."""
        import pymysql

        passed = 0
        with contextlib.suppress(pymysql.Error):
            while not self.ended:
                self.gulp()
                passed += self.buffer.at
                self.buffer.cut()
                if passed > LEFT_BYTES_MAX and not all_of_it:
                    self.ended = True
                    self._connection._force_close()


def value_rows(connection: MySqlConnection, statement: str) -> Generator[list[bytes | None]]:
    """Yields the values of the rows of a SELECT as they come: the server is not asked for more than is taken. Raises PyMySQL's errors, and
    ValueError for what is no row."""
    packets = RowPackets(connection, statement, walk_rows)
    buffer = packets.buffer
    try:
        while not packets.ended:
            packets.gulp()
            data, at, end = buffer.data, 0, buffer.at
            buffer.cut()
            while at < end:
                yield values_of(payload_at(data, at))
                at = row_end(data, at)
    finally:
        packets.finish(all_of_it=True)
