"""The scratch folders of one run of a sink task."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path

PREFIX = "cdc-sink-"
YOUNG_S = 60.0
"""A folder of the machine's temporary ones may be that old before it is locked."""


def private_folder(path: Path) -> None:
    """Makes the folder with those above it that are missing, each for this user alone."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(0o700, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """An opener of files that are made for this user alone, and through no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class StateFolder:
    """A folder of this run alone, locked while it lives: another run on this machine, older or newer, has its own.
    What runs that died left behind goes away at the next start."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self.path = parent / uuid.uuid4().hex
        self._lock: int | None = None

    def open(self) -> None:
        private_folder(self._parent)
        for other in self._parent.iterdir():
            _remove_unless_held(other)
        self.path.mkdir(0o700)
        self._lock = _take(self.path)

    def close(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


class TemporaryFolder:
    """One of the machine's temporary folders: the path of a socket in it has to be short. What killed runs of this user
    left there goes away with the next one."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = _take(self.path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sweep(parent: Path) -> None:
    for other in parent.glob(PREFIX + "*"):
        try:
            found = other.lstat()
        except OSError:
            continue
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > YOUNG_S:
            _remove_unless_held(other)


def _remove_unless_held(folder: Path) -> None:
    held = _take(folder)
    if held is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _take(folder: Path) -> int | None:
    """A descriptor that holds the lock; None while somebody else has it, and where there is no such folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
