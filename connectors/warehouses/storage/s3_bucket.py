"""Files of a warehouse in a bucket of S3, or of a store that speaks its protocol and does conditional puts.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from cdcworker.connectors.sink_errors import TARGET_STORE_UNFIT, TARGET_UNREACHABLE
from cdcworker.connectors.warehouses.storage.files import StoredFile, Where
from cdcworker.connectors.warehouses.storage.s3_errors import Conflict, answered, translated
from cdcworker.schemas.errors import CdcError

RETRY_S_MAX: Final = 20.0
"""So long a request is repeated; then the task waits for the store as for any target that is away."""
DELAY_S_MIN: Final = 0.1
DELAY_S_MAX: Final = 2.0
CHANGES_MAX: Final = 10
"""So often a file is read again that others change meanwhile."""
PUT_ID: Final = "cdcworker-put"
"""Member of a file's metadata that says which call of `create` made it."""
MARKER: Final = "_cdcworker/conditional-put"
"""A file by which it is found out whether the store does conditional puts."""
WHOLE_BYTES: Final = 32 * 1024 * 1024
"""Larger files are read in ranges."""


@dataclass(frozen=True, slots=True)
class _Object:
    """What a file holds, and the tag that a conditional put names."""

    content: bytes
    tag: str


class S3Bucket:
    """A `Storage` below a prefix of a bucket."""

    commits_per_sweep = 10
    checks_every_s = 60.0

    def __init__(self, client: Callable[[], Any], bucket: str, prefix: str) -> None:
        """`client` returns a client of botocore's for S3 that repeats nothing by itself; it is called once."""
        self._open = client
        self._opened: Any = None
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._where = {"bucket": bucket}
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
        return f"s3://{self._bucket}/{self._prefix}{path}"

    def below(self, path: str) -> Self:
        made = type(self)(lambda: self._client, self._bucket, f"{self._prefix}{path}")
        made._unanswered = self._unanswered
        return made

    def probe(self) -> None:
        """CdcError where the bucket cannot be listed now; nothing is changed there and nothing repeated."""
        self._call("list_objects_v2", retry_s=0.0, Prefix=self._prefix, MaxKeys=1)

    def begin(self, where: Where) -> None:
        for _ in range(2):
            with contextlib.suppress(FileExistsError):
                self.create(MARKER, b"")
                continue
            with contextlib.suppress(Conflict):
                self._put(MARKER, b"", IfMatch='"0"')
                break
            return
        text = "the object store does not refuse a put whose condition does not hold"
        raise CdcError(TARGET_STORE_UNFIT, text, where=where)

    # -- folders ------------------------------------------------------------------------------------------------------

    def has_folder(self, path: str) -> bool:
        return bool(self._call("list_objects_v2", Prefix=self._below(path), MaxKeys=1).get("KeyCount"))

    def make_folder(self, path: str) -> None:
        """A store of objects has no folders."""

    def folders(self, path: str) -> list[str]:
        return self.entries(path)[0]

    def files(self, path: str, suffix: str) -> list[StoredFile]:
        return [file for file in self.entries(path)[1] if file.name.endswith(suffix)]

    def names(self, path: str, suffix: str) -> list[str]:
        return [file.name for file in self.files(path, suffix)]

    def entries(self, path: str) -> tuple[list[str], list[StoredFile]]:
        """Returns the names of the folders and the files in a folder."""
        home, folders, files = self._below(path), [], []
        for page in self._pages(home):
            folders += [each["Prefix"][len(home) :].rstrip("/") for each in page.get("CommonPrefixes", ())]
            files += [_stored(each, home) for each in page.get("Contents", ()) if each["Key"] != home]
        return folders, files

    def _pages(self, home: str) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=home, Delimiter="/", **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    # -- files --------------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self._head(path) is not None

    def modified(self, path: str) -> float:
        return self.status(path).modified

    def size(self, path: str) -> int:
        return self.status(path).size

    def status(self, path: str) -> StoredFile:
        """Returns a file as a listing has it."""
        found = self._there(path)
        name = path.rpartition("/")[2]
        return StoredFile(name, float(found["LastModified"].timestamp()), int(found["ContentLength"]))

    def identity(self, path: str) -> tuple[str, str]:
        found = self._there(path)
        return str(found["ETag"]), str(found.get("Metadata", {}).get(PUT_ID, ""))

    def read(self, path: str) -> bytes:
        return self._get(path).content

    def part(self, path: str, first: int, size: int) -> bytes:
        with contextlib.suppress(EOFError):
            return self._range(path, first, first + size) if size else b""
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
            self._put(path, content, IfNoneMatch="*", Metadata={PUT_ID: token})
        except Conflict:
            return False
        return True

    def is_late(self, path: str) -> bool:
        tokens = self._unanswered.get(self._key(path))
        return tokens is not None and self._token(path) in tokens

    def _token(self, path: str) -> str:
        found = self._head(path)
        return "" if found is None else str(found.get("Metadata", {}).get(PUT_ID, ""))

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
                self._put(path, wanted, **({"IfNoneMatch": "*"} if found is None else {"IfMatch": found.tag}))
                return
        raise CdcError(TARGET_UNREACHABLE, "somebody else changes an object again and again", where=self._where)

    @contextlib.contextmanager
    def alone(self, path: str, where: Where) -> Iterator[None]:
        yield

    def remove(self, paths: Iterable[str]) -> None:
        keys = [{"Key": self._key(path)} for path in paths]
        for at in range(0, len(keys), 1000):
            said = self._call("delete_objects", Delete={"Objects": keys[at : at + 1000], "Quiet": True})
            codes = [str(each.get("Code", "")) for each in said.get("Errors", ())]
            if refused := [code for code in codes if code != "NoSuchKey"]:
                raise answered(refused[0], 403 if refused[0] == "AccessDenied" else 500, self._where)

    def write(self, path: str, fill: Callable[[Any], None]) -> int:
        sink = io.BytesIO()
        fill(sink)
        content = sink.getvalue()
        self._put(path, content)
        return len(content)

    def settle(self, path: str) -> None:
        """An object outlives the machine when its put was answered."""

    def source(self, path: str) -> Any:
        import pyarrow as pa

        try:
            said = self._call("get_object", read=True, Key=self._key(path), Range=f"bytes=0-{WHOLE_BYTES - 1}")
        except EOFError:
            return pa.BufferReader(b"")
        total = int(str(said.get("ContentRange", "")).rpartition("/")[2] or len(said["content"]))
        if total <= len(said["content"]):
            return pa.BufferReader(said["content"])
        return pa.PythonFile(_Ranges(lambda first, end: self._range(path, first, end), total), mode="r")

    def _range(self, path: str, first: int, end: int) -> bytes:
        said = self._call("get_object", read=True, Key=self._key(path), Range=f"bytes={first}-{end - 1}")
        return bytes(said["content"])

    # -- requests -----------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        return f"{self._prefix}{path}"

    def _below(self, path: str) -> str:
        return f"{self._key(path)}/" if path else self._prefix

    def _get(self, path: str) -> _Object:
        said = self._call("get_object", read=True, Key=self._key(path))
        return _Object(said["content"], said["ETag"])

    def _head(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._call("head_object", Key=self._key(path))
        except FileNotFoundError:
            return None
        return found

    def _there(self, path: str) -> dict[str, Any]:
        found = self._head(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object")
        return found

    def _put(self, path: str, content: bytes, **conditions: Any) -> None:
        self._call("put_object", Key=self._key(path), Body=content, **conditions)

    def _call(
        self, operation: str, *, read: bool = False, retry_s: float | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Sends a request, again where the store is busy or does not answer. With `read` the answer's body is in `content`."""
        handled = sys.exception()
        deadline, delay = time.monotonic() + (RETRY_S_MAX if retry_s is None else retry_s), DELAY_S_MIN
        while True:
            try:
                said: dict[str, Any] = getattr(self._client, operation)(Bucket=self._bucket, **arguments)
                return {**said, "content": said["Body"].read()} if read else said
            except Exception as exc:
                error = translated(exc, self._where, handled)
                passing = isinstance(error, CdcError) and error.code == TARGET_UNREACHABLE
                if not passing or time.monotonic() + delay > deadline:
                    raise error from exc
            time.sleep(delay * (0.5 + random.random() / 2))  # noqa: S311  spreads retries, protects nothing
            delay = min(DELAY_S_MAX, 2 * delay)


def _stored(said: Mapping[str, Any], home: str) -> StoredFile:
    return StoredFile(said["Key"][len(home) :], said["LastModified"].timestamp(), int(said["Size"]))


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
