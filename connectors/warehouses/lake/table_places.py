"""Where a table's files lie, of which its catalog gives the locations: on this machine, in the warehouse's bucket, or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """The files that this process reaches. `path` returns the path of a location among them; None: it lies elsewhere."""

    files: Storage
    path: Callable[[str], str | None]
    is_here: bool
    """Whether they lie on a file system of this machine."""


def on_this_machine(is_local: bool) -> TablePlaces:
    """`is_local`: locations without a scheme are on this machine. The files are as durable as those of Java's clients: their
    bytes are left to the operating system."""

    def path(location: str) -> str | None:
        return local_path(location) if is_local or not location.startswith("/") else None

    return TablePlaces(LocalDisk("/", synced=False), path, True)


def in_store(files: Storage) -> TablePlaces:
    """Returns the places below the folder of these files."""
    root = files.place("")

    def path(location: str) -> str | None:
        found = location.removeprefix(root)
        # Java's clients take `..` for the folder above, a store of objects for a name.
        return found if found != location and os.path.normpath(found) == found else None

    return TablePlaces(files, path, False)


def local_path(location: str) -> str | None:
    """Returns the path of a location on this machine; None: it lies in another store."""
    scheme, colon, rest = location.partition(":")
    if location.startswith("/"):
        return location
    path = "/" + rest.lstrip("/")
    is_here = not rest.startswith("//") or rest.startswith("///")
    return path if colon and scheme == "file" and is_here else None
