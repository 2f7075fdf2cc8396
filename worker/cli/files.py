"""Files that commands change: one command at a time, and replaced as a whole, so that a reader sees the old or the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Nobody else reads and writes it meanwhile: two commands at once would lose what one of them adds. Its folder is
    locked, since the file itself is replaced; it is made first, so that all that come lock the same one."""
    folder = Path(os.path.realpath(file)).parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def replace(file: Path, text: str, *, keeps_mode: bool = True) -> None:
    """A new one is its owner's alone; one that is there keeps its mode and its owner if that is wanted."""
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
                os.fchmod(descriptor, before.st_mode & 0o775)
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            out.write(text)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
