"""Files of a warehouse in a folder of a file system that all workers share and that has hard links."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from cdcworker.connectors.sink_errors import TARGET_LOCKED
from cdcworker.connectors.warehouses.storage.files import StoredFile, Where
from cdcworker.schemas.errors import CdcError

LOCK_S_MAX = 30.0
"""Who has a lock looks at a file and changes it."""
LOCK_POLL_S = 0.02


class LocalDisk:
    """A `Storage` in a folder."""

    commits_per_sweep = 1
    checks_every_s = 0.0

    def __init__(self, root: Path | str, synced: bool = True) -> None:
        """`synced`: what `write` makes outlives the machine."""
        self._root = Path(root)
        self._synced = synced

    def place(self, path: str) -> str:
        return str(self._root / path)

    def below(self, path: str) -> Self:
        return type(self)(self._root / path, self._synced)

    def begin(self, where: Where) -> None:
        """Nothing is to be found out: a number is taken by a hard link."""

    def has_folder(self, path: str) -> bool:
        return (self._root / path).is_dir()

    def make_folder(self, path: str) -> None:
        (self._root / path).mkdir(parents=True, exist_ok=True)

    def folders(self, path: str) -> list[str]:
        try:
            return [each.name for each in os.scandir(self._root / path) if each.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, path: str, suffix: str) -> list[StoredFile]:
        found = []
        for name in self.names(path, suffix):
            with contextlib.suppress(FileNotFoundError):
                stat = (self._root / path / name).stat()
                found.append(StoredFile(name, stat.st_mtime, stat.st_size))
        return found

    def names(self, path: str, suffix: str) -> list[str]:
        try:
            return [name for name in os.listdir(self._root / path) if name.endswith(suffix)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def modified(self, path: str) -> float:
        return (self._root / path).stat().st_mtime

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def identity(self, path: str) -> tuple[int, int]:
        found = (self._root / path).stat()
        return found.st_ino, found.st_mtime_ns

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def part(self, path: str, first: int, size: int) -> bytes:
        with (self._root / path).open("rb") as file:
            file.seek(first)
            return file.read(size)

    def create(self, path: str, content: bytes) -> None:
        target = self._root / path
        scratch = target.parent / f".{uuid.uuid4().hex}"
        try:
            write_synced(scratch, content)
            os.link(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)
        sync_folder(target.parent)

    def is_late(self, path: str) -> bool:
        return False

    def replace(self, path: str, content: bytes) -> None:
        target = self._root / path
        scratch = target.with_suffix(f".{uuid.uuid4().hex}")
        write_synced(scratch, content)
        scratch.replace(target)
        sync_folder(target.parent)

    def update(self, path: str, change: Callable[[bytes | None], bytes | None]) -> None:
        try:
            before = self.read(path)
        except FileNotFoundError:
            before = None
        content = change(before)
        if content is not None:
            self.replace(path, content)

    @contextlib.contextmanager
    def alone(self, path: str, where: Where) -> Iterator[None]:
        lock = self._root / path
        lock.parent.mkdir(parents=True, exist_ok=True)
        with alone(lock, where):
            yield

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def write(self, path: str, fill: Callable[[Any], None]) -> int:
        target = self._root / path
        fill(target)
        if not self._synced:
            return target.stat().st_size
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def settle(self, path: str) -> None:
        sync_folder(self._root / path)

    def source(self, path: str) -> Path:
        return self._root / path


@contextlib.contextmanager
def alone(lock: Path, where: Where) -> Iterator[None]:
    """Locks a folder against other processes. CdcError TARGET_LOCKED when another one does not release it in time."""
    with lock.open("w") as file:
        deadline = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() > deadline:
                    text = f"a lock was not let go of within {LOCK_S_MAX:g} s"
                    raise CdcError(TARGET_LOCKED, text, where=where) from exc
                time.sleep(LOCK_POLL_S)
        yield


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file that is on disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
