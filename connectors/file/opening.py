"""How the file connectors open a file: a regular one under its only name, through no link."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LEDGER_BYTES_MAX: Final = 1 << 26


def opened(path: Path, flags: int) -> int:
    """Returns a descriptor, of a new file with the mode 0644 less the process's mask. OSError for anything else than a
    regular file, and for one with a second name: a hard link may lead out of the folders that are open to connectors."""
    fd = os.open(path, flags | _SAFE, 0o644)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        if found.st_nlink > 1:
            raise OSError(0, "the file has a second name (a hard link)")
    except BaseException:
        os.close(fd)
        raise
    return fd


def created(path: Path, flags: int) -> int:
    """Returns a descriptor of a new file, which takes the place of what was there."""
    path.unlink(missing_ok=True)
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | _SAFE, 0o644)


def content(path: Path) -> bytes:
    with os.fdopen(opened(path, os.O_RDONLY), "rb") as file:
        return file.read(LEDGER_BYTES_MAX)
