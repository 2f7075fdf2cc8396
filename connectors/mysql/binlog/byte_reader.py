"""Reading the parts of an event one after the other; no read goes past the end."""

from __future__ import annotations

from cdcworker.connectors.mysql.errors import MalformedError
from cdcworker.connectors.mysql.types.lengths import packed_length


class ByteReader:
    """The bytes of an event's body with the offset of what is read next. All numbers are little-endian and unsigned, unless a
    method says otherwise. Raises MalformedError past the end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    @property
    def at(self) -> int:
        return self._at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise MalformedError("cut short")
        return self._data[start : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little", signed=True)

    def packed(self) -> int:
        """Reads a length-encoded integer."""
        number, self._at = packed_length(self._data, self._at)
        return number

    def packed_bytes(self) -> bytes:
        """Reads a string after its length-encoded length."""
        return self.take(self.packed())

    def short_bytes(self) -> bytes:
        """Reads a string after its length in one byte."""
        return self.take(self.number(1))

    def short_text(self) -> str:
        return text_of(self.short_bytes())

    def zero(self) -> None:
        """Reads the zero byte that ends a text whose length stands before it."""
        if self.take(1) != b"\0":
            raise MalformedError("a text has no end")

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Checks that everything has been read."""
        if self._at != len(self._data):
            raise MalformedError("bytes left over")


def text_of(data: bytes) -> str:
    """Returns a name, which is UTF-8. Raises MalformedError."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedError("a name that is not UTF-8") from None
