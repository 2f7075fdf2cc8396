"""Files of a warehouse in a store of objects that does conditional puts: what is the same for all of them.

An answer may be lost, so a put that failed may have succeeded, or may still arrive. A file that `create` makes carries a token by
which its writer finds out whose file is there; what `replace` and `update` write is the same when it is written again.
"""

from __future__ import annotations

import contextlib
import errno
import io
import random
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

from cdcworker.connectors.sink_errors import TARGET_STORE_UNFIT, TARGET_UNREACHABLE
from cdcworker.connectors.warehouses.storage.files import StoredFile, Where
from cdcworker.schemas.errors import CdcError

RETRY_S_MAX: Final = 20.0
"""So long a request is repeated; then the task waits for the store as for any target that is away."""
DELAY_S_MIN: Final = 0.1
DELAY_S_MAX: Final = 2.0
CHANGES_MAX: Final = 10
"""So often a file is read again that others change meanwhile."""
MARKER: Final = "_cdcworker/conditional-put"
"""A file by which it is found out whether the store does conditional puts."""
WHOLE_BYTES: Final = 32 * 1024 * 1024
"""Larger files are read in ranges."""
Result = TypeVar("Result")


class Conflict(Exception):
    """The condition of a put does not hold."""


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """What a store says of an object. `tag` is what a conditional put names, `token` that of the `create` which made it, or empty."""

    modified: float
    size: int
    tag: str
    token: str


@dataclass(frozen=True, slots=True)
class ObjectContent:
    """What an object, or a range of it, holds. `total` is the size of the whole."""

    content: bytes
    tag: str
    total: int


@dataclass(frozen=True, slots=True)
class Condition:
    """When a put is done: where there is no object, or where the one that is there has this tag; by default always."""

    absent: bool = False
    tag: str = ""


ALWAYS: Final = Condition()
ABSENT: Final = Condition(absent=True)


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """A page of a listing: what folders are called, objects by their names, and what asks for the next page."""

    folders: list[str]
    files: list[StoredFile]
    more: Any = None


class ObjectStore(ABC):
    """A `Storage` below a prefix of a bucket. A kind of store says how its requests are sent, each once; errors are those of the
    client, which `_error` translates."""

    commits_per_sweep = 10
    checks_every_s = 60.0
    scheme: ClassVar[str]
    foreign_tag: ClassVar[str]
    """A tag that no object has."""

    def __init__(self, client: Callable[[], Any], bucket: str, prefix: str) -> None:
        """`client` returns a client that repeats nothing by itself; it is called once. `bucket` is as a URI has it."""
        self._open = client
        self._opened: Any = None
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._where: Where = {"bucket": bucket}
        self._unanswered: dict[str, set[str]] = {}
        """By key, the tokens of files that may be there or not."""

    @property
    def _client(self) -> Any:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    @property
    def bucket(self) -> str:
        return self._bucket

    @property
    def prefix(self) -> str:
        """The part of each key before a path; empty, or with a / at its end."""
        return self._prefix

    def place(self, path: str) -> str:
        return f"{self.scheme}://{self._bucket}/{self._prefix}{path}"

    def below(self, path: str) -> Self:
        made = type(self)(lambda: self._client, self._bucket, f"{self._prefix}{path}")
        made._unanswered = self._unanswered
        return made

    # -- requests of a kind of store ----------------------------------------------------------------------------------

    @abstractmethod
    def _error(self, exc: Exception, handled: BaseException | None) -> Exception:
        """Returns the error for what the client raised: FileNotFoundError, EOFError, `Conflict`, CdcError. `handled` is what
        was being handled already when the request was sent."""

    @abstractmethod
    def _page(self, prefix: str, more: Any, limit: int | None) -> ObjectPage:
        """Returns what lies below a prefix, which ends with / or is empty, one folder deep."""

    @abstractmethod
    def _status(self, key: str) -> ObjectStatus:
        """Returns what is known of an object."""

    @abstractmethod
    def _content(self, key: str, first: int, end: int | None) -> ObjectContent:
        """Returns an object, or the bytes of it from `first` to before `end`."""

    @abstractmethod
    def _send(self, key: str, content: bytes, condition: Condition, token: str) -> None:
        """Puts an object."""

    @abstractmethod
    def _drop(self, keys: list[str]) -> None:
        """Removes objects, as many as one likes; those that are not there are fine."""

    def _again(self, request: Callable[[], Result], retry_s: float | None = None) -> Result:
        """Sends a request, again where the store is busy or does not answer."""
        handled = sys.exception()
        deadline, delay = time.monotonic() + (RETRY_S_MAX if retry_s is None else retry_s), DELAY_S_MIN
        while True:
            try:
                return request()
            except Exception as exc:
                error = self._error(exc, handled)
                passing = isinstance(error, CdcError) and error.code == TARGET_UNREACHABLE
                if not passing or time.monotonic() + delay > deadline:
                    raise error from exc
            time.sleep(delay * (0.5 + random.random() / 2))  # noqa: S311  spreads retries, protects nothing
            delay = min(DELAY_S_MAX, 2 * delay)

    # -- what it can --------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """CdcError where the bucket cannot be listed now; nothing is changed there and nothing repeated."""
        self._again(lambda: self._page(self._prefix, None, 1), retry_s=0.0)

    def begin(self, where: Where) -> None:
        for _ in range(2):
            with contextlib.suppress(FileExistsError):
                self.create(MARKER, b"")
                continue
            with contextlib.suppress(Conflict):
                self._put(MARKER, b"", Condition(tag=self.foreign_tag))
                break
            return
        text = "the object store does not refuse a put whose condition does not hold"
        raise CdcError(TARGET_STORE_UNFIT, text, where=where)

    # -- folders ------------------------------------------------------------------------------------------------------

    def has_folder(self, path: str) -> bool:
        found = self._again(lambda: self._page(self._below(path), None, 1))
        return bool(found.folders or found.files)

    def make_folder(self, path: str) -> None:  # noqa: B027  nothing is to be done, for any kind
        """A store of objects has no folders."""

    def folders(self, path: str) -> list[str]:
        return self.entries(path)[0]

    def files(self, path: str, suffix: str) -> list[StoredFile]:
        return [file for file in self.entries(path)[1] if file.name.endswith(suffix)]

    def names(self, path: str, suffix: str) -> list[str]:
        return [file.name for file in self.files(path, suffix)]

    def entries(self, path: str) -> tuple[list[str], list[StoredFile]]:
        """Returns the names of the folders and the files in a folder."""
        folders: list[str] = []
        files: list[StoredFile] = []
        for page in self._pages(self._below(path)):
            folders += page.folders
            files += [file for file in page.files if file.name]
        return folders, files

    def _pages(self, home: str) -> Iterator[ObjectPage]:
        more: Any = None
        while True:
            page = self._again(lambda more=more: self._page(home, more, None))  # type: ignore[misc]
            yield page
            if page.more is None:
                return
            more = page.more

    # -- files --------------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self._head(path) is not None

    def modified(self, path: str) -> float:
        return self._there(path).modified

    def size(self, path: str) -> int:
        return self._there(path).size

    def status(self, path: str) -> StoredFile:
        """Returns a file as a listing has it."""
        found = self._there(path)
        return StoredFile(path.rpartition("/")[2], found.modified, found.size)

    def identity(self, path: str) -> tuple[str, str]:
        found = self._there(path)
        return found.tag, found.token

    def read(self, path: str) -> bytes:
        return self._get(path).content

    def part(self, path: str, first: int, size: int) -> bytes:
        with contextlib.suppress(EOFError):
            return self._get(path, first, first + size).content if size else b""
        return b""

    def create(self, path: str, content: bytes) -> None:
        token = uuid.uuid4().hex
        try:
            # It may be the file of this very call that is there already: its first answer was lost.
            if self._created(path, content, token) or self._token(path) == token:
                return
        except CdcError:
            self._unanswered.setdefault(self._key(path), set()).add(token)
            raise
        raise FileExistsError(errno.EEXIST, "the object is there already")

    def _created(self, path: str, content: bytes, token: str) -> bool:
        try:
            self._put(path, content, ABSENT, token)
        except Conflict:
            return False
        return True

    def is_late(self, path: str) -> bool:
        tokens = self._unanswered.get(self._key(path))
        return tokens is not None and self._token(path) in tokens

    def _token(self, path: str) -> str:
        found = self._head(path)
        return "" if found is None else found.token

    def replace(self, path: str, content: bytes) -> None:
        self._put(path, content)

    def update(self, path: str, change: Callable[[bytes | None], bytes | None]) -> None:
        wanted: bytes | None = None
        for _ in range(CHANGES_MAX):
            try:
                found = self._get(path)
            except FileNotFoundError:
                found = None
            if found is not None and found.content == wanted:
                # It was written although the store said something else.
                return
            wanted = change(None if found is None else found.content)
            if wanted is None:
                return
            with contextlib.suppress(Conflict, FileNotFoundError):
                self._put(path, wanted, ABSENT if found is None else Condition(tag=found.tag))
                return
        raise CdcError(TARGET_UNREACHABLE, "somebody else changes an object again and again", where=self._where)

    @contextlib.contextmanager
    def alone(self, path: str, where: Where) -> Iterator[None]:
        yield

    def remove(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        if keys:
            self._again(lambda: self._drop(keys))

    def write(self, path: str, fill: Callable[[Any], None]) -> int:
        sink = io.BytesIO()
        fill(sink)
        content = sink.getvalue()
        self._put(path, content)
        return len(content)

    def settle(self, path: str) -> None:  # noqa: B027  nothing is to be done, for any kind
        """An object outlives the machine when its put was answered."""

    def source(self, path: str) -> Any:
        import pyarrow as pa

        try:
            found = self._get(path, 0, WHOLE_BYTES)
        except EOFError:
            return pa.BufferReader(b"")
        if found.total <= len(found.content):
            return pa.BufferReader(found.content)
        fetch = lambda first, end: self._get(path, first, end).content  # noqa: E731
        return pa.PythonFile(_Ranges(fetch, found.total), mode="r")

    # -- by paths -----------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        return f"{self._prefix}{path}"

    def _below(self, path: str) -> str:
        return f"{self._key(path)}/" if path else self._prefix

    def _get(self, path: str, first: int = 0, end: int | None = None) -> ObjectContent:
        return self._again(lambda: self._content(self._key(path), first, end))

    def _head(self, path: str) -> ObjectStatus | None:
        try:
            return self._there(path)
        except FileNotFoundError:
            return None

    def _there(self, path: str) -> ObjectStatus:
        return self._again(lambda: self._status(self._key(path)))

    def _put(self, path: str, content: bytes, condition: Condition = ALWAYS, token: str = "") -> None:
        self._again(lambda: self._send(self._key(path), content, condition, token))


class _Ranges(io.RawIOBase):
    """A file that is read in the ranges that are asked for."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        content = self._fetch(self._at, end)
        self._at += len(content)
        return content
