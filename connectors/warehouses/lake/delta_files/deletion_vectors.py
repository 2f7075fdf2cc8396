"""Deletion vectors: which rows of a data file are gone, as Delta's protocol stores them (RoaringBitmapArray)."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.warehouses.storage.files import Storage

if TYPE_CHECKING:
    import numpy as np

    Rows = np.ndarray[Any, Any]

MAGIC: Final = 1681511377
"""Of the portable form, the only one that the protocol has."""
INLINE_BYTES_MAX: Final = 512
"""A larger one is a file of its own: every reader of the log would carry it."""
_NO_RUNS, _RUNS = 12346, 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_OFFSETS_FROM = 4
"""A bitmap with runs has offsets from this number of containers on."""
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: number for number, letter in enumerate(_ALPHABET)}


def base85(data: bytes) -> str:
    """Z85, padded with zero bytes to words of four."""
    data += bytes(-len(data) % 4)
    out: list[str] = []
    for (word,) in struct.iter_unpack(">I", data):
        digits = []
        for _ in range(5):
            word, digit = divmod(word, 85)
            digits.append(_ALPHABET[digit])
        out += reversed(digits)
    return "".join(out)


def from_base85(text: str) -> bytes:
    if len(text) % 5:
        raise ValueError("a text in base 85 is cut off")
    out = bytearray()
    for at in range(0, len(text), 5):
        word = 0
        for letter in text[at : at + 5]:
            word = word * 85 + _DIGITS[letter]
        out += word.to_bytes(4, "big")
    return bytes(out)


def packed(rows: Rows) -> bytes:
    """Returns sorted, distinct numbers of rows as a serialized bitmap."""
    import numpy as np

    starts, ends = _ranges(rows >> 32)
    out = [struct.pack("<iq", MAGIC, len(starts))]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        some = rows[start:end]
        out += [struct.pack("<i", int(some[0] >> 32)), _bitmap((some & 0xFFFFFFFF).astype(np.uint32))]
    return b"".join(out)


def _ranges(numbers: Rows) -> tuple[Rows, Rows]:
    """Returns where each of the different ones among sorted numbers begins and ends."""
    import numpy as np

    edges = np.flatnonzero(np.diff(numbers)) + 1
    return np.append(0, edges)[: len(numbers)], np.append(edges, len(numbers))[: len(numbers)]


def _bitmap(rows: Rows) -> bytes:
    import numpy as np

    starts, ends = _ranges(rows >> 16)
    keys, counts = rows[starts] >> 16, ends - starts
    head = struct.pack("<ii", _NO_RUNS, len(keys))
    pairs = np.empty((len(keys), 2), "<u2")
    pairs[:, 0], pairs[:, 1] = keys, counts - 1
    bodies = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        low = (rows[start : start + count] & 0xFFFF).astype("<u2")
        if count <= _ARRAY_MAX:
            bodies.append(low.tobytes())
        else:
            bits = np.zeros(1 << 16, np.bool_)
            bits[low] = True
            bodies.append(np.packbits(bits, bitorder="little").tobytes())
    sizes = np.array([len(body) for body in bodies], np.int64)
    begin = len(head) + pairs.nbytes + 4 * len(keys)
    offsets = (begin + np.cumsum(sizes) - sizes).astype("<u4")
    return b"".join([head, pairs.tobytes(), offsets.tobytes(), *bodies])


def unpacked(data: bytes) -> Rows:
    """The other way round. ValueError for what is no such bitmap."""
    import numpy as np

    try:
        magic, count = struct.unpack_from("<iq", data)
        if magic != MAGIC:
            raise ValueError("a deletion vector of an unknown form")
        at, found = 12, []
        for _ in range(count):
            (key,) = struct.unpack_from("<i", data, at)
            low, at = _of_bitmap(data, at + 4)
            found.append(low + (key << 32))
    except struct.error as exc:
        raise ValueError("a deletion vector is cut off") from exc
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _of_bitmap(data: bytes, at: int) -> tuple[Rows, int]:
    """The rows of one bitmap of 32 bits, and where it ends."""
    import numpy as np

    (cookie,) = struct.unpack_from("<I", data, at)
    runs = np.zeros(0, np.bool_)
    if cookie & 0xFFFF == _RUNS:
        count, at = (cookie >> 16) + 1, at + 4
        size = (count + 7) // 8
        runs = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")[:count].astype(np.bool_)
        at += size
    elif cookie == _NO_RUNS:
        (count,), at = struct.unpack_from("<i", data, at + 4), at + 8
        runs = np.zeros(count, np.bool_)
    else:
        raise ValueError("a bitmap of an unknown form")
    pairs = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2).astype(np.int64)
    at += 4 * count
    if not runs.any() or count >= _OFFSETS_FROM:
        at += 4 * count
    found = [np.empty(0, np.int64)]
    for (key, less), run in zip(pairs.tolist(), runs.tolist(), strict=True):
        low, at = _of_container(data, at, less + 1, run)
        found.append(low + (key << 16))
    return np.concatenate(found), at


def _of_container(data: bytes, at: int, count: int, run: bool) -> tuple[Rows, int]:
    import numpy as np

    if run:
        (number,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * number, at + 2).reshape(number, 2).astype(np.int64)
        rows = [np.arange(first, first + more + 1) for first, more in pairs.tolist()]
        return np.concatenate(rows) if rows else np.empty(0, np.int64), at + 2 + 4 * number
    if count <= _ARRAY_MAX:
        return np.frombuffer(data, "<u2", count, at).astype(np.int64), at + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), bitorder="little")
    return np.flatnonzero(bits), at + _BITMAP_BYTES


def read(files: Storage, vector: Mapping[str, Any]) -> Rows:
    """Returns the rows that a descriptor in the log says are gone. ValueError for one that this cannot read, or whose file
    does not lie in the table's folder."""
    kind, text, size = vector["storageType"], str(vector["pathOrInlineDv"]), int(vector["sizeInBytes"])
    if kind == "i":
        return unpacked(from_base85(text)[:size])
    if kind != "u" or len(text) < 20:
        raise ValueError("a deletion vector in another place")
    raw = files.part(file_of(text), int(vector.get("offset") or 0), 4 + size + 4)
    if len(raw) != 8 + size or int.from_bytes(raw[:4], "big") != size:
        raise ValueError("the file of a deletion vector is cut off")
    if int.from_bytes(raw[-4:], "big") != zlib.crc32(raw[4:-4]):
        raise ValueError("the file of a deletion vector is broken")
    return unpacked(raw[4:-4])


def file_of(text: str) -> str:
    """Returns the path of the file that a descriptor with this `pathOrInlineDv` names below the table's folder."""
    prefix = text[:-20]
    if prefix and not prefix.isalnum():
        raise ValueError("a deletion vector in another place")
    name = f"deletion_vector_{uuid.UUID(bytes=from_base85(text[-20:]))}.bin"
    return f"{prefix}/{name}" if prefix else name


class VectorFile:
    """The deletion vectors of one commit: small ones go into the log, the others into one file."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self._parts = [b"\x01"]

    def add(self, rows: Rows) -> dict[str, Any]:
        """Returns the descriptor of a vector of these sorted, distinct rows."""
        data = packed(rows)
        known = {"sizeInBytes": len(data), "cardinality": len(rows)}
        if len(data) <= INLINE_BYTES_MAX:
            return {"storageType": "i", "pathOrInlineDv": base85(data), **known}
        offset = sum(map(len, self._parts))
        self._parts.append(len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big"))
        return {"storageType": "u", "pathOrInlineDv": base85(self.id.bytes), "offset": offset, **known}

    @property
    def name(self) -> str:
        return f"deletion_vector_{self.id}.bin"

    @property
    def content(self) -> bytes:
        """Empty: there is nothing to be written."""
        return b"".join(self._parts) if len(self._parts) > 1 else b""
