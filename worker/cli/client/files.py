"""Files that commands change: one command at a time, and replaced as a whole, so that a reader sees the old or the new
file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Locks the file's folder, since two commands at once would lose a change.

    The folder is locked because the file itself is replaced; it is created first, so that all commands lock the same
    one.
    """
    folder = Path(os.path.realpath(file)).parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace(file: Path, text: str, *, keeps_mode: bool = True) -> None:
    """Replaces the file. A new file is readable by its owner alone; `keeps_mode` keeps mode and owner of an existing
    one."""
    try:
        _replace(Path(os.path.realpath(file)), text, keeps_mode)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(file)) from exc  # by the name that was given, not a scratch file's


def _replace(target: Path, text: str, keeps_mode: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            if keeps_mode and target.exists():
                before = target.stat()
                os.fchmod(descriptor, before.st_mode & 0o755)
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            out.write(text)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
