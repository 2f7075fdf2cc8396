"""Files in the folder of an Iceberg table that belong to no snapshot."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Final

from cdcworker.schemas.failpoints import hit

SUFFIXES: Final = (".parquet", ".orc", ".avro")
"""Of data, of deletes, and of manifests and their lists. Metadata of a table, whose name ends with .json, is never an orphan."""


def old_files(home: str, older_s: float) -> list[str]:
    """Returns the paths of files below a table's folders of data and metadata that nobody has changed for so long."""
    found, before = [], time.time() - older_s
    for part in ("data", "metadata"):
        top = os.path.join(home, part)
        # What a link leads to may be the folder of another table.
        for folder, _, names in os.walk(top) if not os.path.islink(top) else ():
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if name.endswith(SUFFIXES) and not os.path.islink(path) and os.stat(path).st_mtime < before:
                        found.append(path)
    return found


def unnamed(paths: Iterable[str], named: Iterable[str]) -> list[str]:
    """Returns the paths of files that `named`, locations of files, do not have. Names of files alone are compared, which hold random
    ids: a table may write the same folder in several ways, such as through a link or after it was moved."""
    kept = {location.rpartition("/")[2] for location in named}
    return [path for path in paths if os.path.basename(path) not in kept]


def remove(paths: Iterable[str]) -> int:
    """Deletes files, with the sums that Hadoop keeps beside them, and returns how many those were."""
    count = 0
    for path in paths:
        hit("maintenance.before_removal")
        folder, name = os.path.split(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            count += 1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, f".{name}.crc"))
    return count
