"""Checksums of rows whose texts a client has made: the same that a database computes of its own texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cdcworker.connectors.verify.lake_texts import joined
from cdcworker.connectors.verify.plan import Key
from cdcworker.connectors.verify.sql import FINE


def hash_of(texts: Sequence[str | None]) -> int:
    """Returns the checksum of a row."""
    return int(_md5(joined(texts))[:16], 16)


def short_hash(text: str | None) -> str:
    """Returns what tells the values of a column apart."""
    return "~" if text is None else _md5(text.encode())[:8]


def parts_of(key: Key, coarse: int) -> tuple[int, int]:
    """Returns the coarse and the fine part that a row's key lies in, as a database computes them."""
    digits = _md5(joined(key))
    part = int(digits[:8], 16) % coarse if coarse > 1 else 0
    return part, part * FINE + int(digits[8:16], 16) % FINE


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
