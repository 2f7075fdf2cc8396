"""A task of PostgreSQL's source that a test polls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.roles import SourceRole, source_script
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart.roles import run

from tests.contract.polled_task import PolledTask

HALT_S_MAX = 30.0
"""From what was lost to the error that names it, on a busy machine; `test_halting` measures it."""
SLOWLY = {"snapshot.chunk.max.bytes": "20000", "snapshot.inflight.max.bytes": "20000"}
"""One chunk at a time: a test that stops in the middle of a load finds a middle, however late it looks."""


def drop_slot(db: psycopg.Connection, name: str, seconds: float = 60.0) -> None:
    """Drops a slot as soon as the server has noticed that its reader is gone."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            db.execute("select pg_drop_replication_slot(%s)", (name,))
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Reader(PolledTask):
    """Over one database of PostgreSQL."""

    def __init__(self, server, dbname: str, **config: str) -> None:
        super().__init__()
        info = psycopg.conninfo.conninfo_to_dict(server.dsn(dbname))
        self.config = {
            "name": f"c_{dbname}",
            "connector.class": "postgres",
            "database.hostname": str(info["host"]),
            "database.port": str(info["port"]),
            "database.user": str(info["user"]),
            "database.password": str(info["password"]),
            "database.dbname": dbname,
            "topic.prefix": "shop",
            "slot.name": f"s_{dbname}",
            **{name if "." in name else name.replace("_", "."): value for name, value in config.items()},
        }
        self.group = "cluster"
        self.notes: dict = {}
        self.state_dir = ""
        self.before_first_start: Callable[[Reader], None] | None = None

    def make(self) -> SourceTask:
        if self.before_first_start:
            self.before_first_start(self)
            self.before_first_start = None
        source = PostgresSource(self.config)
        context = TaskContext(
            self.config["name"],
            0,
            self.task_epoch,
            "i",
            self.state_dir,
            report=self.reports.append,
            jobs=lambda: self.jobs,
            attempt=self.attempt,
            group=self.group,
            notes=self.notes,
        )
        return source.task(source.split(1)[0], context)

    @property
    def watermark(self) -> int:
        return self.mark.get("commit_lsn", 0)

    def catch_up(self, connection, timeout_s: float = 60.0) -> None:
        """Until everything that has committed so far is in the log, and the snapshot is done."""
        connection.execute("select pg_logical_emit_message(true, 'cdcworker', 'catch up')")
        target = lsn(connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0])
        self.until(lambda: self.watermark >= target - 8 * 1024 and self._reached(target) and self.loaded(), timeout_s)

    def catch_up_stream(self, connection, timeout_s: float = 60.0) -> None:
        """The same, whatever the snapshot does meanwhile."""
        connection.execute("select pg_logical_emit_message(true, 'cdcworker', 'catch up')")
        target = lsn(connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0])
        self.until(lambda: self._reached(target), timeout_s)

    def _reached(self, target: int) -> bool:
        # A boundary may lie just before a page header that the insert position already counts.
        return max(self.watermark, self.position["safe_lsn"] if self.position else 0) + 64 >= target


def become_role(one: Reader, owner: str) -> None:
    """Its tables are there: from now on it logs in as a role that has what `cdcworker roles postgres` gives, by the
    script that it writes, and nothing besides. `owner`: connection string of who runs the script. A login that a test
    has chosen stays."""
    given = psycopg.conninfo.conninfo_to_dict(owner)
    if (one.config["database.user"], one.config["database.password"]) != (given["user"], given["password"]):
        return
    settings = parse(one.config)
    with psycopg.connect(owner) as connection:
        tables = [(schema, table) for _, schema, table in slots.candidates(connection, settings)]
    is_there = settings.raw["publication.autocreate.mode"] == "disabled"
    role, password = f"reader_{settings.dbname}", "only for tests"
    wanted = SourceRole(
        role, settings.dbname, tables, settings.publication, settings.via_root, slots=settings.raw["slot.count"]
    )
    run(
        owner, role, password, [step for step in source_script(wanted) if not (is_there and "PUBLICATION" in str(step))]
    )
    one.config |= {"database.user": role, "database.password": password}


@contextmanager
def in_time(limit_s: float = HALT_S_MAX) -> Iterator[None]:
    """What is done in here, from a loss to what tells of it, takes no longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took <= limit_s, f"took {took:.1f} s of {limit_s:.0f} s"


def refused(one: Reader) -> CdcError:
    """The error of a start, which comes in time."""
    with in_time(), pytest.raises(CdcError) as caught:
        one.start()
    return caught.value


def halted(one: Reader) -> CdcError:
    """What ends for good, in time, a source that runs."""
    with in_time(), pytest.raises(CdcError) as caught:
        one.until(lambda: False, HALT_S_MAX)
    assert not caught.value.retriable
    return caught.value


@contextmanager
def optional_parts() -> Iterator[None]:
    """Some builds of the server are without a plugin or an extension: what needs it is left out there."""
    try:
        yield
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported) as error:
        pytest.skip(f"missing part of this server: {error.diag.message_primary}")


def lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)
