"""The file source: each line of a growing file is a record of one topic, once and in order."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from cdcworker.connectors.api.context import CheckFinding, Config, TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.config.common_keys import ACCEPTED, SOURCE_KEYS, delivery_checks
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between
from cdcworker.connectors.config.topic_creation import group_keys
from cdcworker.connectors.file.lines import (
    BYTES,
    JSON,
    STRING,
    TOPIC_NAME,
    UNREADABLE_LINE,
    converter_keys,
    file_key,
    line_encoder,
    no_access,
)
from cdcworker.connectors.file.opening import opened
from cdcworker.schemas.change import JsonObject, OutRecord, PollBatch
from cdcworker.schemas.errors import CdcError, Where, declare

CHANGED: Final = declare(
    "file.source_changed",
    "config",
    "The file is not the one that was read so far: it is shorter, or other bytes stand before the position",
    "Files may only grow. Put the file back, or create the connector under another name to read the new one.",
)
LINE_TOO_LONG: Final = declare(
    "file.line_too_long", "data", "A line does not end within the limit", "Correct the file at the offset named."
)
POSITION_INVALID: Final = declare(
    "file.position_invalid",
    "config",
    "The stored position is not one of this source",
    "Reset the connector's offsets, or give it another name.",
)

VERSION: Final = 1
READ_BYTES: Final = 262_144
LINE_BYTES_MAX: Final = 1_000_000
"""Below what a topic takes by default."""
TAIL_BYTES: Final = 1_024
"""So many bytes before the position are compared to know the file again."""
POLL_S: Final = 0.1
LOOK_S: Final = 1.0

CONFIG_DEF = ConfigDef(
    [
        file_key("The file to read; it may appear later, and grow."),
        ConfigKey(
            "topic",
            required=True,
            importance="HIGH",
            group="File",
            validator=TOPIC_NAME,
            doc="Where the lines go.",
            topics="name",
        ),
        ConfigKey(
            "batch.size", "INT", 2_000, group="File", validator=between(1, 100_000), doc="Most lines of one batch."
        ),
        *converter_keys(STRING, BYTES, JSON),
        *SOURCE_KEYS,
    ],
    accepted={
        **ACCEPTED,
        "name": "",
        "connector.class": "",
        "tasks.max": "One file is read by one task.",
        "errors.tolerance": "A line that cannot be converted halts the task.",
    },
    check=delivery_checks,
    more=group_keys,
)


class FileSource:
    """Lines in. Its position is a byte offset, so what stands before it must stay as it is."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def __init__(self, config: Config) -> None:
        self._config = dict(config)

    def split(self, tasks_max: int) -> Sequence[Config]:
        del tasks_max
        return [self._config]

    def partition(self, task: int) -> Mapping[str, str | int]:
        """Kafka Connect's: another file has a position of its own."""
        return {"filename": self._config.get("file", "")}

    def task(self, share: Config, context: TaskContext) -> SourceTask:
        return FileSourceTask(CONFIG_DEF.parse(share), context)

    def check_position(self, position: JsonObject) -> None:
        _read_position(position)

    def check_files(self, roots: Sequence[str]) -> None:
        allowed_path(CONFIG_DEF.parse(self._config)["file"], roots)

    def check(self) -> Sequence[CheckFinding]:
        return []


class FileSourceTask:
    """One file, one topic, one partition: the order of the lines is the order of the records."""

    def __init__(
        self, raw: Mapping[str, Any], context: TaskContext, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._raw = raw
        self._context = context
        self._sleep = sleep
        self._topic: str = raw["topic"]
        self._encode = line_encoder(raw["value.converter"], schemas=raw["value.converter.schemas.enable"])
        self._path = Path(raw["file"])
        self._fd = -1
        self._offset = 0
        self._tail = b""
        self._digest = ""
        self._ahead = b""
        self._looked = 0.0

    # -- SourceTask -------------------------------------------------------------------------------------------------

    def open(self, position: JsonObject | None) -> None:
        self._path = allowed_path(self._raw["file"], self._context.file_roots)
        self._offset, self._digest = _read_position(position)
        self._attach()

    def poll(self) -> PollBatch:
        if self._fd < 0 and not self._attach():
            return self._idle()
        lines = self._take_lines()
        if not lines:
            data = os.pread(self._fd, READ_BYTES, self._offset + len(self._ahead))
            if not data:
                return PollBatch() if self._look() else self._idle()
            self._ahead += data
            lines = self._take_lines()
        if not lines:
            return PollBatch()
        records = [self._record(line, at) for line, at in lines]
        position = {
            "v": VERSION,
            "filename": self._raw["file"],
            "position": self._offset,
            "tail": _digest(self._tail),
        }
        return PollBatch(position=position, records=records, idle=b"\n" not in self._ahead)

    def ack(self, position: JsonObject) -> None:
        """The file keeps its lines."""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # -- lines ------------------------------------------------------------------------------------------------------

    def _take_lines(self) -> list[tuple[bytes, int]]:
        """Complete lines and where they begin; what follows the last line end waits."""
        lines: list[tuple[bytes, int]] = []
        begin = 0
        while len(lines) < self._raw["batch.size"]:
            end = self._ahead.find(b"\n", begin)
            if end < 0:
                break
            lines.append((self._ahead[begin:end].removesuffix(b"\r"), self._offset + begin))
            begin = end + 1
        if begin == 0 and len(self._ahead) > LINE_BYTES_MAX:
            where: Where = {"file": str(self._path), "offset": self._offset, "bytes_max": LINE_BYTES_MAX}
            raise CdcError(LINE_TOO_LONG, "a line does not end", where=where)
        done, self._ahead = self._ahead[:begin], self._ahead[begin:]
        self._offset += begin
        self._tail = (self._tail + done[-TAIL_BYTES:])[-TAIL_BYTES:]
        return lines

    def _record(self, line: bytes, at: int) -> OutRecord:
        try:
            return OutRecord(self._topic, None, self._encode(line), None, None)
        except ValueError:
            where: Where = {"file": str(self._path), "offset": at}
            raise CdcError(UNREADABLE_LINE, "the line is not UTF-8", where=where) from None

    def _idle(self) -> PollBatch:
        self._sleep(POLL_S)
        return PollBatch(idle=True)

    # -- the file ---------------------------------------------------------------------------------------------------

    def _attach(self) -> bool:
        """Open the file at its path, if it is there, and make sure that it is the one that was read so far."""
        try:
            fd = opened(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise no_access(exc, self._path) from exc
        try:
            self._know(fd)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._fd, self._ahead = fd, b""
        return True

    def _know(self, fd: int) -> None:
        found = os.fstat(fd)
        length = min(TAIL_BYTES, self._offset)
        tail = os.pread(fd, length, self._offset - length)
        if found.st_size < self._offset or (self._digest and _digest(tail) != self._digest):
            raise self._changed()
        self._tail = tail

    def _look(self) -> bool:
        """Now and then, at the end of the file: has it been cut, or another one been put into its place?"""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        mine = os.fstat(self._fd)
        if mine.st_size < self._offset + len(self._ahead):
            raise self._changed()
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False  # gone: perhaps another one comes
        if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
            return False
        self._digest = _digest(self._tail)
        return self._attach()

    def _changed(self) -> CdcError:
        where: Where = {"key": "file", "file": str(self._path), "offset": self._offset}
        return CdcError(CHANGED, "the file was cut or replaced", where=where)


def _digest(tail: bytes) -> str:
    return hashlib.blake2b(tail, digest_size=8).hexdigest()


def _read_position(position: JsonObject | None) -> tuple[int, str]:
    if position is None:
        return 0, ""
    offset = position.get("position")
    if position.get("v", VERSION) != VERSION or not isinstance(offset, int) or offset < 0:
        raise CdcError(POSITION_INVALID, "the stored position names no offset of the file")
    return offset, str(position.get("tail", ""))
