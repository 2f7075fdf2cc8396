"""The scratch folder of one run of a sink task."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from pathlib import Path


class StateFolder:
    """A folder of this run alone, locked while it lives: another run on this machine, older or newer, has its own.
    What runs that died left behind goes away at the next start."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self.path = parent / uuid.uuid4().hex
        self._lock: int | None = None

    def open(self) -> None:
        self._parent.mkdir(parents=True, exist_ok=True)
        for other in self._parent.iterdir():
            held = self._take(other)
            if held is not None:
                shutil.rmtree(other, ignore_errors=True)
                os.close(held)
        self.path.mkdir()
        self._lock = self._take(self.path)

    @staticmethod
    def _take(folder: Path) -> int | None:
        """A descriptor that holds the lock; None while somebody else has it."""
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock

    def close(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None
