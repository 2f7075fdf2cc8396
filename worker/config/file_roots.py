"""The folders in which the file connectors may read and write: the operator's property, not the connectors' configs,
names them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cdcworker.connectors.config.definition import invalid, parse_list

FILE_ROOTS: Final = "file.connector.paths"
FILE_ROOT: Final = "/tmp/cdcworker"  # noqa: S108  for trials; the operator names others
"""The default, a folder for trials: a connector's author must not read every file of the worker's user."""


def file_roots(providers: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the folders from the properties that a task is given."""
    return tuple(parse_list(providers.get(FILE_ROOTS, FILE_ROOT)))


def checked_roots(folders: Iterable[str], default: str = FILE_ROOT) -> list[str]:
    """Returns warnings about folders that others than this worker's user may change. CdcError `config.invalid` where the
    default is such a folder: nobody has chosen it, and everybody may make it. It is made if it is not there.

    Whoever may change a folder can put links and files there, and so read and alter what connectors read and write.
    """
    warnings = []
    for folder in folders:
        if folder == default:
            with contextlib.suppress(OSError):
                os.mkdir(folder, 0o700)
        for problem in _problems(folder):
            if folder == default:
                text = f"{folder} {problem}: remove it, or name another folder that is the worker's own"
                raise invalid([(FILE_ROOTS, text)])
            warnings.append(f"{FILE_ROOTS}: {folder} {problem}")
    return warnings


def _problems(folder: str) -> Iterator[str]:
    """Yields what is wrong with a folder, and with the link that it may be. One that is not there is not judged."""
    trusted = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        if os.lstat(folder).st_uid not in trusted or os.stat(folder).st_uid not in trusted:
            yield "belongs to another user"
        mode = os.stat(folder).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield "may be written by every user"
