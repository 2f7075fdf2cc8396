"""The files of a bucket for Spark's Java process: each request of its file system is answered by this process, with the client
that the sink itself uses.

So credentials stay here, every connection is judged here, a put whose answer was lost is known again, and a file is made for one
writer only. It takes a Spark whose executors run on this machine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.config.allowed_paths import NOT_ALLOWED
from cdcworker.connectors.scratch_folder import TemporaryFolder
from cdcworker.connectors.sink_errors import GATEWAY, TARGET_FAILED
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread, thread_pool
from cdcworker.schemas.untrusted.json_text import parse_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SOURCE: Final = "BucketFiles.java"
CLASS: Final = "cdcworker.BucketFiles"
THREADS: Final = 16
QUESTION_S_MAX: Final = 60.0
"""Java has written its question to the end by then."""
READ_BYTES_MAX: Final = 64 << 20
Json = dict[str, Any]


class BucketFiles:
    """Answers one Java process. A question is a JSON object; the answer is a line of JSON, and what a file holds behind it.
    `error` in it is `missing`, `exists` or `refused`."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], ObjectStore] = {}
        self._ended = threading.Event()
        self._folder = TemporaryFolder()
        self.path = self._folder.path / "bucket"
        self.scratch = self._folder.path / "puts"
        """Where Java collects what it will put."""
        self.scratch.mkdir(0o700)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(64)
        self._pool = thread_pool(THREADS, "bucket-files")
        SupervisedThread(self._serve, name="bucket-files", restart_until=self._ended).start()

    def add(self, bucket: ObjectStore) -> None:
        """Answers questions about these files from now on, and no longer by an older client."""
        self._buckets[bucket.bucket, bucket.prefix] = bucket

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._pool.shutdown(wait=False)
        self._folder.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
                self._pool.submit(self._talk, connection)
            except (OSError, RuntimeError):
                if self._ended.is_set():
                    return
                raise

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(QUESTION_S_MAX)
            said, content = self._answer(b"".join(iter(lambda: connection.recv(65_536), b"")))
            connection.sendall(json.dumps(said).encode() + b"\n" + content)

    def _answer(self, data: bytes) -> tuple[Json, bytes]:
        try:
            return self.answer(parse_message(data))
        except FileNotFoundError:
            return {"error": "missing"}, b""
        except FileExistsError:
            return {"error": "exists"}, b""
        except CdcError as exc:
            log.warning("a file of a bucket is refused code=%s error=%s", exc.code, exc.message)
            return {"error": "refused", "message": f"[{exc.code}]"}, b""
        except Exception as exc:  # noqa: BLE001 - Java waits for an answer
            log.warning("a file of a bucket could not be used error=%s", type(exc).__name__)
            return {"error": "refused", "message": f"[{TARGET_FAILED}]"}, b""

    def answer(self, question: Json) -> tuple[Json, bytes]:
        """Returns the answer to a question, and what a file holds. FileNotFoundError, FileExistsError, CdcError."""
        steps: Mapping[str, Callable[[ObjectStore, str, Json], tuple[Json, bytes]]] = {
            "status": self._status,
            "list": self._list,
            "read": self._read,
            "put": self._put,
            "delete": self._delete,
            "rename": self._rename,
        }
        files, path = self._found(question["bucket"], question["key"])
        return steps[question["step"]](files, path, question)

    def _found(self, bucket: str, key: str) -> tuple[ObjectStore, str]:
        """The files among which a key lies, and its path there."""
        names = [(mine, prefix) for mine, prefix in self._buckets if mine == bucket and f"{key}/".startswith(prefix)]
        if not names:
            raise CdcError(NOT_ALLOWED, "a file outside of the warehouse", where={"bucket": bucket})
        name = max(names, key=lambda one: len(one[1]))
        return self._buckets[name], key[len(name[1]) :]

    # -- steps --------------------------------------------------------------------------------------------------------

    def _status(self, files: ObjectStore, path: str, _question: Json) -> tuple[Json, bytes]:
        if path:
            with contextlib.suppress(FileNotFoundError):
                found = files.status(path)
                return {"size": found.size, "modified": _millis(found.modified)}, b""
        if path and not files.has_folder(path):
            raise FileNotFoundError(path)
        return {"folder": True}, b""

    def _list(self, files: ObjectStore, path: str, question: Json) -> tuple[Json, bytes]:
        folders, found = files.entries(path)
        if not folders and not found:
            said, _ = self._status(files, path, question)
            if "folder" not in said:
                return {"self": said}, b""
        listed = [[file.name, file.size, _millis(file.modified)] for file in found]
        return {"folders": folders, "files": listed}, b""

    def _read(self, files: ObjectStore, path: str, question: Json) -> tuple[Json, bytes]:
        size = min(int(question["size"]), READ_BYTES_MAX)
        return {}, files.part(path, int(question["first"]), size)

    def _put(self, files: ObjectStore, path: str, question: Json) -> tuple[Json, bytes]:
        scratch = self.scratch / Path(question["scratch"]).name
        try:
            content = scratch.read_bytes()
        finally:
            scratch.unlink(missing_ok=True)
        if question["overwrite"]:
            files.replace(path, content)
        else:
            files.create(path, content)
        return {}, b""

    def _delete(self, files: ObjectStore, path: str, question: Json) -> tuple[Json, bytes]:
        there = bool(path) and files.exists(path)
        if there:
            files.remove([path])
        elif question["recursive"]:
            for each in _below(files, path):
                there = True
                files.remove([each])
        return {"there": there}, b""

    def _rename(self, files: ObjectStore, path: str, question: Json) -> tuple[Json, bytes]:
        """Of a file alone: nothing that is to be seen whole is made so."""
        other, target = self._found(question["bucket"], question["target"])
        content = files.read(path)
        try:
            other.create(target, content)
        except FileExistsError:
            return {"there": False}, b""
        # What is not removed has another name than what was made.
        with contextlib.suppress(CdcError):
            files.remove([path])
        return {"there": True}, b""


def _below(files: ObjectStore, path: str) -> Iterator[str]:
    """The paths of all files in a folder."""
    folders, found = files.entries(path)
    yield from (f"{path}/{file.name}" for file in found)
    for folder in folders:
        yield from _below(files, f"{path}/{folder}")


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


_known: weakref.WeakKeyDictionary[Any, tuple[BucketFiles, Any]] = weakref.WeakKeyDictionary()
"""By Spark's context, who answers and the loader of the file system's class: py4j knows one class of a name only."""
_lock = threading.Lock()


def serve(session: SparkSession, bucket: ObjectStore) -> None:
    """Lets Spark open the URIs of this bucket's files. CdcError `spark.gateway` where that is not possible."""
    context: Any = session.sparkContext
    with _lock, _of_java():
        if context not in _known:
            _known[context] = _started(context)
        files, loader = _known[context]
        files.add(bucket)
        settings = session._jsparkSession.sessionState().newHadoopConf()
        # From here on Hadoop has it for everybody who asks for the bucket.
        system = loader.loadClass(CLASS).newInstance()
        system.install(str(files.path), str(files.scratch), f"{bucket.scheme}://{bucket.bucket}", settings)


@contextlib.contextmanager
def _of_java() -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        raise CdcError(GATEWAY, f"Spark cannot open a bucket ({type(exc).__name__})") from exc


def _started(context: Any) -> tuple[BucketFiles, Any]:
    files = BucketFiles()
    try:
        compiler = context._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(Path(__file__).with_name(SOURCE).read_text(encoding="utf-8"))
        loader = compiler.getClassLoader()
    except Exception:
        files.close()
        raise
    weakref.finalize(context, files.close)
    return files, loader
