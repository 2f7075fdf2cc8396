"""The file sink's target: a file that only grows, and a ledger beside it that says how far it is true.

A batch is lines appended, made durable, then a ledger with the new length and offsets put into place by a rename: a
process that dies in between leaves bytes that the next owner cuts off. Owners are told apart by their epoch:

- The owner holds a lock on the file for life. A new owner that gets it knows that its predecessor is dead.
- One that does not get it (its predecessor is alive, or stopped) copies the committed part into a new file and puts
  that in its place: whatever the predecessor still writes goes to a file without a name.
- Each owner writes a ledger of its own, named by its epoch; the highest counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdcworker.connectors.file.lines import WRITE_FAILED, no_access
from cdcworker.connectors.file.opening import content, created, opened
from cdcworker.schemas.errors import CdcError, declare

log = logging.getLogger(__name__)

FENCED: Final = declare(
    "file.fenced", "fenced", "Another process writes to the file now", "Nothing: the newer owner goes on."
)
TAKEN: Final = declare("file.taken", "config", "The file belongs to another sink", "Give each sink a file of its own.")
TARGET_CHANGED: Final = declare(
    "file.target_changed",
    "config",
    "The file is shorter than what was written to it",
    "Put the file back, or remove its ledger (`.<file>.ledger-*`) as well to write everything again.",
)
LEDGER_UNREADABLE: Final = declare(
    "file.ledger_unreadable",
    "config",
    "The ledger beside the file cannot be read",
    "Put it back from a copy; without it nobody knows which records the file holds.",
)
IN_USE: Final = declare(
    "file.in_use", "transient", "Another program holds a lock on the file", "End that program, or name another file."
)

Epoch = tuple[int, int]
Offsets = dict[tuple[str, int], int]

LOCK_WAIT_S: Final = 3.0
LOCK_STEP_S: Final = 0.05
COPY_BYTES: Final = 1_048_576


@dataclass(frozen=True)
class FileLedger:
    """`length` bytes of the file hold exactly the records before `offsets`."""

    owner: str
    epoch: Epoch
    length: int
    offsets: Offsets = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            offsets.setdefault(topic, {})[str(partition)] = offset
        return {"v": 1, "owner": self.owner, "epoch": list(self.epoch), "length": self.length, "offsets": offsets}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FileLedger:
        offsets = {(t, int(p)): int(n) for t, parts in value["offsets"].items() for p, n in parts.items()}
        first, second = value["epoch"]
        return cls(str(value["owner"]), (int(first), int(second)), int(value["length"]), offsets)


class FileTarget:
    """One owner's hold of the file. `open` first; after any error the object is closed and thrown away."""

    def __init__(self, path: Path, owner: str, epoch: Epoch, stopping: Callable[[], bool] = lambda: False) -> None:
        self._path = path
        self._owner = owner
        self._epoch = epoch
        self._stopping = stopping
        self._fd = -1
        self._ledger = FileLedger(owner, epoch, 0)
        self._named = re.compile(rf"\.{re.escape(path.name)}\.ledger-(\d+)-(\d+)\.json")

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]:
        return self._ledger.offsets

    @property
    def length(self) -> int:
        return self._ledger.length

    def stored(self) -> Mapping[tuple[str, int], int]:
        """Returns what the newest ledger says, without taking it over."""
        try:
            last = self._newest()
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise no_access(exc, self._path) from exc
        return self._owned(last).offsets if last is not None else {}

    def open(self) -> None:
        """Take the file over as its last owner left it."""
        try:
            locked = self._lock()
            last = self._newest()
            if last is not None and self._owned(last).epoch > self._epoch:
                raise self._fenced()
            if locked:
                self._adopt(last)
            elif last is None:
                raise CdcError(IN_USE, "the file is locked", where=self._where)
            else:
                log.warning("predecessor does not let go, the file is copied bytes=%d", last.length)
                self._ledger = last
                self._replace(opened(self._path, os.O_RDONLY))
            self._put(FileLedger(self._owner, self._epoch, self._ledger.length, dict(self._ledger.offsets)))
            self._forget_older()
        except OSError as exc:
            raise no_access(exc, self._path) from exc

    def append(self, data: bytes, offsets: Mapping[tuple[str, int], int]) -> None:
        """Lines and the offsets after their records: both or none, however it ends."""
        self._require_ownership()
        try:
            at, view = self._ledger.length, memoryview(data)
            while view:
                written = os.pwrite(self._fd, view, at)
                at, view = at + written, view[written:]
            os.fsync(self._fd)
            self._put(FileLedger(self._owner, self._epoch, at, {**self._ledger.offsets, **offsets}))
        except OSError as exc:
            raise CdcError(WRITE_FAILED, exc.strerror or type(exc).__name__, where=self._where) from exc

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Other offsets for the same bytes: whoever owns the file next reads from there."""
        try:
            self._put(FileLedger(self._owner, self._epoch, self._ledger.length, dict(offsets)))
        except OSError as exc:
            raise CdcError(WRITE_FAILED, exc.strerror or type(exc).__name__, where=self._where) from exc

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # -- ownership --------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> dict[str, str | int]:
        return {"key": "file", "file": str(self._path)}

    def _owned(self, ledger: FileLedger) -> FileLedger:
        if ledger.owner != self._owner:
            raise CdcError(TAKEN, "the ledger names another sink", where=self._where | {"owner": ledger.owner})
        return ledger

    def _fenced(self) -> CdcError:
        return CdcError(FENCED, "the ledger names a newer owner", where=self._where)

    def _lock(self) -> bool:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            fd = opened(self._path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(fd, self._path):
                    self._fd, fd = fd, -1
                    return True
            except BlockingIOError:
                if time.monotonic() >= deadline or self._stopping():
                    return False
                time.sleep(LOCK_STEP_S)
            finally:
                if fd >= 0:
                    os.close(fd)

    def _adopt(self, last: FileLedger | None) -> None:
        """The predecessor is dead: cut off what it had not committed."""
        size = os.fstat(self._fd).st_size
        self._ledger = last or FileLedger(self._owner, self._epoch, size)
        if size < self._ledger.length:
            where = self._where | {"bytes": size, "bytes_written": self._ledger.length}
            raise CdcError(TARGET_CHANGED, "the file was cut or removed", where=where)
        if size > self._ledger.length:
            log.info("uncommitted bytes cut off bytes=%d", size - self._ledger.length)
            os.ftruncate(self._fd, self._ledger.length)

    def _require_ownership(self) -> None:
        newest = self._newest()
        if newest is None or newest.epoch > self._epoch:
            raise self._fenced()
        if not _same_file(self._fd, self._path):
            # A predecessor that woke between its look and its rename, or a person: the file is what we have written.
            log.warning("the file was replaced, it is put back bytes=%d", self._ledger.length)
            mine, self._fd = self._fd, -1
            self._replace(mine)

    def _replace(self, source: int) -> None:
        """Put a copy of the committed part in place of whatever is there; takes the descriptor `source` over."""
        scratch = self._path.with_name(f".{self._path.name}.new-{self._epoch[0]}-{self._epoch[1]}")
        try:
            if os.fstat(source).st_size < self._ledger.length:
                raise CdcError(TARGET_CHANGED, "the file was cut or removed", where=self._where)
            fd = created(scratch, os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            at = 0
            while at < self._ledger.length:
                data = os.pread(source, min(COPY_BYTES, self._ledger.length - at), at)
                at += os.pwrite(fd, data, at)
            os.fsync(fd)
            scratch.rename(self._path)
        finally:
            os.close(source)
        self._fd = fd

    # -- ledgers ----------------------------------------------------------------------------------------------------

    def _ledgers(self) -> dict[Epoch, Path]:
        names = ((self._named.fullmatch(name), name) for name in os.listdir(self._path.parent))
        return {(int(m[1]), int(m[2])): self._path.with_name(name) for m, name in names if m}

    def _newest(self) -> FileLedger | None:
        while True:
            found = self._ledgers()
            if not found:
                return None
            try:
                return FileLedger.from_json(json.loads(content(found[max(found)])))
            except FileNotFoundError:
                continue  # a newer owner removed it meanwhile
            except (ValueError, KeyError, TypeError, AttributeError) as exc:
                where = self._where | {"ledger": str(found[max(found)])}
                raise CdcError(LEDGER_UNREADABLE, f"not a ledger: {type(exc).__name__}", where=where) from exc

    def _put(self, ledger: FileLedger) -> None:
        name = f".{self._path.name}.ledger-{ledger.epoch[0]}-{ledger.epoch[1]}.json"
        scratch = self._path.with_name(f"{name}.part")
        fd = created(scratch, os.O_WRONLY)
        try:
            os.write(fd, json.dumps(ledger.to_json()).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        scratch.rename(self._path.with_name(name))
        self._sync_folder()
        self._ledger = ledger

    def _sync_folder(self) -> None:
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _forget_older(self) -> None:
        for epoch, path in self._ledgers().items():
            if epoch < self._epoch:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def _same_file(fd: int, path: Path) -> bool:
    mine = os.fstat(fd)
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
