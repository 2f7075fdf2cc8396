"""Drives a PostgresTask as the runner does: a batch counts once its position is committed, all else is thrown away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.roles import SourceRole, source_script
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.change import Change
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart.roles import run

from tests.unit.connectors.native_records import Registry

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


class Reader:
    """One connector over any number of task lives. `log` is what a read_committed consumer sees."""

    def __init__(self, server, dbname: str, **config: str) -> None:
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
        self.log: list[Change] = []
        self.beside: list[Change] = []
        """Committed records that are no changes of tables."""
        self.lost: dict[tuple, Change] = {}
        self.position: dict | None = None
        self.open_changes: list[Change] = []
        self.watermark = 0
        self.loading: list[str] = []
        """Tables that the last watermark says to lack rows."""
        self.reports: list[dict] = []
        self.task_epoch, self.attempt = 1, 0
        self.group = "cluster"
        self.jobs: tuple[dict, ...] = ()
        """What the worker has told the task of."""
        self.notes: dict = {}
        self.task = None
        self.state_dir = ""
        self.before_first_start: Callable[[Reader], None] | None = None
        self.registry: Registry | None = None
        """Lent to the task at each start: rows then are written as records, which the log holds read back."""

    def start(self, troubles: dict | None = None) -> Reader:
        """`troubles`: tables to hold back, as the runner says before it opens a task."""
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
        self.task = source.task(source.split(1)[0], context)
        if troubles:
            self.task.hold(troubles)
        try:
            self.task.open(json.loads(json.dumps(self.position)) if self.position else None)
        except BaseException:
            self.task.close()
            raise
        if self.registry:
            self.task.lend(self.registry)
        return self

    def kill(self) -> None:
        """What was not committed is gone."""
        self.task.close()
        self.lost.update({change.position: change for change in self.open_changes if isinstance(change, Change)})
        self.open_changes = []

    def poll(self, *, ack: bool = True, commit: bool = True, parts: bool = False):
        """`parts`: a transaction is committed in parts wherever that is possible."""
        batch = self.task.poll()
        self.open_changes.extend(self.registry.changes(batch.changes) if self.registry else batch.changes)
        if batch.watermark:
            self.watermark = batch.watermark["commit_lsn"]
            self.loading = batch.watermark.get("loading", [])
        position = batch.part if parts and batch.position is None else batch.position
        if position is not None and commit:
            for item in self.open_changes:
                is_beside = isinstance(item, Change) and item.table.plain is not None
                (self.beside if is_beside else self.log).append(item)
            self.open_changes = []
            self.position = json.loads(json.dumps(position))
            if ack:
                self.task.ack(self.position)
        return batch

    def trouble(self, timeout_s: float = 60.0):
        """Polls until there is an error for which a table may be held back, and starts anew without that table."""
        deadline = time.monotonic() + timeout_s
        found: CdcError | None = None
        while found is None:
            assert time.monotonic() < deadline
            try:
                self.poll()
            except CdcError as error:
                found = error
        assert self.task.holds(found), found
        self.kill()
        return self.start({str(found.where["table"]): found}) and found

    def poll_often(self) -> None:
        for _ in range(100):
            self.poll()

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not reached; {len(self.log)} changes, position {self.position}"
            self.poll()

    def loaded(self) -> bool:
        snapshot = (self.position or {}).get("snapshot") or {}
        return not (self.position is None or snapshot.get("loads") or snapshot.get("skips") or self.loading)

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

    def events(self, *ops: str) -> list[Change]:
        return [change for change in self.log if not ops or change.op in ops]


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


def materialise(changes: list[Change]) -> dict[tuple, dict[tuple, dict]]:
    """What a sink that applies the log has: {path: {key: row}}. Checks that positions only ever go up."""
    tables: dict[tuple, dict[tuple, dict]] = {}
    last = None
    for change in changes:
        assert last is None or change.position > last, (last, change.position)
        last = change.position
        if change.op != "m":
            apply(tables.setdefault(change.table.path, {}), change)
    return tables


def apply(rows: dict[tuple, dict], change: Change) -> None:
    names = [column.name for column in change.table.columns]
    key = change.table.key
    if change.op == "t":
        rows.clear()
        return
    if change.op == "d":
        gone = rows.pop(tuple(change.before[i] for i in key), None)
        if change.other_key is not None and gone is not None:
            rows[("moved", *change.other_key)] = gone
        return
    new = dict(zip(names, change.after, strict=True))
    at = tuple(change.after[i] for i in key)
    old = rows.pop(("moved", *at), None) if change.other_key is not None else rows.get(at)
    for i in change.unchanged:
        new[names[i]] = old[names[i]] if old else "<never sent>"
    rows[at] = new
