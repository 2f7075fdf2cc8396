"""A task that a test polls as the engine does: what was handed on since the last position is lost with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.mysql.source.connector import MySqlSource, MySqlTask
from cdcworker.schemas.change import Change, JsonObject, Position
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer

DEADLINE_S = 60.0


def config_of(server: LoggedServer, **more: str) -> dict[str, str]:
    """A config of tables of the database `shop`."""
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "cdc",
        "database.password": server.password,
        "database.server.id": "4712",
        "database.include.list": "shop",
        "topic.prefix": "p",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


class Reading:
    """One run of a task after another, each from the last stored position. `changes` are those of stored positions."""

    def __init__(self, server: LoggedServer, **config: str) -> None:
        self.config = config_of(server, **config)
        self.changes: list[Change] = []
        self.position: JsonObject | None = None
        self.watermark: JsonObject = {}
        self.reports: list[JsonObject] = []
        self.jobs: list[JsonObject] = []
        self._open: list[Change] = []
        self.part: JsonObject | None = None
        self._part: list[Change] = []
        self.task: MySqlTask | None = None

    def start(self, held: Mapping[str, CdcError] | None = None) -> Reading:
        """`held`: tables that are held back from now on, as the engine does for an error that names one."""
        context = TaskContext("c", 0, 1, "i", "", report=self.reports.append, jobs=lambda: self.jobs)
        connector = MySqlSource(self.config)
        (share,) = connector.split(1)
        task = connector.task(share, context)
        assert isinstance(task, MySqlTask)
        self.task = task
        if held:
            task.hold(held)
        try:
            task.open(self.position)
        except BaseException:
            task.close()
            raise
        return self

    def poll(self) -> None:
        assert self.task is not None
        batch = self.task.poll()
        self._open += [change for change in batch.changes if isinstance(change, Change)]
        self.watermark = batch.watermark or self.watermark
        if batch.position is not None:
            self.position = json.loads(json.dumps(batch.position))
            self.changes += self._open
            self._open = []
            self.task.ack(self.position)
        elif batch.part is not None:
            self.part = json.loads(json.dumps(batch.part))
            self._part = list(self._open)

    def store_part(self) -> None:
        """The engine has committed what was handed on of a transaction, with the position inside it."""
        self.position, self.changes = self.part, [*self.changes, *self._part]
        self._open = []

    def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"{len(self.changes)} changes, {len(self._open)} open, {self.position}"
            self.poll()

    def until_loaded(self) -> None:
        self.until(lambda: self.position and not self.progress.get("loads") and self.progress.get("loaded"))

    @property
    def progress(self) -> JsonObject:
        """What the stored position says of rows."""
        assert self.position is not None
        found: JsonObject = self.position["snapshot"]
        return found

    def rows(self, table: str) -> list[tuple[str, Any]]:
        """Operation, and the new row or for a deletion the old one, of a table's changes."""
        return [(c.op, c.before if c.op == "d" else c.after) for c in self.changes if c.table.path[-1] == table]

    def state(self, table: str) -> dict[Any, Any]:
        """What a reader of the changes has of a table, by its first column."""
        rows: dict[Any, Any] = {}
        for op, row in self.rows(table):
            if op == "t":
                rows.clear()
            elif op == "d":
                rows.pop(row[0], None)
            else:
                rows[row[0]] = row
        return rows

    def places(self) -> list[Position]:
        return [change.position for change in self.changes if change.table.plain is None]

    def stop(self) -> None:
        """Ends the task; what it had handed on behind the last position is lost."""
        self._open = []
        task, self.task = self.task, None
        if task is not None:
            task.close()

    def again(self) -> Reading:
        self.stop()
        return self.start()
