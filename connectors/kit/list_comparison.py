"""Whole lists of rows, compared by key with what they were: the position holds a digest of each row."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.small_source import RowOp

DIGEST_BYTES: Final = 9
DIGEST_CHARS: Final = 12
LIST_ROWS_MAX: Final = 5_000
LIST_BYTES_MAX: Final = 95_000
"""What a position takes of keys and digests."""


class ListChange(NamedTuple):
    """What has happened to one row. `at` is its place in the list; of a row that is gone there is only its key."""

    op: RowOp
    key: Sequence[Any]
    at: int | None


def digest(value: Any) -> str:
    """Returns a short text that two values of JSON, or with bytes in them, share when they are equal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_bytes)
    return base64.b64encode(hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()).decode()


def digests_of(text: Any) -> frozenset[str]:
    """Returns the digests of which a text is made. ValueError for another one."""
    if not isinstance(text, str) or len(text) % DIGEST_CHARS:
        raise ValueError("no list of digests")
    return frozenset(text[at : at + DIGEST_CHARS] for at in range(0, len(text), DIGEST_CHARS))


def compared(
    known: Mapping[str, str] | None, rows: Sequence[tuple[Sequence[Any], Any]]
) -> tuple[Mapping[str, str], Sequence[ListChange]]:
    """Returns the digests of a whole list by key, and what has changed since `known`; None: it was never read. `rows` are pairs of
    a key, which JSON has to have, and a value; of several with one key the last one counts."""
    changes: list[ListChange] = []
    found: dict[str, str] = {}
    last = {json.dumps(list(key), separators=(",", ":")): at for at, (key, _) in enumerate(rows)}
    for name, at in sorted(last.items(), key=lambda item: item[1]):
        (key, value), before = rows[at], (known or {}).get(name)
        mark = found[name] = digest(value)
        if before != mark:
            changes.append(ListChange("r" if known is None else "c" if before is None else "u", key, at))
    changes += [ListChange("d", json.loads(name), None) for name in known or {} if name not in found]
    return found, changes


def is_too_long(found: Mapping[str, str]) -> bool:
    """Whether a position has no room for these digests."""
    return len(found) > LIST_ROWS_MAX or len(json.dumps(dict(found))) > LIST_BYTES_MAX


def _bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    raise TypeError(f"no digest of {type(value).__name__}")
