"""An archive of the classes that a Java process loads (AppCDS): it halves the time from its start to the first
batch. Recorded by a first run, made in the background, kept in the cache for one Java runtime and one set of jars."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cdcworker.connectors.config.inherited_variables import of_java
from cdcworker.schemas.threads import start_thread

log = logging.getLogger(__name__)

FOLDER = "classes"
KEPT = 5
"""Archives in the cache: of sinks into PostgreSQL or Parquet, into Iceberg and into Delta, of the embedded Kafka, and one from before
an upgrade."""
MAKE_S_MAX = 900.0
RETRY_S = 86_400.0
"""One that could not be made is not tried again before that."""
NICE = 19
WAIT_S = 0.5
SILENT = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""An archive that does not fit is ignored without a word: the process is only slower."""


class ClassArchive:
    """The archive of loaded classes for one Java program with one class path and one set of flags: a program with others
    refuses it."""

    def __init__(self, cache: Path, java: str, class_path: Sequence[str], flags: Sequence[str]) -> None:
        self._folder = cache / FOLDER
        self._java = java
        self._class_path = tuple(class_path)
        self._flags = tuple(flags)
        key = self._key()
        self.path = self._folder / f"{key}.jsa"
        self._failed = self._folder / f"{key}.failed"
        self._lock = self._folder / f"{key}.lock"

    def _key(self) -> str:
        """Returns a hash of the runtime's build and of every jar as Java will check it: path, size and time, in seconds as
        images keep it."""
        digest = hashlib.sha256()
        program = Path(self._java).resolve()
        library = program.parent.parent / "lib" / "server" / "libjvm.so"
        for path in (program, library, *map(Path, self._class_path)):
            with contextlib.suppress(OSError):
                stat = path.stat()
                digest.update(f"{path}\0{stat.st_size}\0{int(stat.st_mtime)}\n".encode())
        digest.update("\0".join(self._flags).encode())
        return digest.hexdigest()[:24]

    # -- use ----------------------------------------------------------------------------------------------------------

    def options(self, record: Path) -> list[str]:
        """JVM options: use the archive, or where there is none write the names of the loaded classes to `record`."""
        if self._usable():
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.path}", *SILENT]
        return [f"-XX:DumpLoadedClassList={record}"] if self._wanted() else []

    def _usable(self) -> bool:
        try:
            # The time of the last use decides what is kept.
            os.utime(self.path)
        except PermissionError:
            pass
        except OSError:
            return False
        return True

    def _wanted(self) -> bool:
        try:
            return time.time() - self._failed.stat().st_mtime > RETRY_S
        except OSError:
            return True

    def distrust(self) -> None:
        """A process that used it did not come up: away with it. A next one goes without, and records."""
        log.warning("class archive is dropped file=%s", self.path.name)
        with contextlib.suppress(OSError):
            self.path.unlink()

    # -- making -------------------------------------------------------------------------------------------------------

    def make_in_background(
        self, record: Path, stopping: Callable[[], bool] = lambda: False, nice: int = NICE, waits: bool = False
    ) -> threading.Thread | None:
        """Creates the archive from what a process recorded, unless it exists; one process of the machine does it at a
        time. With `waits` another one that does is waited for, and followed if it did not come to the end."""
        try:
            # What is written there from now on belongs to a line that may be half written.
            names = record.read_bytes().rpartition(b"\n")[0] + b"\n"
        except OSError:
            return None
        return start_thread(self._make, names, stopping, nice, waits, name="class-archive")

    def _make(self, names: bytes, stopping: Callable[[], bool], nice: int, waits: bool) -> None:
        partial = self._folder / f".{uuid.uuid4().hex}"
        record = partial.with_suffix(".classes")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._alone(waits) as alone:
                if not alone or self.path.exists():
                    return
                self._sweep()
                record.write_bytes(names)
                began = time.monotonic()
                if self._dump((record, partial), stopping, nice):
                    partial.replace(self.path)
                    self._prune()
                    log.info("class archive created file=%s s=%.1f", self.path.name, time.monotonic() - began)
        except OSError as exc:
            log.warning("class archive cannot be created error=%s", exc.strerror)
        finally:
            for path in (partial, record):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self, waits: bool) -> Iterator[bool]:
        with self._lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except OSError:
                yield False
            else:
                yield True

    def _dump(self, files: tuple[Path, Path], stopping: Callable[[], bool], nice: int) -> bool:
        record, target = files
        command = [self._java, "-Xshare:dump", f"-XX:SharedClassListFile={record}", f"-XX:SharedArchiveFile={target}"]
        command += ["-Xmx512m", "-XX:TieredStopAtLevel=1", *SILENT, *self._flags]
        command += ["-cp", os.pathsep.join(self._class_path)]
        environment = of_java(os.environ)
        process = subprocess.Popen(  # noqa: S603  a list of arguments: Java as the operator named it, paths of locked jars
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=2, env=environment
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        deadline = time.monotonic() + MAKE_S_MAX
        while process.poll() is None:
            if stopping() or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return False
            time.sleep(WAIT_S)
        if process.returncode != 0 or not target.exists():
            log.warning("class archive was not created code=%d", process.returncode)
            self._failed.touch()
            return False
        return True

    def _sweep(self) -> None:
        """Removes the files of processes that were killed while they created an archive."""
        for path in self._folder.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > MAKE_S_MAX:
                    path.unlink()

    def _prune(self) -> None:
        """Keep the newest by their last use."""
        found = sorted(self._folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[KEPT:]:
            path.unlink(missing_ok=True)
