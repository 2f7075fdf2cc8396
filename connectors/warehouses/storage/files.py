"""The files of a warehouse, by their paths below its folder, whatever holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

Where = Mapping[str, str | int]
"""What an error says of its place."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing has it."""

    name: str
    """The last part of its path."""
    modified: float
    """Seconds since 1970 by the clock of the storage."""
    size: int


class Storage(Protocol):
    """Files below one folder. Paths are relative to it, their parts joined by `/`.

    A file is there whole or not at all, and outlives the machine, when the call that writes it returns. OSError (a missing file:
    FileNotFoundError) or CdcError where the storage refuses something.
    """

    commits_per_sweep: int
    """After so many commits of a table files that nobody needs any more are looked for; each time costs requests."""

    checks_every_s: float
    """How long a file that was seen counts as being there; each look costs a request."""

    def place(self, path: str) -> str:
        """Returns how people name a file or folder: its path on this machine, or its URI."""

    def below(self, path: str) -> Self:
        """Returns the files of a folder, by their paths below it."""

    def begin(self, where: Where) -> None:
        """Called once before a task writes. CdcError where the storage cannot keep two writers apart."""

    def has_folder(self, path: str) -> bool:
        """Returns whether there is a folder; in an object store, whether any file lies below it."""

    def make_folder(self, path: str) -> None:
        """Makes a folder with its parents where the storage has folders."""

    def folders(self, path: str) -> list[str]:
        """Returns the names of the folders in a folder; none where it is not there."""

    def files(self, path: str, suffix: str) -> list[StoredFile]:
        """Returns the files of a folder whose names end so; none where it is not there."""

    def names(self, path: str, suffix: str) -> list[str]:
        """Returns the names of these files."""

    def exists(self, path: str) -> bool:
        """Returns whether there is a file."""

    def modified(self, path: str) -> float:
        """Returns when a file was written, in seconds since 1970."""

    def size(self, path: str) -> int:
        """Returns how many bytes a file has."""

    def identity(self, path: str) -> Any:
        """Returns what tells a file from another one that comes in its place."""

    def read(self, path: str) -> bytes:
        """Returns what a file holds."""

    def part(self, path: str, first: int, size: int) -> bytes:
        """Returns so many bytes of a file; fewer where it ends before."""

    def create(self, path: str, content: bytes) -> None:
        """Makes a file that nobody has made. Of several who try one alone succeeds; the others get FileExistsError. A call that had
        its answer lost on the way knows its own file."""

    def is_late(self, path: str) -> bool:
        """Returns whether the file at this path is of a `create` of this process that failed without an answer."""

    def replace(self, path: str, content: bytes) -> None:
        """Makes a file, or puts other content into it."""

    def update(self, path: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replaces what a file holds (None: it is not there) by what `change` makes of it (None: it stays so). Nobody else's
        change comes between; to be called inside `alone`. `change` may be called again."""

    def alone(self, path: str, where: Where) -> AbstractContextManager[None]:
        """Keeps others out who ask for the same path, where the storage has locks. CdcError TARGET_LOCKED when somebody does not
        let go. An object store has none: there `create` and `update` alone keep writers apart."""

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files; those that are gone already are fine."""

    def write(self, path: str, fill: Callable[[Any], None]) -> int:
        """Makes a file of what `fill` writes into the sink that it gets, which pyarrow takes; returns the number of bytes. The file's
        name may be lost with the machine until `settle` was called."""

    def settle(self, path: str) -> None:
        """Returns when the names in a folder outlive the machine."""

    def source(self, path: str) -> Any:
        """Returns what pyarrow reads a file from."""
