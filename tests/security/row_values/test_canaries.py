"""A canary is found in every form: a search that finds nothing would show nothing."""

from __future__ import annotations

import base64
import json

import pytest

from .canaries import Canaries

ROW = Canaries()
MADE = ROW.row("here")
QUOTED = ROW.row("quoted", b"\x97'8\"\\\x0bS\xf5\x14\"'z")
TEXT = MADE.text
RENDERED = {
    "text": f"a {TEXT} b",
    "quoted": repr(f"it's {TEXT}"),
    "in JSON in JSON": json.dumps(json.dumps({"v": TEXT})),
    "hexadecimal": f"\\x00{TEXT.encode().hex()}00",
    **{f"base64 {n}": base64.b64encode(b"x" * n + TEXT.encode() + b"y").decode() for n in range(3)},
    "document": MADE.document,
    "number": f"Key (id)=({MADE.number}) exists",
    "decimal": base64.b64encode(b"\0" + MADE.number.to_bytes(8, "big")).decode(),
    "bytes": MADE.raw.hex(),
    "bytes of Python": f"{MADE.raw!r}",
    "bytes of Python in JSON": json.dumps({"v": repr(MADE.raw)}),
    "quoted bytes of Python in JSON": json.dumps({"v": repr(QUOTED.raw)}),
    "bytes for URLs": base64.urlsafe_b64encode(b"abc" + MADE.raw).decode(),
    "bytes as text": json.dumps(MADE.raw.decode("latin-1")),
    "list": str(list(MADE.raw)),
    "date": f"{MADE.day} 00:00",
    "timestamp": str(MADE.moment),
}


@pytest.mark.parametrize("how", RENDERED)
def test_a_value_is_found_however_it_is_written(how: str) -> None:
    assert ROW.found(RENDERED[how])


def test_what_is_no_canary_is_not_found() -> None:
    told = f"canary 1{MADE.number} {MADE.number}1 {MADE.raw[:6].hex()} {TEXT[:-1]} {TEXT.encode()[:-2].hex()}"
    assert ROW.found(told) == []
    assert Canaries().found(TEXT) == []
