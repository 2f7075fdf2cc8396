"""Folders that are removed at the end, or by the next start when the program was killed before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import FOLDER_USED

OWNER_FILE = ".owner"


@contextlib.contextmanager
def scratch_folder(given: Path | None = None, *, keep: bool = False) -> Iterator[Path]:
    """Yields `given` (new or empty) or a new temporary folder, which is locked meanwhile and removed afterwards.

    A kept folder loses its lock file, so that it is never removed.
    """
    if given is None:
        prefix = f"cdcworker-{os.geteuid()}-"
        sweep(Path(tempfile.gettempdir()), prefix)
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    else:
        folder = given.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CdcError(FOLDER_USED, f"the folder {folder} is not empty")
    # PostgreSQL may run as another user, who must get through to its own sub-folder.
    folder.chmod(0o711)
    with (folder / OWNER_FILE).open("w", encoding="ascii") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            if keep:
                (folder / OWNER_FILE).unlink(missing_ok=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path, prefix: str) -> None:
    """Removes the folders of programs that have ended: their lock is free."""
    for folder in parent.glob(prefix + "*"):
        with contextlib.suppress(OSError), (folder / OWNER_FILE).open("r", encoding="ascii") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
