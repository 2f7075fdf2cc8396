"""Bytes of a server's answer as they arrive, of which whole rows are told apart from the rest."""

from __future__ import annotations

from typing import Final

GULP_BYTES: Final = 256 * 1024


class RowBuffer:
    """`data` up to `at` is rows, `count` of them, the last of which begins at `last`; what follows up to `end` has not been looked at."""

    def __init__(self) -> None:
        self._begin(b"")

    def _begin(self, begun: bytes | bytearray) -> None:
        """Makes a buffer that is empty but for the beginning of what comes next."""
        self.data = bytearray(max(GULP_BYTES, 2 * len(begun)))
        self.data[: len(begun)] = begun
        self.end, self.at, self.count, self.last = len(begun), 0, 0, -1

    def room(self) -> memoryview:
        """Returns where the next bytes may be put; `filled` tells how many were. Release it before that."""
        if self.end == len(self.data):
            # In equal steps: twice the size would mostly stay empty, in every chunk that waits.
            self.data.extend(bytes(GULP_BYTES))
        return memoryview(self.data)[self.end :]

    def filled(self, size: int) -> None:
        self.end += size

    def walked(self, at: int, rows: int, last: int) -> None:
        """So many more rows end before this offset, the last of which begins there."""
        self.at = at
        if rows:
            self.count, self.last = self.count + rows, last

    def take_out(self, size: int) -> bytes:
        """Takes so many bytes behind the rows out and returns them."""
        found = bytes(self.data[self.at : self.at + size])
        self.data[self.at : self.end - size] = self.data[self.at + size : self.end]
        self.end -= size
        return found

    def cut(self) -> None:
        """Whoever has taken the rows keeps their buffer: what follows them stands in another one."""
        self._begin(self.data[self.at : self.end])
