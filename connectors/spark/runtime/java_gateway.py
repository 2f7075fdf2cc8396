"""Starts Spark's Java process ourselves: no shell script, no launcher, and it ends when our end of its pipe closes."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cdcworker.connectors.class_archive import NICE, ClassArchive
from cdcworker.connectors.config import inherited_variables, worker_logins
from cdcworker.connectors.config.definition import Secret
from cdcworker.connectors.scratch_folder import TemporaryFolder
from cdcworker.connectors.sink_errors import GATEWAY
from cdcworker.connectors.spark.runtime.cluster import PYTHON
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

START_S_MAX = 60.0
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
ENDED = {-signal.SIGKILL, *(-number for number in _SIGNALS), *(128 + number for number in _SIGNALS)}
"""Codes of a process that was told to end; Java catches what can be caught."""
OPENED = (
    # What Spark's own launcher opens; without jdk.incubator.vector, whose warning nobody needs.
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p spark %c{1} %m%n%ex{12}
# What the task reports itself, with its place.
logger.query.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
logger.query.level = off
# A trigger that takes longer than its interval is normal under load.
logger.trigger.name = org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor
logger.trigger.level = error
# Says once per query that an Admin client ignores consumer settings.
logger.clients.name = org.apache.kafka.clients
logger.clients.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# Of each merge into a lake: a plan too long to be printed, rows kept in memory, a filter on a column of Delta's own.
logger.plan.name = org.apache.spark.util.SparkStringUtils
logger.plan.level = error
logger.kept.name = org.apache.spark.rdd.MapPartitionsRDD
logger.kept.level = error
logger.delta.name = org.apache.spark.sql.delta.DeltaParquetFileFormat
logger.delta.level = off
"""


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CdcError(GATEWAY, "the pyspark package is not installed")
    return Path(spec.origin).parent


def java_program(java_home: str) -> str:
    if java_home:
        return str(Path(java_home, "bin", "java"))
    found = shutil.which("java")
    if found is None:
        raise CdcError(GATEWAY, "no Java runtime was given and none is on PATH")
    return found


def jvm_flags() -> list[str]:
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        "--enable-native-access=ALL-UNNAMED",
    ]


def _address(master: str) -> dict[str, str]:
    """Returns environment variables with the name that Spark uses for this machine; with a cluster the settings, or Spark,
    say it."""
    return {"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") else {}


def class_path_of(jars: Sequence[str]) -> list[str]:
    """Returns Spark's own libraries and these."""
    return [*map(str, sorted((spark_home() / "jars").glob("*.jar"))), *jars]


def class_archive_of(cache: Path, java: str, jars: Sequence[str]) -> ClassArchive:
    """Returns the archive in `cache` that a process with these libraries uses."""
    return ClassArchive(cache, java, class_path_of(jars), jvm_flags())


class JavaGateway:
    """The Java process. It stays in our process group, so that a signal to the group reaches it, and it reads the
    pipe that only we hold: when we die in whatever way, it sees the end and exits."""

    def __init__(
        self,
        java: str,
        jars: Sequence[str],
        settings: Mapping[str, str | Secret],
        options: Sequence[str],
        scratch: Path,
        cache: Path | None = None,
    ) -> None:
        """Launches it; settings that are secret reach it by a file. With a `cache` the process uses the archive of its
        classes there, or records what one is made from."""
        self._scratch = scratch
        self._folder = TemporaryFolder()
        self._work = self._folder.path
        class_path = class_path_of(jars)
        self._archive = class_archive_of(cache, java, jars) if cache is not None else None
        self._archived = self._archive.options(self._record) if self._archive is not None else []
        self._python = str(settings.get(PYTHON, sys.executable))
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.secret = 0, ""
        try:
            self._process = self._launch(java, class_path, settings, [*options, *self._archived])
        except BaseException:
            self.close()
            raise

    def connect(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Wait until it can be called."""
        try:
            self.port, self.secret = self._await(stopping)
            for path in (self._work / "secrets", self._info):
                path.unlink(missing_ok=True)
        except BaseException:
            if self._archived and self._archive is not None and self._failed:
                self._archive.distrust()
            raise

    @property
    def _record(self) -> Path:
        return self._work / "classes"

    def archive_classes(
        self, stopping: Callable[[], bool], nice: int = NICE, waits: bool = False
    ) -> threading.Thread | None:
        """Creates the archive of classes unless it exists; called once a batch went through, so that its classes are
        loaded. With `waits` another process that creates it is waited for."""
        if self._archive is None:
            return None
        return self._archive.make_in_background(self._record, stopping, nice, waits)

    @property
    def class_archive(self) -> Path | None:
        """The archive that a next process starts from; None: there is none yet."""
        return self._archive.path if self._archive is not None and self._archive.path.exists() else None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _failed(self) -> bool:
        """It ended by itself. What ends by a signal, such as ours when nobody wants it any more, says nothing of its archive."""
        return not self.alive and self._process is not None and self._process.returncode not in ENDED

    def _launch(
        self, java: str, class_path: Sequence[str], settings: Mapping[str, str | Secret], options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        logging_file = self._work / "log4j2.properties"
        logging_file.write_text(LOGGING, encoding="utf-8")
        command = [java, *options, *jvm_flags(), f"-Dlog4j2.configurationFile={logging_file}"]
        command += [f"-Djava.io.tmpdir={self._work}", "-cp", os.pathsep.join(class_path)]
        command.append("org.apache.spark.deploy.SparkSubmit")
        command += self._arguments(settings)
        environment = {
            **worker_logins.of_java(),
            **inherited_variables.of_java(os.environ),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._info),
            "SPARK_HOME": str(spark_home()),
            "SPARK_ENV_LOADED": "1",
            "SPARK_SCALA_VERSION": "2.13",
            **_address(str(settings["spark.master"])),
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "PYSPARK_PYTHON": self._python,
        }
        try:
            # Standard output may be a pipe that carries our own protocol: the process writes to standard error only.
            return subprocess.Popen([*command, "pyspark-shell"], stdin=subprocess.PIPE, stdout=2, env=environment)  # noqa: S603  a list of arguments: settings are checked by type, the program is the operator's
        except OSError as exc:
            raise CdcError(GATEWAY, f"Java cannot be run: {exc.strerror}") from exc

    def _arguments(self, settings: Mapping[str, str | Secret]) -> list[str]:
        """Arguments can be read by whoever is on the machine."""
        secrets = {name: value.reveal() for name, value in settings.items() if isinstance(value, Secret)}
        out = [part for name in settings if name not in secrets for part in ("--conf", f"{name}={settings[name]}")]
        if secrets:
            path = self._work / "secrets"
            path.touch(0o600, exist_ok=False)
            # Java's form of properties.
            lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in secrets.items())
            path.write_text("".join(lines), encoding="ascii")
            out += ["--properties-file", str(path)]
        return out

    @property
    def _info(self) -> Path:
        return self._work / "connection"

    def _await(self, stopping: Callable[[], bool]) -> tuple[int, str]:
        deadline = time.monotonic() + START_S_MAX
        while True:
            # The file is moved into place complete.
            if self._info.exists() and len(data := self._info.read_bytes()) >= 8:
                port, size = struct.unpack(">ii", data[:8])
                return port, data[8 : 8 + size].decode()
            if not self.alive:
                code = self._process.returncode if self._process is not None else None
                raise CdcError(GATEWAY, f"Spark's Java process ended with code {code}")
            if stopping() or time.monotonic() > deadline:
                raise CdcError(GATEWAY, "Spark's Java process was not ready in time")
            time.sleep(0.01)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Sets, while the context lasts, the variables by which pyspark uses this process instead of starting one."""
        wanted = {
            "PYSPARK_GATEWAY_PORT": str(self.port),
            "PYSPARK_GATEWAY_SECRET": self.secret,
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": self._python,
        }
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def close(self) -> None:
        """Kills the process: nothing in it is worth waiting for, what counts is in the target. Its folders are removed."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self._folder.close()
