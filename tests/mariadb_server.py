"""A real MariaDB server of its own folder, whose programs `make servers` takes from the archive that `locks/servers.json` names."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cdcworker.connectors.mysql_client.login import Login
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program, run

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor

NAME = "mariadb-11.4"
USER = "cdc"
START_S_MAX = 60.0
STOP_S_MAX = 15.0
SETTINGS: Mapping[str, str] = {
    "bind-address": HOST,
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "128M",
    # A server that is killed by a test is not one whose machine loses power.
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "innodb-file-per-table": "0",
    "innodb-lock-wait-timeout": "20",
    "skip-ssl": "",
    "skip-name-resolve": "",
    "performance-schema": "off",
}


def find_programs() -> Path | None:
    """Returns the folder of the server's programs; None where they were not installed."""
    places = (os.environ.get("CDC_MARIADB", ""), str(Path(sys.prefix) / "servers" / NAME))
    return next((Path(place) for place in places if place and (Path(place) / "bin" / "mariadbd").is_file()), None)


class MariaDbServer(EmbeddedServer):
    """One server whose data and log are in `directory`; it keeps its port after `restart`. A setting of None is left out."""

    title: ClassVar[str] = "MariaDB"

    def __init__(self, programs: Path, directory: Path, settings: Mapping[str, str | None] | None = None) -> None:
        self._programs = programs
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

    def login(self, **more: str) -> Login:
        """Returns what a warehouse logs in with."""
        return Login(HOST, self.port, USER, self.password, **more)

    def ask(self, *statements: str) -> Sequence[tuple[object, ...]]:
        """Executes statements over a connection of its own; returns the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def wipe(self) -> None:
        """Drops every database but the server's own."""
        own = ("mysql", "sys", "information_schema", "performance_schema")
        names = [str(name) for (name,) in self.ask("show databases") if name not in own]
        if names:
            self.ask("set foreign_key_checks = 0", *(f"drop database `{name.replace('`', '``')}`" for name in names))

    def _places(self) -> list[str]:
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [f"--basedir={self._programs}", f"--datadir={self.directory / 'data'}", *user]

    def _prepare(self) -> None:
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
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
        if run(argv, self.log, name="mariadb-install-db", timeout_s=START_S_MAX):
            raise RuntimeError(f"mariadb-install-db failed: {self.log.read_text(errors='replace')[-1000:]}")
        account.unlink()
        (self.port,) = free_ports(1)

    def _answers(self) -> bool:
        import pymysql

        try:
            self.connect().close()
        except pymysql.Error:
            return False
        return True
