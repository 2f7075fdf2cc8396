"""MySQL's binary JSON, from bytes written by hand after the published format."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from cdcworker.connectors.mysql.errors import MalformedError, UndecodableError
from cdcworker.connectors.mysql.types import json_text
from hypothesis import given
from hypothesis import strategies as st

OPAQUE = 15


def encode(value: Any, wide: bool = False) -> bytes:
    """A document as MySQL stores it, in small or in large containers."""
    kind, body = encode_value(value, wide)
    return bytes([kind]) + body


def encode_value(value: Any, wide: bool) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        for kind, form in ((5, "<h"), (7, "<i"), (9, "<q"), (10, "<Q")):
            try:
                return kind, struct.pack(form, value)
            except struct.error:
                continue
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        data = value.encode()
        return 12, length(len(data)) + data
    return encode_container(value, wide)


def length(size: int) -> bytes:
    out = bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])


def encode_container(value: Any, wide: bool) -> tuple[int, bytes]:
    form, size = ("<I", 4) if wide else ("<H", 2)
    is_object = isinstance(value, dict)
    keys = [key.encode() for key in value] if is_object else []
    items = list(value.values()) if is_object else value
    head = 2 * size + len(keys) * (size + 2) + len(items) * (1 + size)
    tail, entries, names = b"".join(keys), b"", b""
    at = head
    for key in keys:
        names += struct.pack(form, at) + struct.pack("<H", len(key))
        at += len(key)
    for item in items:
        kind, body = encode_value(item, wide)
        if kind in (4, 5, 6) or (wide and kind in (7, 8)):
            entries += bytes([kind]) + body.ljust(size, b"\xff" if body[-1:] > b"\x7f" else b"\0")
        else:
            entries += bytes([kind]) + struct.pack(form, head + len(tail))
            tail += body
    body = struct.pack(form, len(items)) + struct.pack(form, head + len(tail)) + names + entries + tail
    return (0 if is_object else 2) + wide, body


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=140)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_a_document_is_printed_as_the_same_json(value: Any, wide: bool) -> None:
    assert json.loads(json_text.to_text(encode(value, wide))) == value


def test_the_text_has_blanks_as_the_server_prints_them() -> None:
    assert json_text.to_text(encode({"a": [1, -2, None], "é": '漢"\n'})) == '{"a": [1, -2, null], "é": "漢\\"\\n"}'
    assert json_text.to_text(encode({})) == "{}"
    assert json_text.to_text(b"") == "null"


def opaque(code: int, data: bytes) -> bytes:
    return bytes([OPAQUE, code]) + length(len(data)) + data


def packed(year: int, month: int, day: int, time: tuple[int, int, int, int]) -> bytes:
    hour, minute, second, micros = time
    days = (year * 13 + month) << 5 | day
    return struct.pack("<q", (days << 17 | hour << 12 | minute << 6 | second) << 24 | micros)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (opaque(246, b"\x05\x02\x80\x0c\x22"), "12.34"),
        (opaque(246, b"\x05\x02\x7f\xf3\xdd"), "-12.34"),
        (opaque(12, packed(2024, 2, 29, (12, 34, 56, 7))), '"2024-02-29 12:34:56.000007"'),
        (opaque(7, packed(2024, 2, 29, (12, 34, 56, 0))), '"2024-02-29 12:34:56.000000"'),
        (opaque(10, packed(2024, 2, 29, (0, 0, 0, 0))), '"2024-02-29"'),
        (opaque(11, struct.pack("<q", (838 << 12 | 59 << 6 | 58) << 24 | 5)), '"838:59:58.000005"'),
        (opaque(11, struct.pack("<q", -((1 << 12 | 2 << 6 | 3) << 24))), '"-01:02:03.000000"'),
        (opaque(252, b"\x00\x01"), '"base64:type252:AAE="'),
    ],
)
def test_values_that_json_has_not(document: bytes, text: str) -> None:
    assert json_text.to_text(document) == text


@pytest.mark.parametrize(
    "document",
    [
        *(b"\x02\x01", b"\x02\xff\x00\x04\x00", b"\x02\x01\x00\x40\x00\x05\x01\x00", b"\x0c\xff\xff\xff\xff\xff\x01"),
        *(b"\x0c\x05abc", b"\x04\x09", b"\x0b" + struct.pack("<d", float("nan")), b"\x33", b"\x09\x01"),
        *(opaque(246, b"\x42\x02\x80"), opaque(246, b"\x05\x02\x80\x0c"), opaque(246, b"\x05\x02\xff\xff\xff")),
    ],
)
def test_a_document_that_is_none_is_refused(document: bytes) -> None:
    with pytest.raises(MalformedError):
        json_text.to_text(document)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UndecodableError):
        json_text.to_text(b"\x0c\x01\xff")


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> Any:
        return [nested(depth - 1)] if depth else 1

    assert json_text.to_text(encode(nested(100), wide=True)).count("[") == 100
    with pytest.raises(MalformedError, match="deeply"):
        json_text.to_text(encode(nested(102), wide=True))
