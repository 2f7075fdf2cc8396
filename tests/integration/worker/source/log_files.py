"""Takes markers of transactions out of a stopped broker's files: what a broker leaves that ends one without them."""

from __future__ import annotations

import struct
from pathlib import Path

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Of a record batch: base offset, length, leader epoch, magic, checksum, attributes, last offset delta, two
timestamps, producer id, its epoch, base sequence, records."""
LENGTH_FROM = 12
IS_CONTROL = 0x20
KIND = struct.Struct(">h")
KIND_AT = 7
"""In a marker's only record, behind its lengths, the attributes and the version of its key."""
KINDS = ("abort", "commit")
CHECKPOINTS = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint")


def cut_last_marker(directory: Path, topic: str, partition: int, kind: str) -> bool:
    """Whether the partition's log ended with a marker of this kind, which is gone now. The broker must not run."""
    data = directory / "data"
    folder = data / f"{topic}-{partition}"
    segment = sorted(folder.glob("*.log"))[-1]
    at = _last_marker(segment.read_bytes(), kind)
    if at is None:
        return False
    with segment.open("r+b") as file:
        file.truncate(at)
    # What a broker remembers of a log besides the log; it builds it again.
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for path in folder.glob(pattern):
            path.unlink()
    for name in CHECKPOINTS:
        (data / name).unlink(missing_ok=True)
    return True


def _last_marker(content: bytes, kind: str) -> int | None:
    """Where the last batch begins if it is a marker of this kind."""
    at, last, attributes = 0, 0, 0
    while at + HEADER.size <= len(content):
        _, length, _, _, _, attributes, *_ = HEADER.unpack_from(content, at)
        if length <= 0:
            break
        last, at = at, at + LENGTH_FROM + length
    if not attributes & IS_CONTROL:
        return None
    (found,) = KIND.unpack_from(content, last + HEADER.size + KIND_AT)
    return last if KINDS[found] == kind else None
