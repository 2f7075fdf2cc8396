"""The length-encoded integers of the protocol, which events and values have too."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.mysql.errors import MalformedError

_SIZES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}


def packed_length(data: bytes, at: int) -> tuple[int, int]:
    """Returns the integer at `at` and the offset after it. Raises MalformedError past the end, and for what is no integer."""
    if at >= len(data):
        raise MalformedError("a length is cut short")
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = _SIZES.get(first)
    if size is None:
        raise MalformedError("a length that is none")
    end = at + 1 + size
    if end > len(data):
        raise MalformedError("a length is cut short")
    return int.from_bytes(data[at + 1 : end], "little"), end
