"""Appends a line of JSON per record to a file, or to any descriptor that it is given."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from cdcworker.connectors.api.record_target import RecordBatch, TargetRecord, TargetUnavailable
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.json_values import JsonValues, encoded
from cdcworker.schemas.errors import CdcError

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def opened(path: Path) -> int:
    """Returns a descriptor of a regular file that has no second name. CdcError for anything else."""
    try:
        fd = os.open(path, _FLAGS, 0o644)
    except OSError as exc:
        raise CdcError(TARGET_REFUSES, exc.strerror or type(exc).__name__, where={"key": "file"}) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise CdcError(TARGET_REFUSES, "not a regular file with one name", where={"key": "file"})
    return fd


class LinesTarget:
    """Lines at the end of what a descriptor leads to. Lines of a batch that was broken off may come again."""

    def __init__(self, fd: int, *, owned: bool) -> None:
        """`owned`: the descriptor is closed with the target."""
        self._fd = fd
        self._owned = owned
        self._values = JsonValues(numeric=True)

    def write(self, batch: RecordBatch) -> None:
        data = memoryview(encoded("".join(map(self._line, batch.records))))
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as exc:
            raise TargetUnavailable(TARGET_UNAVAILABLE, exc.strerror or type(exc).__name__) from None

    def close(self) -> None:
        if self._owned:
            self._owned = False
            os.close(self._fd)

    def _line(self, record: TargetRecord) -> str:
        text = self._values.text
        return (
            f'{{"id":"{record.id}","topic":{text(None, record.topic)},"partition":{record.partition},'
            f'"offset":{record.offset},"timestamp":{record.timestamp_ms},'
            f'"key":{text(record.key_schema, record.key)},"value":{text(record.value_schema, record.value)}}}\n'
        )
